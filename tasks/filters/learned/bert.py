"""Forward pass of BERT-family models with a classification head, from local weights. Needs the extra `train` (torch).

Reads `config.json`, `tokenizer.json` and `model.safetensors` in the format of Hugging Face. Inference only, in float32,
on the CPU, with one thread. This avoids a dependency on `transformers`, which downloads and runs code by name. The
tests compare with reference values of `transformers`.

Sources: Devlin et al., "BERT", arXiv 1810.04805; Liu et al., "RoBERTa", arXiv 1907.11692; Conneau et al., "XLM-R",
arXiv 1911.02116; Sanh et al., "DistilBERT", arXiv 1910.01108.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from tasks.core.errors import InputError

FILES = ("config.json", "tokenizer.json", "model.safetensors")
_BATCH = 16

# Regular expressions that rename the weights of each family to the names of BERT.
_RENAMES = {
    "bert": ((r"^bert\.", ""), (r"\.gamma$", ".weight"), (r"\.beta$", ".bias")),
    "roberta": (
        (r"^roberta\.", ""),
        (r"^classifier\.dense\.", "pooler.dense."),
        (r"^classifier\.out_proj\.", "classifier."),
    ),
    "distilbert": (
        (r"^distilbert\.", ""),
        (r"^transformer\.", "encoder."),
        (r"\.attention\.(q|k|v)_lin\.", r".attention.self.\1."),
        (r"\.attention\.out_lin\.", ".attention.output.dense."),
        (r"\.sa_layer_norm\.", ".attention.output.LayerNorm."),
        (r"\.ffn\.lin1\.", ".intermediate.dense."),
        (r"\.ffn\.lin2\.", ".output.dense."),
        (r"\.output_layer_norm\.", ".output.LayerNorm."),
        (r"^pre_classifier\.", "pooler.dense."),
    ),
}
_RENAMES["xlm-roberta"] = _RENAMES["roberta"]
_SHORT = ((r"\.self\.query\.", ".self.q."), (r"\.self\.key\.", ".self.k."), (r"\.self\.value\.", ".self.v."))
_ACTIVATIONS = {
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
}


@dataclass(frozen=True)
class EncoderShape:
    """Fields of a model's `config.json` that the forward pass needs."""

    family: str
    heads: int
    layers: int
    epsilon: float
    activation: str
    first_position: int
    max_tokens: int
    pad: int
    labels: tuple[str, ...]
    output: str
    """Problem type: `single_label_classification`, `multi_label_classification` or `regression`."""


