"""Forward pass of the BERT family with a classification head, from weights on disk. Needs the extra `train` (torch).

Reads `config.json`, `tokenizer.json` and `model.safetensors` of a folder as Hugging Face lays it out. Only inference,
in float32, on the CPU, with one thread: that is some 300 lines less than a dependency on `transformers`, which
downloads and runs code by name. The tests compare with reference values of `transformers`.

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

# Renaming of each family's weights to the names of BERT.
_RENAMED = {
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
_RENAMED["xlm-roberta"] = _RENAMED["roberta"]
_SHORT = ((r"\.self\.query\.", ".self.q."), (r"\.self\.key\.", ".self.k."), (r"\.self\.value\.", ".self.v."))
_ACTIVATIONS = {
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
}


@dataclass(frozen=True)
class Shape:
    """The fields of a model's `config.json` that the forward pass needs."""

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
    """What the model was trained for: `single_label_classification`, `multi_label_classification` or `regression`."""


class SequenceClassifier:
    """A model of a folder, loaded.

    Args:
        folder: contains FILES.

    Raises:
        InputError: a file is missing, or the model is of another family.
    """

    def __init__(self, folder: str) -> None:
        for name in FILES:
            if not (Path(folder) / name).is_file():
                raise InputError(f"{folder} holds no {name}", f"put {', '.join(FILES)} of the model there")
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
        """Returns a score per text and label, shape (n texts, n labels).

        Probabilities that sum to 1, a probability for each label on its own, or the output of a regression,
        depending on the model's problem type.

        Args:
            texts: any texts.
            tokens: most tokens of each that are read, with the special tokens at both ends; at most the model's
            maximum.
        """
        self._tokenizer.enable_truncation(min(tokens, self.shape.max_tokens))
        encoded = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts))]
        results = np.zeros((len(texts), len(self.shape.labels)), dtype=np.float32)
        # Texts of similar length together: less padding.
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
        there = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in ids])
        hidden = self._encode(padded, there)
        pooled = self._linear("pooler.dense", hidden[:, 0])
        logits = self._linear("classifier", pooled.relu() if self.shape.family == "distilbert" else pooled.tanh())
        if self.shape.output == "regression":
            return logits
        return logits.sigmoid() if self.shape.output == "multi_label_classification" else logits.softmax(dim=-1)

    def _encode(self, ids: Tensor, there: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1]) + self.shape.first_position
        hidden = self._weights["embeddings.word_embeddings.weight"][ids]
        hidden = hidden + self._weights["embeddings.position_embeddings.weight"][positions]
        if (kinds := self._weights.get("embeddings.token_type_embeddings.weight")) is not None:
            hidden = hidden + kinds[0]
        hidden = self._norm("embeddings.LayerNorm", hidden)
        activation: Any = _ACTIVATIONS[self.shape.activation]
        for number in range(self.shape.layers):
            name = f"encoder.layer.{number}"
            attended = self._linear(f"{name}.attention.output.dense", self._attend(name, hidden, there))
            hidden = self._norm(f"{name}.attention.output.LayerNorm", hidden + attended)
            inner = activation(self._linear(f"{name}.intermediate.dense", hidden))
            hidden = self._norm(f"{name}.output.LayerNorm", hidden + self._linear(f"{name}.output.dense", inner))
        return hidden

    def _attend(self, name: str, hidden: Tensor, there: Tensor) -> Tensor:
        split = (self.shape.heads, hidden.shape[-1] // self.shape.heads)
        q, k, v = (
            self._linear(f"{name}.attention.self.{which}", hidden).view(*hidden.shape[:2], *split).transpose(1, 2)
            for which in "qkv"
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=there[:, None, None, :])
        return mixed.transpose(1, 2).flatten(-2)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return functional.linear(x, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"])

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        return functional.layer_norm(x, weight.shape, weight, bias, self.shape.epsilon)


def _renamed(name: str, family: str) -> str:
    for pattern, instead in (*_RENAMED[family], *_SHORT):
        name = re.sub(pattern, instead, name)
    return name


def _shape(config: dict[str, Any], folder: str) -> Shape:
    family = config.get("model_type", "")
    if family not in _RENAMED:
        raise InputError(
            f'{folder} holds a model of the family "{family}"', f"families that are read: {', '.join(sorted(_RENAMED))}"
        )
    activation = config.get("activation" if family == "distilbert" else "hidden_act", "gelu")
    kind = config.get("position_embedding_type", "absolute")
    if activation not in _ACTIVATIONS or kind != "absolute":
        raise InputError(f"{folder} holds a model with {activation} and {kind} positions", "name another model")
    names = config.get("id2label") or {str(place): f"LABEL_{place}" for place in range(config.get("num_labels", 2))}
    labels = tuple(names[key] for key in sorted(names, key=int))
    pad = config.get("pad_token_id", 1 if "roberta" in family else 0)
    # RoBERTa counts positions from the one after that of its padding.
    first = pad + 1 if "roberta" in family else 0
    plain = "regression" if len(labels) == 1 else "single_label_classification"
    return Shape(
        family=family,
        heads=config["n_heads" if family == "distilbert" else "num_attention_heads"],
        layers=config["n_layers" if family == "distilbert" else "num_hidden_layers"],
        epsilon=config.get("layer_norm_eps", 1e-12),
        activation=activation,
        first_position=first,
        max_tokens=config["max_position_embeddings"] - first,
        pad=pad,
        labels=labels,
        output=config.get("problem_type") or plain,
    )
