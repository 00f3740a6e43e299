"""Export of token shards for other trainers, and of models.

`export` writes shards for Megatron-LM, WebDataset, or as a Hugging Face dataset folder. It reads `shards`, `tokenizer`
and the takedowns in force, whose documents are excluded, and writes the tokens of whole documents and `tokenizer.json`.
Every format has the id and the URL of the document of every run of tokens.

`export_model` writes a Hugging Face model folder in the Llama layout, optionally with a GGUF file for llama.cpp, or
adapters in the layout of PEFT, with their base unless that is a folder or on the hub. It reads the last or the best
checkpoint of `checkpoint`, or a fine-tuned model, `tokenizer`, and the records of all artifacts that these were made
from. It writes weights, configurations, tokenizer and the model card (`README.md`).

Both write a new local folder with `export.json`: the artifact that it was made from, and size and sha256 of every file.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.artifact import EXTERNAL, Artifact
from tasks.core.digest import sha256_of_file
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.core.terminal import Progress
from tasks.formats.documents.tombstones import Tombstones, in_force
from tasks.formats.tokens.exposure import IMPORT, origin_of, source_files, tokenizer_of
from tasks.formats.tokens.index import DocumentIndex
from tasks.formats.tokens.marks import withheld_rows
from tasks.formats.tokens.readings import TUNED, is_tuned
from tasks.formats.tokens.shard import SPLITS, ShardSet, TokenFormat
from tasks.formats.tokens.token_files import bin_type, write_megatron_index, write_tar
from tasks.run import lineage
from tasks.run.catalogue import MAKERS
from tasks.run.result import Json
from tasks.run.trace.cards import card, tuned_card
from tasks.trainer.checkpoints.checkpoint import MODEL, name_of
from tasks.trainer.interchange.address import HUB, hub_model
from tasks.trainer.interchange.gguf_file import write_gguf
from tasks.trainer.interchange.huggingface import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    CARD,
    CONFIG,
    GENERATION_CONFIG,
    adapter_config,
    adapter_name,
    names_in,
    small_files,
)
from tasks.trainer.interchange.weights import TORCH_NAMES, copy_renamed, export_weights
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.model.model_file import Which, last_weights, step_of, weights_path

_CARD = """---
configs:
- config_name: default
  data_files:
{splits}---
# Tokens of {artifact}

