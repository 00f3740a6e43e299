"""Export of token shards for other trainers: Megatron-LM, WebDataset, or a dataset folder of Hugging Face.

Reads `shards`, `tokenizer` and the takedowns in force, whose documents are left out; writes a new local folder with the
tokens of whole documents, `tokenizer.json`, and `export.json`: the artifacts that it was made from, and size, sha256
and documents of every file. Every format names the document of every run of tokens, by id and URL.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.artifact import Artifact
from tasks.core.digest import sha256_of_file
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.core.terminal import Progress
from tasks.formats.documents.tombstones import Tombstones, in_force
from tasks.formats.tokens import megatron
from tasks.formats.tokens.index import DocumentIndex
from tasks.formats.tokens.shard import SPLITS, TokenFormat
from tasks.formats.tokens.shard_set import ShardSet
from tasks.formats.tokens.webdataset import write_tar
from tasks.formats.tokens.withheld import withheld_rows
from tasks.run import lineage

Counts = dict[str, int]
"""File -> documents in it."""


def export(store: Store, recipe: str, version: str, kind: str, out: str) -> Path:
    """Writes the token shards of a version in another format; returns the new folder.

    Args:
        store: store of the artifacts.
        recipe: name of the recipe.
        version: version of the shards.
        kind: one of FORMATS.
        out: path of the folder to make.

    Raises:
        InputError: there are no shards, or the folder exists.
    """
    artifacts = lineage.chain(store, recipe, version)
    if "shards" not in artifacts:
        raise InputError(f"{recipe}@{version} has no token shards", "run the stage encode first")
    with new_folder(out) as partial:
        exporter = _Exporter(artifacts["shards"], in_force(store, recipe), partial)
        exporter.write(kind)
        (partial / "tokenizer.json").write_bytes(artifacts["tokenizer"].read("tokenizer.json"))
        (partial / "export.json").write_text(json.dumps(exporter.description(kind), indent=1, sort_keys=True) + "\n")
    return Path(out).absolute()


@contextmanager
def new_folder(out: str) -> Iterator[Path]:
    """Yields a folder to fill, which gets the name `out` when it is complete; raises InputError if that exists."""
    target = Path(out).absolute()
    if target.exists():
        raise InputError(f"{target} exists already", "name a folder that does not exist")
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    os.replace(partial, target)


class _Exporter:
    def __init__(self, artifact: Artifact, takedowns: list[Artifact], folder: Path) -> None:
        self.artifact = artifact
        self.takedowns = takedowns
        self._withheld = withheld_rows(artifact, Tombstones.read(takedowns))
        self.shards = ShardSet.open(artifact)
        self.index = DocumentIndex(artifact)
        self.folder = folder
        self.documents: Counts = {}
        self._progress = Progress("export")
        self._done = 0

    def write(self, kind: str) -> None:
        FORMATS[kind](self)

    def groups(self) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        """Yields (source, split, names of the shards) where there is a shard."""
        for source in self.shards.sources:
            for split in SPLITS:
                if names := self.shards.names(source, split):
                    yield source, split, names

    def rows(self, name: str) -> Iterator[tuple[str, str, Any, int]]:
        """Yields (document id, URL, tokens, UTF-8 bytes) of the documents of a shard that are not taken down."""
        shard, urls = self.shards.shard(name), self.index.urls(name)
        withheld = set(self._withheld.get(name, ()))
        for row, (uid, url, length, size) in enumerate(
            zip(shard.uids, urls.to_pylist(), shard.lengths.tolist(), shard.n_bytes.tolist(), strict=True)
        ):
            if row not in withheld:
                yield uid.tobytes().hex(), url, shard.slice(row, 0, length), size
        self._done += 1
        self._progress.report(self._done, len(self.shards.all_names), name)

    def count(self, name: str) -> int:
        """Returns the documents that `rows` yields."""
        return self.shards.shard(name).rows - len(self._withheld.get(name, ()))

    def description(self, kind: str) -> dict[str, Any]:
        record, fmt = self.artifact.record, self.shards.format
        files = {
            name: {
                "bytes": (self.folder / name).stat().st_size,
                "sha256": sha256_of_file(self.folder / name),
                "documents": documents,
            }
            for name, documents in sorted(self.documents.items())
        }
        return {
            "format": kind,
            "artifact": record.artifact,
            "fingerprint": record.fingerprint,
            "content": record.content,
            "takedowns": [str(takedown.address) for takedown in self.takedowns],
            **fmt.__dict__,
            "files": files,
        }


def _megatron(exporter: _Exporter) -> None:
    """One pair of files per source and split, and beside it the document of each sequence."""
    dtype = megatron.bin_type(exporter.shards.format.vocab_size)
    for source, split, names in exporter.groups():
        about: dict[str, list[Any]] = {"id": [], "url": [], "n_tokens": []}
        stem = f"{source}-{split}"
        with open(exporter.folder / f"{stem}.bin", "wb") as file:
            for doc_id, url, tokens, _ in (row for name in names for row in exporter.rows(name)):
                file.write(tokens.astype(dtype).tobytes())
                for column, value in zip(about.values(), (doc_id, url, len(tokens)), strict=True):
                    column.append(value)
        with open(exporter.folder / f"{stem}.idx", "wb") as file:
            megatron.write_index(file, np.array(about["n_tokens"], dtype=np.int64), dtype)
        pq.write_table(pa.table(about), exporter.folder / f"{stem}.documents.parquet", compression="zstd")
        for suffix in ("bin", "idx", "documents.parquet"):
            exporter.documents[f"{stem}.{suffix}"] = len(about["id"])


def _webdataset(exporter: _Exporter) -> None:
    """One tar per token shard."""
    for source, _, names in exporter.groups():
        for name in names:
            samples = (
                (doc_id, tokens, {"url": url, "source": source, "n_bytes": size})
                for doc_id, url, tokens, size in exporter.rows(name)
            )
            with open(exporter.folder / f"{name}.tar", "wb") as file:
                write_tar(file, samples)
            exporter.documents[f"{name}.tar"] = exporter.count(name)


_CARD = """---
configs:
- config_name: default
  data_files:
{splits}---
# Tokens of {artifact}

