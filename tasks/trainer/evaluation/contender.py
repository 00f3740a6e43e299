"""A model with its tokenizer, ready to be compared with another one.

Reads the folder of a registered model (`model.json`, `model.safetensors`, `tokenizer.json`), or the last weights of a
training or fine-tuning with the tokenizer that its tokens were made with.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tasks.core.artifact import Artifact
from tasks.core.digest import sha256_of
from tasks.core.errors import InputError
from tasks.trainer.checkpoints.checkpoint import MODEL
from tasks.trainer.inference import Scorer
from tasks.trainer.model import model_file
from tasks.trainer.model.initial import last_weights

TOKENIZER = "tokenizer.json"
_PACKED = "model/"
"""Folder of the files in the artifact of a registered model."""


@dataclass(frozen=True)
class Contender:
    """A model on this machine that is not loaded yet.

    Attributes:
        label: what it is in this comparison, such as "champion"; names its files.
        name: which model it is, for people: an artifact id or a folder.
        description: its `model.json`.
        weights: its `model.safetensors`, in our names or those of the Llama layout.
        tokenizer: content of its `tokenizer.json`.
    """

    label: str
    name: str
    description: Path
    weights: Path
    tokenizer: str

    @classmethod
    def of_folder(cls, label: str, folder: Path) -> "Contender":
        """Returns the model of a folder with the three files; raises InputError where one is missing."""
        description, weights, tokenizer = (folder / name for name in (model_file.FILE, MODEL, TOKENIZER))
        if missing := [path.name for path in (description, weights, tokenizer) if not path.exists()]:
            raise InputError(f"{folder} holds no {', '.join(missing)}", "name the folder model/ of a registered model")
        return cls(label, str(folder), description, weights, tokenizer.read_text())

    @classmethod
    def of_artifact(cls, label: str, artifact: Artifact, tokenizer: Artifact | None = None) -> "Contender":
        """Returns the model of an artifact.

        Args:
            label: see the attributes.
            artifact: a registered model (`model`), or the `checkpoint` or `finetuned` of a training.
            tokenizer: the tokenizer that its tokens were made with; a registered model has its own.

        Raises:
            InputError: the artifact has no whole model, or was trained with another tokenizer.
        """
        if f"{_PACKED}{MODEL}" in artifact.files(_PACKED):
            local = {name: artifact.local(f"{_PACKED}{name}") for name in (model_file.FILE, MODEL)}
            own = artifact.read(f"{_PACKED}{TOKENIZER}").decode()
            return cls(label, str(artifact.address), Path(local[model_file.FILE]), Path(local[MODEL]), own)
        described, weights = last_weights(artifact, label)
        if tokenizer is None:
            raise InputError(f"{artifact.address} has no tokenizer of its own", "give the one it was trained with")
        text = matching_tokenizer(tokenizer, described)
        description = Path(artifact.local(model_file.FILE))
        return cls(label, str(artifact.address), description, Path(weights.file), text)

    @property
    def parameters(self) -> int:
        """Number of its weights."""
        return int(json.loads(self.description.read_text())["parameters"]["total"])

    def load(self, batch_tokens: int) -> Scorer:
        """Loads it; `batch_tokens` as in `Scorer`. Raises InputError where the files do not make a model."""
        model, described = model_file.load_model(self.description, self.weights)
        tokenizer = Tokenizer.from_str(self.tokenizer)
        return Scorer(model, tokenizer, described["eos_id"], described["seq_len"], batch_tokens)


def matching_tokenizer(tokenizer: Artifact, described: dict[str, Any]) -> str:
    """Returns the content of a tokenizer's file; raises InputError unless the model was trained with it.

    Args:
        tokenizer: artifact with the file.
        described: content of the model's `model.json`.
    """
    data = tokenizer.read(TOKENIZER)
    if sha256_of(data) != described["tokenizer_sha256"]:
        raise InputError(
            f"{tokenizer.address} is not the tokenizer the checkpoint was trained with",
            "evaluate with the tokenizer that the shards were encoded with",
        )
    return data.decode()