One row per document: `input_ids` (the last is end-of-text, {eos_id}), `id`, `url`, `source` and `n_bytes` of its text.
The vocabulary of {vocab_size:,} entries is in `tokenizer.json`; `export.json` says what the folder was made from.
"""

Artifacts = Mapping[str, Artifact]
"""Artifacts of one lineage by kind (`tasks.run.lineage.chain`)."""

BASE = "base"
"""Folder of the base of exported adapters."""
ADAPTER = "adapter"
GGUF = "gguf"
DTYPES = {"fp32": "F32", "bf16": "BF16"}
"""Dtypes that the weights of a model folder can be written in, by their names in a safetensors file."""
MODEL_FORMATS = ("model", GGUF, ADAPTER)
"""`model`: the model folder; `gguf`: the folder with `model.gguf`; `adapter`: adapters of a fine-tuned model."""


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
    with new_folder(out) as folder:
        exporter = _ShardExporter(artifacts["shards"], in_force(store, recipe), folder)
        FORMATS[kind](exporter)
        (folder / "tokenizer.json").write_bytes(artifacts["tokenizer"].read("tokenizer.json"))
        _write_manifest(folder, exporter.manifest(kind))
    return Path(out).absolute()


@contextmanager
def new_folder(out: str) -> Iterator[Path]:
    """Yields a folder to fill, which is renamed to `out` on a clean exit; raises InputError if `out` exists."""
    target = Path(out).absolute()
    if target.exists():
        raise InputError(f"{target} exists already", "name a folder that does not exist")
    unfinished = target.with_name(f".{target.name}.partial")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    yield unfinished
    os.replace(unfinished, target)


def _write_manifest(folder: Path, manifest: Json) -> None:
    (folder / "export.json").write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")


class _ShardExporter:
    """Reads the documents of token shards, without those that are taken down, and describes the exported files.

    A format writes files into `folder` and puts the number of documents of each into `documents`.
    """

    def __init__(self, artifact: Artifact, takedowns: list[Artifact], folder: Path) -> None:
        self.artifact = artifact
        self.takedowns = takedowns
        self._withheld = withheld_rows(artifact, Tombstones.read(takedowns))
        self.shards = ShardSet.open(artifact)
        self.index = DocumentIndex(artifact)
        self.folder = folder
        self.documents: dict[str, int] = {}
        self._progress = Progress("export")
        self._done = 0

    def groups(self) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        """Yields (source, split, names of the shards) for each source and split with shards."""
        for source in self.shards.sources:
            for split in SPLITS:
                if names := self.shards.names(source, split):
                    yield source, split, names

    def rows(self, name: str) -> Iterator[tuple[str, str, Any, int]]:
        """Yields (document id, URL, tokens, bytes of UTF-8 text) for the documents of a shard."""
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
        """Returns the number of documents that `rows` yields."""
        return self.shards.shard(name).rows - len(self._withheld.get(name, ()))

    def manifest(self, kind: str) -> Json:
        """Returns the content of `export.json`."""
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


def _megatron(exporter: _ShardExporter) -> None:
    """Writes a pair of files per source and split, and with it a table with the document of each sequence."""
    dtype = bin_type(exporter.shards.format.vocab_size)
    for source, split, names in exporter.groups():
        columns: dict[str, list[Any]] = {"id": [], "url": [], "n_tokens": []}
        stem = f"{source}-{split}"
        with open(exporter.folder / f"{stem}.bin", "wb") as file:
            for doc_id, url, tokens, _ in (row for name in names for row in exporter.rows(name)):
                file.write(tokens.astype(dtype).tobytes())
                for column, value in zip(columns.values(), (doc_id, url, len(tokens)), strict=True):
                    column.append(value)
        with open(exporter.folder / f"{stem}.idx", "wb") as file:
            write_megatron_index(file, np.array(columns["n_tokens"], dtype=np.int64), dtype)
        pq.write_table(pa.table(columns), exporter.folder / f"{stem}.documents.parquet", compression="zstd")
        for suffix in ("bin", "idx", "documents.parquet"):
            exporter.documents[f"{stem}.{suffix}"] = len(columns["id"])


def _webdataset(exporter: _ShardExporter) -> None:
    """Writes one tar file per token shard."""
    for source, _, names in exporter.groups():
        for name in names:
            samples = (
                (doc_id, tokens, {"url": url, "source": source, "n_bytes": size})
                for doc_id, url, tokens, size in exporter.rows(name)
            )
            with open(exporter.folder / f"{name}.tar", "wb") as file:
                write_tar(file, samples)
            exporter.documents[f"{name}.tar"] = exporter.count(name)


def _huggingface(exporter: _ShardExporter) -> None:
    """Writes one Parquet file per token shard, and a dataset card that lists the splits."""
    (exporter.folder / "data").mkdir()
    fmt = exporter.shards.format
    splits = set()
    for source, split, names in exporter.groups():
        splits.add(split)
        for name in names:
            path = f"data/{split}-{name}.parquet"
            pq.write_table(_table(exporter, fmt, source, name), exporter.folder / path, compression="zstd")
            exporter.documents[path] = exporter.count(name)
    entries = "".join(f"  - split: {split}\n    path: data/{split}-*.parquet\n" for split in SPLITS if split in splits)
    card = _CARD.format(splits=entries, artifact=exporter.artifact.address, **fmt.__dict__)
    (exporter.folder / "README.md").write_text(card)


def _table(exporter: _ShardExporter, fmt: TokenFormat, source: str, name: str) -> pa.Table:
    ids, urls, tokens, sizes = zip(*exporter.rows(name), strict=True) if exporter.count(name) else ((),) * 4
    columns = {
        "id": pa.array(ids, pa.string()),
        "url": pa.array(urls, pa.string()),
        "source": pa.repeat(source, len(ids)),
        "n_bytes": pa.array(sizes, pa.int64()),
        "input_ids": pa.array(tokens, pa.list_(pa.from_numpy_dtype(fmt.dtype))),
    }
    return pa.table(columns)


FORMATS: dict[str, Callable[[_ShardExporter], None]] = {
    "megatron": _megatron,
    "webdataset": _webdataset,
    "huggingface": _huggingface,
}


@dataclass(frozen=True)
class ModelExport:
    """A model to write as a folder.

    Attributes:
        artifact: the model.
        files: content of all files except the weights, by name.
        open_weights: opens Sluice's safetensors file.
        rename: maps the name of a weight to that in the folder.
        dtypes: dtype of the tensors that are not exported in fp32.
        dtype: of all tensors, to which their values are rounded; "": `dtypes`.
        base: of adapters, a model that nothing outside the store has; it is written to the folder BASE.
    """

    artifact: Artifact
    files: dict[str, bytes]
    open_weights: Callable[[], BinaryIO]
    rename: Callable[[str], str]
    dtypes: Mapping[str, str] = field(default_factory=dict)
    dtype: str = ""
    base: "ModelExport | None" = None

    def in_dtype(self, dtype: str) -> "ModelExport":
        """Returns the model with all its weights in one of DTYPES, which `config.json` states."""
        config = json.loads(self.files[CONFIG]) | {"torch_dtype": TORCH_NAMES[DTYPES[dtype]]}
        stated = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
        return replace(self, files={**self.files, CONFIG: stated.encode()}, dtype=DTYPES[dtype])

    def write(self, folder: Path) -> None:
        """Writes files and weights into a folder."""
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        with self.open_weights() as source:
            if self.rename is adapter_name:
                with (folder / ADAPTER_WEIGHTS).open("wb") as target:
                    copy_renamed(source, target, adapter_name)
            else:
                export_weights(source, folder, self.rename, self.dtypes, dtype=self.dtype)
        if self.base:
            (folder / BASE).mkdir()
            self.base.write(folder / BASE)


def without_finetuning(artifacts: Artifacts) -> dict[str, Artifact]:
    """Returns the artifacts of a version without those of fine-tuning."""
    return {kind: artifact for kind, artifact in artifacts.items() if MAKERS[kind].dag != "finetune"}


def tuned_model(artifacts: Artifacts, takedowns: Sequence[Artifact]) -> ModelExport:
    """Returns a whole fine-tuned model, with its adapters merged.

    Args:
        artifacts: artifacts of a version.
        takedowns: the takedowns in force.

    Raises:
        InputError: the model has adapters that were not merged.
    """
    model = artifacts[TUNED]
    described, initial = last_weights(model, "export")
    files = _tuned_files(model)
    files[CARD] = tuned_card(artifacts, takedowns).encode()
    open_weights = partial(Path(initial.file).open, "rb")
    rename = names_in(ModelConfig.model_validate(described["model"]))
    return ModelExport(model, files, cast(Callable[[], BinaryIO], open_weights), rename)


def adapters(artifacts: Artifacts, takedowns: Sequence[Artifact], out: Path) -> ModelExport:
    """Returns only the adapters of a fine-tuned model, for a folder `out`, with the base unless it is elsewhere.

    Raises:
        InputError: it has no adapters, or its base is gone.
    """
    model = artifacts[TUNED]
    run = json.loads(model.read("run.json"))
    if run["lora"] is None:
        raise InputError(f"{model.address} has no adapters: all weights were trained", "export it as a model")
    if not ModelConfig.model_validate(json.loads(model.read("model.json"))["model"]).gated:
        remedy = "merge them (finetune.lora.merge = true), and export it as a model"
        raise InputError(
            f"{model.address}: adapters of a model with [train.model] gated = false are not written", remedy
        )
    model_files = _tuned_files(model)
    files = {name: content for name, content in model_files.items() if name not in (CONFIG, GENERATION_CONFIG)}
    base = origin_of(model)
    assert base is not None, "a fine-tuning has a base"
    name, revision = _outside(base)
    whole = None if name else _whole_model(base, takedowns)
    files[ADAPTER_CONFIG] = adapter_config(run["lora"], name or str(out.absolute() / BASE), revision)
    files[CARD] = tuned_card(artifacts, takedowns).encode()
    path = f"checkpoints/{name_of(run['steps'])}/{MODEL}"
    return ModelExport(model, files, partial(model.open, path), adapter_name, base=whole)


def _outside(base: Artifact) -> tuple[str, str]:
    """Returns name and commit of a base on the hub, or its unchanged folder and ""; ("", "") if it is neither."""
    refs = {ref.role.partition(":")[2]: ref for ref in base.record.inputs if ref.role.startswith("file:")}
    address = refs[CONFIG].address.removeprefix(EXTERNAL).removesuffix(f"/{CONFIG}") if CONFIG in refs else ""
    if address.startswith(f"{HUB}://"):
        return hub_model(address)
    folder = Path(address)
    is_whole = any(name.endswith(".safetensors") for name in refs)  # and no checkpoint that was converted
    is_folder = is_whole and address.startswith("/") and all((folder / name).is_file() for name in refs)
    unchanged = is_folder and all(sha256_of_file(folder / name) == ref.content for name, ref in refs.items())
    return (address, "") if unchanged else ("", "")


def _whole_model(model: Artifact, takedowns: Sequence[Artifact]) -> ModelExport:
    artifacts = lineage.chain_of(model)
    return tuned_model(artifacts, takedowns) if is_tuned(model) else _trained_model(artifacts, takedowns, "last")


def _tuned_files(model: Artifact) -> dict[str, bytes]:
    """Returns the files of a fine-tuned model except weights and card; raises InputError if its tokenizer is gone."""
    model_json, run = (json.loads(model.read(name)) for name in ("model.json", "run.json"))
    tokenizer = tokenizer_of(model)
    if tokenizer is None:
        raise InputError(f"the tokenizer of {model.address} is gone", "restore it, or make it again with the examples")
    return small_files(model_json, tokenizer.read("tokenizer.json").decode(), run["template"], source_files(model))


def export_model(
    store: Store,
    recipe: str,
    version: str,
    kind: str,
    out: str,
    *,
    tuned: bool = False,
    which: Which = "last",
    dtype: str = "",
) -> Path:
    """Writes the model of a version; returns the new folder.

    Args:
        store: store of the artifacts.
        recipe: name of the recipe.
        version: version of the checkpoint, or of the fine-tuned model.
        kind: one of MODEL_FORMATS.
        out: path of the folder to make.
        tuned: whether to export the fine-tuned model of the version instead of the trained one; implied by `adapter`.
        which: the checkpoint of the trained one.
        dtype: one of DTYPES, of a model folder; "": fp32, or those in which an imported model came.

    Raises:
        InputError: there is no such model, the folder exists, or the format cannot represent the model.
    """
    if dtype and kind != "model":
        raise InputError(f"--dtype = {dtype} does not apply to {kind}, which is in fp32", "leave it out")
    artifacts, takedowns = lineage.chain(store, recipe, version), in_force(store, recipe)
    tuned = tuned or kind == ADAPTER
    of_training = (("checkpoint", "train"), ("tokenizer", "tokenizer"))
    for required, stage in ((TUNED, "finetune"),) if tuned else of_training:
        if required not in artifacts:
            hint = "; or export the fine-tuned model with --tuned" if TUNED in artifacts else ""
            raise InputError(f"{recipe}@{version} has no {required}", f"run the stage {stage} first{hint}")
    if kind == ADAPTER:
        model = adapters(artifacts, takedowns, Path(out))
    else:
        artifacts = artifacts if tuned else without_finetuning(artifacts)
        model = tuned_model(artifacts, takedowns) if tuned else _trained_model(artifacts, takedowns, which)
    model = model.in_dtype(dtype) if dtype else model
    with new_folder(out) as folder:
        model.write(folder)
        if kind == GGUF:
            write_gguf(folder, folder / "model.gguf", str(model.artifact.address))
        files: Json = {
            path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256_of_file(path)}
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        record = model.artifact.record
        manifest = {"format": kind, "artifact": str(model.artifact.address), "fingerprint": record.fingerprint}
        _write_manifest(folder, {**manifest, "files": files})
    return Path(out).absolute()


def _trained_model(artifacts: Artifacts, takedowns: Sequence[Artifact], which: Which) -> ModelExport:
    checkpoint = artifacts["checkpoint"]
    model_json, dtypes = json.loads(checkpoint.read("model.json")), _dtypes_before_import(checkpoint)
    model_json["dtype"] = TORCH_NAMES[dtypes.get("embedding.weight", "F32")]
    tokenizer = artifacts["tokenizer"].read("tokenizer.json").decode()
    files = small_files(model_json, tokenizer, source=source_files(checkpoint))
    files[CARD] = card(artifacts, takedowns).encode()
    open_weights = partial(checkpoint.open, weights_file(checkpoint, which))
    rename = names_in(ModelConfig.model_validate(model_json["model"]))
    return ModelExport(checkpoint, files, open_weights, rename, dtypes)


def _dtypes_before_import(checkpoint: Artifact) -> dict[str, str]:
    """Returns the dtypes, by name, of the tensors of an imported model that were not in fp32; {} for other models."""
    imported = checkpoint.files(IMPORT)
    dtypes: dict[str, str] = json.loads(checkpoint.read(IMPORT)).get("dtypes", {}) if imported else {}
    return dtypes


def weights_file(checkpoint: Artifact, which: Which = "last") -> str:
    """Returns the file with the weights of the last or the best checkpoint; raises InputError if there is none."""
    step = step_of(checkpoint, which, "--checkpoint")
    path = weights_path(checkpoint, step)
    if not checkpoint.files(path):
        raise InputError(f"{checkpoint.address} has no checkpoint of step {step}", "run the stage train again")
    return path
