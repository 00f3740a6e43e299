"""Generation without reading the past again: the keys and values of what a model has read are kept.

A new token of each row computes its own query, key and value alone, and attends to all keys of its row so far. Shapes
of matrix products differ from those of reading the whole row, so hidden states are equal up to rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from tasks.trainer.model.attention import Attend, sdpa_mask
from tasks.trainer.model.transformer import Transformer
from tasks.trainer.rope import rotary


@dataclass
class _Layer:
    """Keys and values of a layer, float [rows, kv_heads, room, head_dim] each."""

    k: Tensor
    v: Tensor


class Decoding:
    """Some rows that a model has read, and goes on with a token at a time.

    Args:
        model: the whole model, ready to predict.
        rows: tokens of each row, at least one; each row is a document of its own.
        room: tokens that each row may get.
    """

    def __init__(self, model: Transformer, rows: Sequence[Sequence[int]], room: int) -> None:
        self._model = model
        self._lengths = torch.tensor([len(row) for row in rows])
        longest, device = int(self._lengths.max()), model.head_weight.device
        # What pads a row stands behind it, where causal attention does not look; new tokens take its place.
        tokens = torch.tensor([[*row, *[row[-1]] * (longest - len(row))] for row in rows], device=device)
        shape = (len(rows), model.config.kv_heads, longest + room, model.config.head_dim)
        like = model.head_weight.detach()
        self._layers = [_Layer(like.new_zeros(shape), like.new_zeros(shape)) for _ in model.layers]
        attend = sdpa_mask(torch.zeros_like(tokens))
        positions = torch.arange(longest, device=device).expand_as(tokens)
        hidden = self._through(tokens, positions, [partial(_first, layer, attend) for layer in self._layers])
        self.hidden = hidden[torch.arange(len(rows)), self._lengths - 1]
        """Last hidden state of each row, float [rows, dim]."""

    @torch.no_grad()
    def logits(self) -> Tensor:
        """Returns the logits of each row's next token, float32 [rows, vocabulary]."""
        return F.linear(self.hidden, self._model.head_weight).float()

    def keep(self, rows: Sequence[int]) -> None:
        """Goes on with some of the rows, in this order."""
        if list(rows) == list(range(len(self._lengths))):
            return
        at = torch.tensor(rows)
        self._lengths, self.hidden = self._lengths[at], self.hidden[at]
        for layer in self._layers:
            layer.k, layer.v = layer.k[at], layer.v[at]

    def append(self, tokens: Sequence[int]) -> None:
        """Reads the next token of each row."""
        device = self.hidden.device
        places = self._lengths.to(device)
        longest = int(self._lengths.max()) + 1
        seen = (torch.arange(longest, device=device) <= places[:, None])[:, None, None, :]
        attends = [partial(_next, layer, places, seen) for layer in self._layers]
        self.hidden = self._through(torch.tensor(tokens, device=device)[:, None], places[:, None], attends)[:, 0]
        self._lengths = self._lengths + 1

    @torch.no_grad()
    def _through(self, tokens: Tensor, positions: Tensor, attends: Sequence[Attend]) -> Tensor:
        """Returns the normalised last hidden state of some tokens, float [rows, tokens, dim]."""
        model = self._model
        assert model.embedding is not None
        assert model.norm is not None
        cos, sin = rotary(positions, model.config)
        x = model.embedding(tokens)
        for layer, attend in zip(model.layers.values(), attends, strict=True):
            x = layer(x, cos, sin, attend)
        out: Tensor = model.norm(x)
        return out


def _first(layer: _Layer, attend: Attend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """An `Attend` of the whole rows, which keeps their keys and values."""
    layer.k[:, :, : k.shape[2]], layer.v[:, :, : v.shape[2]] = k, v
    return attend(q, k, v)


def _next(layer: _Layer, places: Tensor, seen: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """An `Attend` of one token per row, which keeps its key and value at the row's place.

    Args:
        layer: keys and values so far.
        places: int64 [rows], where the token stands.
        seen: bool [rows, 1, 1, keys], which keys a row has.
        q: queries, float [rows, heads, 1, head_dim].
        k: keys, float [rows, kv_heads, 1, head_dim].
        v: values, likewise.
    """
    rows = torch.arange(len(places), device=places.device)
    layer.k[rows, :, places], layer.v[rows, :, places] = k[:, :, 0], v[:, :, 0]
    keys = seen.shape[-1]
    # The query heads that share a key stand as queries of one head: nothing is repeated.
    shared = q.reshape(len(q), k.shape[1], -1, q.shape[-1])
    found = F.scaled_dot_product_attention(shared, layer.k[:, :, :keys], layer.v[:, :, :keys], attn_mask=seen)
    return found.reshape(q.shape)
