"""Attention over packed documents: causal, and masked at document boundaries.

A kernel takes the documents of a batch and returns the attention function that every layer calls. Everything that
depends only on the documents is computed once per batch.

| kernel | devices | dtypes | queries of a rank | capped scores, sinks |
|---|---|---|---|---|
| `sdpa_mask` | CPU | all | some or all | yes |
| `flex` | GPU; CPU forward | all | some or all | yes |
| `varlen` | GPU from SM 8.0 | bf16, fp16 | all | no |
"""

from typing import NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

MIN_DOCUMENTS = 16
"""Minimum capacity of `Bounds.starts`, in documents."""


class Scores(NamedTuple):
    """How the scores of a layer are computed."""

    window: int = 0
    """Keys that a query attends to, the last ones up to its own; 0: all."""
    cap: float = 0.0
    """Bound c: a score s becomes c tanh(s / c) (Gemma Team 2024, arXiv 2408.00118, section 2); 0: none."""
    scale: float | None = None
    """Factor of the products of queries and keys, before the cap; None: 1 / sqrt(head_dim)."""


PLAIN = Scores()


class Attend(Protocol):
    """Computes the attention of a layer."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> Tensor:
        """Returns a float tensor [batch, heads, queries, head_dim].

        Args:
            q: queries, float [batch, heads, queries, head_dim].
            k: keys, float [batch, kv_heads, keys, head_dim].
            v: values, likewise.
            sinks: float [heads], a score of each head that its softmax also has, and that belongs to no value: with it
                a result is multiplied by sigmoid(ln sum exp of the scores - sink). None: none.
        """


class Bounds(NamedTuple):
    """The documents of a batch, for attention over concatenated documents.

    Made on the CPU when the batch is made: their number and the longest length decide shapes and the launch of a
    kernel, so a GPU would have to finish its queue before the CPU could read them.
    """

    starts: Tensor
    """int32 [n + 1]: the start of each document in the concatenated sequences, padded with their total length. n is a
    power of two of at least MIN_DOCUMENTS, so that shapes rarely change between batches and compiled functions are
    rarely recompiled. The padding represents empty documents."""
    longest: int
    """Upper bound of the tokens of a document: the longest length, rounded up to a power of two for the same reason,
    but at most the length of a sequence."""
    learned: Tensor | None = None
    """int64 [labels]: the positions that have a label, in the concatenated sequences; None: the loss selects none."""
    documents: int = 0
    """Number of documents of a sequence, at most; set with `learned`."""

    @classmethod
    def of(cls, documents: NDArray[np.int64]) -> "Bounds":
        """Returns the bounds, on the CPU, of document numbers of shape (sequences, positions)."""
        begins = np.ones(documents.shape, dtype=bool)
        np.not_equal(documents[:, 1:], documents[:, :-1], out=begins[:, 1:])
        first = np.flatnonzero(begins)
        starts = np.full(max(MIN_DOCUMENTS, _power_of_two(len(first))) + 1, documents.size, dtype=np.int32)
        starts[: len(first)] = first
        longest = min(_power_of_two(int(np.diff(starts).max())), documents.shape[1])
        return cls(torch.from_numpy(starts), longest)


class Kernel(Protocol):
    """Computes what depends only on the documents of a batch."""

    def __call__(
        self,
        documents: Tensor,
        rows: Tensor | None = None,
        bounds: Bounds | None = None,
        scores: Scores = PLAIN,
    ) -> Attend:
        """Returns the attention function of the batch, for layers with these scores.

        Args:
            documents: int64 [batch, sequence], equal within a document and different between neighbors.
            rows: int64 [queries], the positions of the queries if a rank has only some of them; None: all.
            bounds: of the same documents, with `starts` on their device; None: a kernel that needs them computes them,
                which on a GPU waits for the device.
            scores: how the scores are computed.
        """


def sdpa_mask(
    documents: Tensor, rows: Tensor | None = None, bounds: Bounds | None = None, scores: Scores = PLAIN
) -> Attend:
    """A `Kernel`: SDPA with a boolean mask; the reference for the others, and the only one that trains on a CPU."""
    mask = document_mask(documents, rows, scores.window)

    def attend(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> Tensor:
        # Repeated explicitly, because SDPA's grouped mode has no fused CPU kernel.
        share = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(share, dim=1), v.repeat_interleave(share, dim=1)
        return masked_attention(q, k, v, mask, scores, None if sinks is None else sinks[:, None])

    return attend


def masked_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scores: Scores, sinks: Tensor | None = None
) -> Tensor:
    """Returns the attention of [batch, heads, queries, head_dim] under a bool mask, which includes the window.

    SDPA has neither a cap nor sinks, so with one of them all scores are computed and stored, in fp32. Shapes of
    `sinks` are those that expand to [batch, heads, queries].
    """
    if not scores.cap and sinks is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scores.scale)
    products = (q @ k.transpose(-1, -2)).float() * (scores.scale or q.shape[-1] ** -0.5)
    if scores.cap:
        products = soft_capped(products, scores.cap)
    products = products.masked_fill(~mask, -torch.inf)
    if sinks is not None:
        products = torch.cat((products, sinks.float().expand(products.shape[:-1])[..., None]), dim=-1)
    return products.softmax(dim=-1)[..., : k.shape[-2]].to(v.dtype) @ v


def soft_capped(values: Tensor, cap: float) -> Tensor:
    """Returns c tanh(v / c) of each value v for a cap c."""
    return cap * torch.tanh(values / cap)


def document_starts(documents: Tensor) -> Tensor:
    """Returns int64 [batch, sequence]: the position of the first token of each token's document."""
    index = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return torch.where(begins, index, 0).cummax(dim=1).values


def document_positions(documents: Tensor) -> Tensor:
    """Returns int64 [batch, sequence]: the position of each token within its document."""
    return torch.arange(documents.shape[1], device=documents.device) - document_starts(documents)


def document_mask(documents: Tensor, rows: Tensor | None = None, window: int = 0) -> Tensor:
    """Returns bool [batch, 1, queries, sequence]: a query attends to the keys of its document up to its own position.

    Args:
        documents: int64 [batch, sequence], equal within a document.
        rows: int64 [queries], positions of the queries; None: all.
        window: keys up to its own that a query attends to; 0: all.
    """
    positions = torch.arange(documents.shape[1], device=documents.device)
    rows = positions if rows is None else rows
    causal = rows[:, None] >= positions
    if window:
        causal &= rows[:, None] - positions < window
    return (documents[:, None, rows, None] == documents[:, None, None, :]) & causal


def _power_of_two(number: int) -> int:
    """Returns the smallest power of two that is at least `number`."""
    return 1 << (number - 1).bit_length()