class SequenceClassifier:
    """A loaded sequence classification model.

    Args:
        folder: contains FILES.

    Raises:
        InputError: a file is missing, the model is of an unsupported family, or it has no classification head.
    """

    def __init__(self, folder: str) -> None:
        for name in FILES:
            if not (Path(folder) / name).is_file():
                raise InputError(f"{folder} has no {name}", f"put {', '.join(FILES)} of the model there")
        self.shape = _shape(json.loads((Path(folder) / "config.json").read_text(encoding="utf-8")), folder)
        self._tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._weights = {
            _renamed(name, self.shape.family): weight.float()
            for name, weight in load_file(Path(folder) / "model.safetensors").items()
        }
        if "classifier.weight" not in self._weights:
            raise InputError(f"the model in {folder} has no classification head", "name one that was trained to label")

    def scores(self, texts: Sequence[str], tokens: int) -> NDArray[np.float32]:
        """Returns a score per text and label, float32 of shape (n_texts, n_labels).

        Depending on the problem type, these are probabilities that sum to 1, independent probabilities, or the outputs
        of a regression.

        Args:
            texts: any texts.
            tokens: maximum number of tokens of a text that are read, including the special tokens at both ends; limited
                by the model's maximum.
        """
        self._tokenizer.enable_truncation(min(tokens, self.shape.max_tokens))
        encoded = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts))]
        results = np.zeros((len(texts), len(self.shape.labels)), dtype=np.float32)
        # Texts of similar length are in the same batch, which needs less padding.
        order = sorted(range(len(encoded)), key=lambda row: (len(encoded[row]), row))
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for first in range(0, len(order), _BATCH):
                rows = order[first : first + _BATCH]
                with torch.inference_mode():
                    results[rows] = self._outputs([encoded[row] for row in rows]).numpy()
        finally:
            torch.set_num_threads(threads)
        return results

    def _outputs(self, ids: list[list[int]]) -> Tensor:
        width = max(map(len, ids))
        padded = torch.tensor([row + [self.shape.pad] * (width - len(row)) for row in ids])
        mask = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in ids])
        hidden = self._encode(padded, mask)
        pooled = self._linear("pooler.dense", hidden[:, 0])
        logits = self._linear("classifier", pooled.relu() if self.shape.family == "distilbert" else pooled.tanh())
        if self.shape.output == "regression":
            return logits
        return logits.sigmoid() if self.shape.output == "multi_label_classification" else logits.softmax(dim=-1)

    def _encode(self, ids: Tensor, mask: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1]) + self.shape.first_position
        hidden = self._weights["embeddings.word_embeddings.weight"][ids]
        hidden = hidden + self._weights["embeddings.position_embeddings.weight"][positions]
        if (kinds := self._weights.get("embeddings.token_type_embeddings.weight")) is not None:
            hidden = hidden + kinds[0]
        hidden = self._norm("embeddings.LayerNorm", hidden)
        activation: Any = _ACTIVATIONS[self.shape.activation]
        for number in range(self.shape.layers):
            name = f"encoder.layer.{number}"
            attended = self._linear(f"{name}.attention.output.dense", self._attend(name, hidden, mask))
            hidden = self._norm(f"{name}.attention.output.LayerNorm", hidden + attended)
            inner = activation(self._linear(f"{name}.intermediate.dense", hidden))
            hidden = self._norm(f"{name}.output.LayerNorm", hidden + self._linear(f"{name}.output.dense", inner))
        return hidden

    def _attend(self, name: str, hidden: Tensor, mask: Tensor) -> Tensor:
        split = (self.shape.heads, hidden.shape[-1] // self.shape.heads)
        q, k, v = (
            self._linear(f"{name}.attention.self.{matrix}", hidden).view(*hidden.shape[:2], *split).transpose(1, 2)
            for matrix in "qkv"
        )
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
        return attended.transpose(1, 2).flatten(-2)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return functional.linear(x, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"])

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        return functional.layer_norm(x, weight.shape, weight, bias, self.shape.epsilon)


def _renamed(name: str, family: str) -> str:
    for pattern, replacement in (*_RENAMES[family], *_SHORT):
        name = re.sub(pattern, replacement, name)
    return name


def _shape(config: dict[str, Any], folder: str) -> EncoderShape:
    family = config.get("model_type", "")
    if family not in _RENAMES:
        raise InputError(
            f'{folder} has a model of the family "{family}"', f"supported families: {', '.join(sorted(_RENAMES))}"
        )
    activation = config.get("activation" if family == "distilbert" else "hidden_act", "gelu")
    kind = config.get("position_embedding_type", "absolute")
    if activation not in _ACTIVATIONS or kind != "absolute":
        raise InputError(f"{folder} has a model with {activation} and {kind} positions", "name another model")
    names = config.get("id2label") or {str(label): f"LABEL_{label}" for label in range(config.get("num_labels", 2))}
    labels = tuple(names[key] for key in sorted(names, key=int))
    pad = config.get("pad_token_id", 1 if "roberta" in family else 0)
    # RoBERTa's positions begin after the id of its padding token.
    first = pad + 1 if "roberta" in family else 0
    default_output = "regression" if len(labels) == 1 else "single_label_classification"
    return EncoderShape(
        family=family,
        heads=config["n_heads" if family == "distilbert" else "num_attention_heads"],
        layers=config["n_layers" if family == "distilbert" else "num_hidden_layers"],
        epsilon=config.get("layer_norm_eps", 1e-12),
        activation=activation,
        first_position=first,
        max_tokens=config["max_position_embeddings"] - first,
        pad=pad,
        labels=labels,
        output=config.get("problem_type") or default_output,
    )
