"""Export for others: token shards for another trainer, or a model.

`export` writes shards for Megatron-LM, WebDataset, or a dataset folder of Hugging Face. It reads `shards`, `tokenizer`
and the takedowns in force, whose documents are left out, and writes the tokens of whole documents and `tokenizer.json`.
Every format names the document of every run of tokens, by id and URL.

`export_model` writes a folder of Hugging Face in the Llama layout, one with a file of llama.cpp beside it, or adapters.
It reads the last milestone of `checkpoint`, or a fine-tuned model whole or as adapters in the layout of PEFT,
`tokenizer` and the records that these were made from, and writes weights, configurations, tokenizer and the model's
card (`README.md`).

Both write a new local folder with `export.json`: the artifacts that it was made from, and size and sha256 of every
file.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.artifact import Artifact
from tasks.core.digest import sha256_of_file
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.core.terminal import Progress
from tasks.formats.documents.tombstones import Tombstones, in_force
from tasks.formats.tokens.exposure import tokenizer_of
from tasks.formats.tokens.index import DocumentIndex
from tasks.formats.tokens.marks import withheld_rows
from tasks.formats.tokens.readings import TUNED
from tasks.formats.tokens.shard import SPLITS, ShardSet, TokenFormat
from tasks.formats.tokens.token_files import bin_type, write_megatron_index, write_tar
from tasks.run import lineage
from tasks.run.catalogue import MAKERS
from tasks.run.trace.cards import card, tuned_card
from tasks.trainer.checkpoints.checkpoint import MODEL, name_of
from tasks.trainer.interchange.gguf_file import write_gguf
from tasks.trainer.interchange.huggingface import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    CARD,
    WEIGHTS,
    adapter_config,
    adapter_name,
    chat_template,
    copy_renamed,
    llama_name,
    small_files,
)
from tasks.trainer.model.model_file import last_weights

Counts = dict[str, int]
"""File -> documents in it."""

_CARD = """---
configs:
- config_name: default
  data_files:
{splits}---
# Tokens of {artifact}

One row per document: `input_ids` (the last is end-of-text, {eos_id}), `id`, `url`, `source` and `n_bytes` of its text.
The vocabulary of {vocab_size:,} entries is in `tokenizer.json`; `export.json` says what the folder was made from.
"""

ADAPTER = "adapter"
"""The format of adapters alone."""
Artifacts = Mapping[str, Artifact]

GGUF = "gguf"
MODEL_FORMATS = ("model", GGUF, ADAPTER)
"""`model`: the folder alone; `gguf`: with `model.gguf` in it, too; `adapter`: of a fine-tuning, in PEFT's layout."""


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
    dtype = bin_type(exporter.shards.format.vocab_size)
    for source, split, names in exporter.groups():
        about: dict[str, list[Any]] = {"id": [], "url": [], "n_tokens": []}
        stem = f"{source}-{split}"
        with open(exporter.folder / f"{stem}.bin", "wb") as file:
            for doc_id, url, tokens, _ in (row for name in names for row in exporter.rows(name)):
                file.write(tokens.astype(dtype).tobytes())
                for column, value in zip(about.values(), (doc_id, url, len(tokens)), strict=True):
                    column.append(value)
        with open(exporter.folder / f"{stem}.idx", "wb") as file:
            write_megatron_index(file, np.array(about["n_tokens"], dtype=np.int64), dtype)
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


@dataclass(frozen=True)
class Exported:
    """A model to be written as a folder.

    Attributes:
        artifact: the model.
        files: all files but the weights, by name.
        open_weights: opens our safetensors file.
        weights: name of the file of weights.
        rename: returns the name of one of our tensors there.
    """

    artifact: Artifact
    files: dict[str, bytes]
    open_weights: Callable[[], BinaryIO]
    weights: str
    rename: Callable[[str], str]


def untuned(artifacts: Artifacts) -> dict[str, Artifact]:
    """Returns the artifacts of a version without those of a fine-tuning."""
    return {kind: one for kind, one in artifacts.items() if MAKERS[kind].dag != "finetune"}


def tuned_model(artifacts: Artifacts, takedowns: Sequence[Artifact]) -> Exported:
    """Returns the whole model of a fine-tuning, its adapters merged.

    Args:
        artifacts: of a version, by kind (`tasks.run.lineage.chain`).
        takedowns: the takedowns in force.

    Raises:
        InputError: it has adapters that were not merged.
    """
    model, described, tokenizer, template = _opened(artifacts)
    _, initial = last_weights(model, "export")
    files = small_files(described, tokenizer, template)
    files[CARD] = tuned_card(artifacts, takedowns).encode()
    opened = partial(Path(initial.file).open, "rb")
    return Exported(model, files, cast(Callable[[], BinaryIO], opened), WEIGHTS, llama_name)


