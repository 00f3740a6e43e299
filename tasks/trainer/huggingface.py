"""`config.json` of Hugging Face: shapes of published models.

Reads the configurations of the families below; imports no torch.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.core.errors import InputError
from tasks.trainer.shape import Shape

FAMILIES = ("llama", "mistral", "olmo", "gpt2")
"""Values of `model_type` that are read."""


def read_shape(path: Path) -> Shape:
    """Returns the shape in a file; raises InputError."""
    try:
        config = json.loads(path.read_text())
        return shape_of(config)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}", "name the config.json of a model") from None
    except KeyError as error:
        raise InputError(f"{path} has no {error}", "name the config.json of a model") from None


def shape_of(config: Mapping[str, Any]) -> Shape:
    """Returns the shape of a published model.

    Raises:
        InputError: of another family, or with biases in some of its matrices.
        KeyError: a field is missing.
    """
    kind = config.get("model_type", "")
    if kind == "gpt2":
        dim, heads = config["n_embd"], config["n_head"]
        return Shape(
            layers=config["n_layer"],
            dim=dim,
            heads=heads,
            kv_heads=heads,
            head_dim=dim // heads,
            ffn_dim=config.get("n_inner") or 4 * dim,
            vocab_size=config["vocab_size"],
            tied=True,
            gated=False,
            biases=True,
            positions=config["n_positions"],
            norm_vectors=2,
        )
    if kind not in FAMILIES or config.get("attention_bias") or config.get("mlp_bias"):
        raise InputError(
            f'a model of the type "{kind}"{" with biases" if kind in FAMILIES else ""} is not known',
            f"known are: {', '.join(FAMILIES)}",
        )
    heads, dim = config["num_attention_heads"], config["hidden_size"]
    return Shape(
        layers=config["num_hidden_layers"],
        dim=dim,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or dim // heads,
        ffn_dim=config["intermediate_size"],
        vocab_size=config["vocab_size"],
        tied=bool(config.get("tie_word_embeddings", False)),
        norm_vectors=0 if kind == "olmo" else 1,
    )