One row per document: `input_ids` (the last is end-of-text, {eos_id}), `id`, `url`, `source` and `n_bytes` of its text.
The vocabulary of {vocab_size:,} entries is in `tokenizer.json`; `export.json` says what the folder was made from.
"""


def _huggingface(exporter: _Exporter) -> None:
    """One Parquet file per token shard and a card that names the splits."""
    (exporter.folder / "data").mkdir()
    fmt = exporter.shards.format
    splits = set()
    for source, split, names in exporter.groups():
        splits.add(split)
        for name in names:
            path = f"data/{split}-{name}.parquet"
            pq.write_table(_table(exporter, fmt, source, name), exporter.folder / path, compression="zstd")
            exporter.documents[path] = exporter.count(name)
    listed = "".join(f"  - split: {split}\n    path: data/{split}-*.parquet\n" for split in SPLITS if split in splits)
    card = _CARD.format(splits=listed, artifact=exporter.artifact.address, **fmt.__dict__)
    (exporter.folder / "README.md").write_text(card)


def _table(exporter: _Exporter, fmt: TokenFormat, source: str, name: str) -> pa.Table:
    ids, urls, tokens, sizes = zip(*exporter.rows(name), strict=True) if exporter.count(name) else ((),) * 4
    columns = {
        "id": pa.array(ids, pa.string()),
        "url": pa.array(urls, pa.string()),
        "source": pa.repeat(source, len(ids)),
        "n_bytes": pa.array(sizes, pa.int64()),
        "input_ids": pa.array(tokens, pa.list_(pa.from_numpy_dtype(fmt.dtype))),
    }
    return pa.table(columns)


FORMATS: dict[str, Callable[[_Exporter], None]] = {
    "megatron": _megatron,
    "webdataset": _webdataset,
    "huggingface": _huggingface,
}