def adapters(artifacts: Artifacts, takedowns: Sequence[Artifact]) -> Exported:
    """Returns the adapters of a fine-tuning alone; raises InputError where it has none."""
    model, described, tokenizer, template = _opened(artifacts)
    run = json.loads(model.read("run.json"))
    if run["lora"] is None:
        raise InputError(f"{model.address} has no adapters: all weights were trained", "export it as a model")
    of_base = small_files(described, tokenizer, template)
    files = {name: of_base[name] for name in ("tokenizer.json", "tokenizer_config.json")}
    files |= {ADAPTER_CONFIG: adapter_config(run["lora"], run["base"]), CARD: tuned_card(artifacts, takedowns).encode()}
    path = f"checkpoints/{name_of(run['steps'])}/{MODEL}"
    return Exported(model, files, partial(model.open, path), ADAPTER_WEIGHTS, adapter_name)


def _opened(artifacts: Artifacts) -> tuple[Artifact, dict[str, Any], str, str]:
    """Returns the model, the content of its `model.json`, its `tokenizer.json` and its chat template."""
    model = artifacts[TUNED]
    described, run = (json.loads(model.read(name)) for name in ("model.json", "run.json"))
    tokenizer = tokenizer_of(model)
    if tokenizer is None:
        raise InputError(f"the tokenizer of {model.address} is gone", "restore it, or make it again with the examples")
    return model, described, tokenizer.read("tokenizer.json").decode(), chat_template(run["template"])


def export_model(store: Store, recipe: str, version: str, kind: str, out: str, *, tuned: bool = False) -> Path:
    """Writes the model of a version; returns the new folder.

    Args:
        store: store of the artifacts.
        recipe: name of the recipe.
        version: version of the checkpoint, or of the fine-tuned model.
        kind: one of MODEL_FORMATS.
        out: path of the folder to make.
        tuned: the fine-tuned model of the version instead of the trained one; always so with adapters.

    Raises:
        InputError: there is no such model, the folder exists, or the format cannot hold the model.
    """
    artifacts, takedowns = lineage.chain(store, recipe, version), in_force(store, recipe)
    tuned = tuned or kind == ADAPTER
    of_training = (("checkpoint", "train"), ("tokenizer", "tokenizer"))
    for needed, stage in ((TUNED, "finetune"),) if tuned else of_training:
        if needed not in artifacts:
            hint = "; or export the fine-tuned model with --tuned" if TUNED in artifacts else ""
            raise InputError(f"{recipe}@{version} has no {needed}", f"run the stage {stage} first{hint}")
    if kind == ADAPTER:
        found = adapters(artifacts, takedowns)
    else:
        found = tuned_model(artifacts, takedowns) if tuned else _trained_model(untuned(artifacts), takedowns)
    with new_folder(out) as folder:
        for name, content in found.files.items():
            (folder / name).write_bytes(content)
        with found.open_weights() as source, (folder / found.weights).open("wb") as target:
            copy_renamed(source, target, found.rename)
        if kind == GGUF:
            write_gguf(folder, folder / "model.gguf", str(found.artifact.address))
        about = {
            "format": kind,
            "artifact": str(found.artifact.address),
            "fingerprint": found.artifact.record.fingerprint,
            "files": {path.name: _described(path) for path in sorted(folder.iterdir())},
        }
        (folder / "export.json").write_text(json.dumps(about, indent=1, sort_keys=True) + "\n")
    return Path(out).absolute()


def _trained_model(artifacts: dict[str, Artifact], takedowns: list[Artifact]) -> Exported:
    checkpoint = artifacts["checkpoint"]
    described = json.loads(checkpoint.read("model.json"))
    files = small_files(described, artifacts["tokenizer"].read("tokenizer.json").decode())
    files[CARD] = card(artifacts, takedowns).encode()
    return Exported(checkpoint, files, partial(checkpoint.open, weights_file(checkpoint)), WEIGHTS, llama_name)


def weights_file(checkpoint: Artifact) -> str:
    """Returns the file with the weights of the last milestone; raises InputError where there is none."""
    step = max(json.loads(checkpoint.read("run.json"))["checkpoint_steps"])
    for path in _weights(checkpoint):
        with suppress(ValueError):
            if int(path.split("/")[1].removeprefix("step-")) == step:
                return path
    raise InputError(f"{checkpoint.address} holds no checkpoint of step {step}", "run the stage train again")


def _weights(checkpoint: Artifact) -> Iterator[str]:
    return (path for path in checkpoint.files("checkpoints/") if path.endswith("/model.safetensors"))


def _described(path: Path) -> dict[str, object]:
    return {"bytes": path.stat().st_size, "sha256": sha256_of_file(path)}
