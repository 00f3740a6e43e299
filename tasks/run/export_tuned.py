"""What is exported of a fine-tuned model: whole, or its adapters in the layout of PEFT, with the chat template.

Reads the artifact `finetuned` and the tokenizer that its examples were made with.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError
from tasks.formats.example_readings import KIND
from tasks.formats.tokens.origin import tokenizer_of
from tasks.run.catalogue import MAKERS
from tasks.run.tuned_card import tuned_card
from tasks.trainer.chat_template import chat_template
from tasks.trainer.checkpoint import MODEL, name_of
from tasks.trainer.huggingface import llama_name
from tasks.trainer.huggingface_folder import CARD, WEIGHTS, small_files
from tasks.trainer.initial import last_weights
from tasks.trainer.peft_folder import CONFIG, adapter_config, adapter_name
from tasks.trainer.peft_folder import WEIGHTS as ADAPTER_WEIGHTS

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
    files |= {CONFIG: adapter_config(run["lora"], run["base"]), CARD: tuned_card(artifacts, takedowns).encode()}
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
