"""Export of the trained model: a folder of Hugging Face in the Llama layout, or with a file of llama.cpp beside it.

Reads the last milestone of `checkpoint`, `tokenizer`, and the records that these were made from; writes a new local
folder with weights, configurations, tokenizer, the model's card (`README.md`) and `export.json`: the artifact that it
was made from, and size and sha256 of every file.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tasks.core.artifact import Artifact
from tasks.core.digest import sha256_of_file
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.formats.tombstones import in_force
from tasks.run import lineage
from tasks.run.export import new_folder
from tasks.run.model_lineage import card
from tasks.trainer.gguf_file import write_gguf
from tasks.trainer.huggingface_folder import CARD, copy_renamed, small_files

FORMATS = ("model", "gguf")
"""`model`: the folder alone; `gguf`: with `model.gguf` in it, too."""


def export_model(store: Store, recipe: str, version: str, kind: str, out: str) -> Path:
    """Writes the model of a version; returns the new folder.

    Args:
        store: store of the artifacts.
        recipe: name of the recipe.
        version: version of the checkpoint.
        kind: one of FORMATS.
        out: path of the folder to make.

    Raises:
        InputError: there is no checkpoint, the folder exists, or the format cannot hold the model.
    """
    artifacts = lineage.chain(store, recipe, version)
    if "checkpoint" not in artifacts or "tokenizer" not in artifacts:
        raise InputError(f"{recipe}@{version} has no checkpoint", "run the stage train first")
    checkpoint = artifacts["checkpoint"]
    described = json.loads(checkpoint.read("model.json"))
    files = small_files(described, artifacts["tokenizer"].read("tokenizer.json").decode())
    files[CARD] = card(artifacts, in_force(store, recipe)).encode()
    with new_folder(out) as folder:
        for name, content in files.items():
            (folder / name).write_bytes(content)
        with checkpoint.open(last_weights(checkpoint)) as source, (folder / "model.safetensors").open("wb") as target:
            copy_renamed(source, target)
        if kind == "gguf":
            write_gguf(folder, folder / "model.gguf", str(checkpoint.address))
        about = {
            "format": kind,
            "artifact": str(checkpoint.address),
            "fingerprint": checkpoint.record.fingerprint,
            "files": {path.name: _described(path) for path in sorted(folder.iterdir())},
        }
        (folder / "export.json").write_text(json.dumps(about, indent=1, sort_keys=True) + "\n")
    return Path(out).absolute()


def last_weights(checkpoint: Artifact) -> str:
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
