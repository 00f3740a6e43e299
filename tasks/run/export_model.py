"""Export of a model: a folder of Hugging Face in the Llama layout, one with a file of llama.cpp beside it, or adapters.

Reads the last milestone of `checkpoint`, or a fine-tuned model whole or as adapters in the layout of PEFT, `tokenizer`
and the records that these were made from. Writes a new local folder with weights, configurations, tokenizer, the
model's card (`README.md`) and `export.json`: the artifact that it was made from, and size and sha256 of every file.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from tasks.core.artifact import Artifact
from tasks.core.digest import sha256_of_file
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.formats.documents.tombstones import in_force
from tasks.formats.example_readings import KIND
from tasks.formats.tokens.origin import tokenizer_of
from tasks.run import lineage
from tasks.run.catalogue import MAKERS
from tasks.run.export import new_folder
from tasks.run.model_lineage import card, tuned_card
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

ADAPTER = "adapter"
"""The format of adapters alone."""
Artifacts = Mapping[str, Artifact]


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
    model = artifacts[KIND]
    described, run = (json.loads(model.read(name)) for name in ("model.json", "run.json"))
    tokenizer = tokenizer_of(model)
    if tokenizer is None:
        raise InputError(f"the tokenizer of {model.address} is gone", "restore it, or make it again with the examples")
    return model, described, tokenizer.read("tokenizer.json").decode(), chat_template(run["template"])


GGUF = "gguf"
MODEL_FORMATS = ("model", GGUF, ADAPTER)
"""`model`: the folder alone; `gguf`: with `model.gguf` in it, too; `adapter`: of a fine-tuning, in PEFT's layout."""


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
    for needed, stage in ((KIND, "finetune"),) if tuned else of_training:
        if needed not in artifacts:
            hint = "; or export the fine-tuned model with --tuned" if KIND in artifacts else ""
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
