"""`model.json`: the architecture of a checkpoint, and loading a model from it.

Reads `model.json` and `model.safetensors`.
"""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from tasks.core.errors import InputError
from tasks.formats.tokens.shard import TokenFormat
from tasks.trainer.checkpoints.checkpoint import MODEL
from tasks.trainer.config import ModelConfig
from tasks.trainer.interchange.huggingface import llama_name
from tasks.trainer.model.shape import Shape
from tasks.trainer.model.transformer import Transformer

FILE = "model.json"


def describe(config: ModelConfig, tokens: TokenFormat, seq_len: int) -> dict[str, Any]:
    """Returns the content of `model.json`.

    Args:
        config: shape of the model.
        tokens: vocabulary and end-of-text token it was trained with.
        seq_len: tokens of a training sequence: the longest context the model has seen.
    """
    return {
        "model": config.model_dump(mode="json"),
        "vocab_size": tokens.vocab_size,
        "eos_id": tokens.eos_id,
        "tokenizer_sha256": tokens.tokenizer_sha256,
        "seq_len": seq_len,
        "parameters": dict(Shape.of(config, tokens.vocab_size).weights),
    }


def load_model(description: Path, weights: Path) -> tuple[Transformer, dict[str, Any]]:
    """Returns the model in fp32, ready to predict, and the content of its `model.json`.

    Args:
        description: path of a `model.json`.
        weights: path of a `model.safetensors`, of a checkpoint or with the names of the Llama layout.

    Raises:
        InputError: a file is missing, broken, or the two do not belong together.
    """
    try:
        content = json.loads(description.read_text())
        model = Transformer(ModelConfig.model_validate(content["model"]), content["vocab_size"])
        model.load_state_dict(_ours(load_file(weights), model))
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        cause = f"{weights} and {description} do not make a model ({' '.join(str(error).split())})"
        raise InputError(cause, f"{MODEL} and {FILE} must come from the same checkpoint artifact") from None
    return model.eval(), content


def _ours(weights: dict[str, Tensor], model: Transformer) -> dict[str, Tensor]:
    """Returns the weights under our names."""
    names = {llama_name(name): name for name in model.state_dict()}
    return {names.get(name, name): weight for name, weight in weights.items()}
