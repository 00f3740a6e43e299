"""The model: a Llama-type decoder with attention masked at document boundaries.

Pre-norm RMSNorm, rotary positions (Su et al. 2021, arXiv 2104.09864), grouped-query attention, SwiGLU (Touvron et al.
2023, arXiv 2302.13971; GQA: arXiv 2305.13245). The attention kernels and masks are in `attention`.
"""

import hashlib
import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tasks.trainer.config import STANDARD, InitConfig, Llama3Rope, ModelConfig, YarnRope
from tasks.trainer.model.attention import Attend, Bounds, Kernel, document_positions, sdpa_mask
from tasks.trainer.model.loss import ZLoss, count_labels, head_cross_entropy
from tasks.trainer.mup import deviation_share

Recompute = Callable[..., Tensor]
"""Calls a function with arguments, as `torch.utils.checkpoint.checkpoint` does."""


class Linear(nn.Linear):
    """A matrix, whose values are undefined until they are initialized (`initial_weight`) or loaded.

    torch's own initialization, in one thread, would be overwritten in every case.
    """

    def __init__(self, inputs: int, outputs: int, bias: bool = False) -> None:
        super().__init__(inputs, outputs, bias=bias)

    def reset_parameters(self) -> None:
        """Leaves the values undefined."""


class Embedding(nn.Embedding):
    """A row per token, with undefined values like `Linear`."""

    def reset_parameters(self) -> None:
        """Leaves the values undefined."""


class RMSNorm(nn.Module):
    """Root mean square normalization over the last dimension, computed in fp32."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Returns a tensor with the shape and dtype of `x`."""
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight.float(), self.eps).to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions, and optionally a norm of each head's queries and keys before."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.wq = Linear(config.dim, config.heads * config.head_dim, config.qkv_bias)
        self.wk = Linear(config.dim, config.kv_heads * config.head_dim, config.qkv_bias)
        self.wv = Linear(config.dim, config.kv_heads * config.head_dim, config.qkv_bias)
        self.wo = Linear(config.heads * config.head_dim, config.dim)
        self.q_norm = RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(config.head_dim, config.norm_eps) if config.qk_norm else None

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """Maps [batch, sequence, dim] to the same shape."""
        # The number of heads is derived from the projections, because with tensor parallelism a rank has only some of
        # them.
        q, k, v = (matrix(x).unflatten(-1, (-1, self.head_dim)) for matrix in (self.wq, self.wk, self.wv))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q.transpose(1, 2), cos, sin), rotate(k.transpose(1, 2), cos, sin)
        v = v.transpose(1, 2)
        projected: Tensor = self.wo(attend(q, k, v).transpose(1, 2).flatten(-2))
        return projected


class FeedForward(nn.Module):
    """SwiGLU: w2(silu(w1 x) * w3 x)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.w1 = Linear(config.dim, config.ffn_dim)
        self.w2 = Linear(config.ffn_dim, config.dim)
        self.w3 = Linear(config.dim, config.ffn_dim)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [batch, sequence, dim] to the same shape."""
        out: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return out


class TransformerBlock(nn.Module):
    """One layer: attention, then feed-forward, each on a normalized input and added to the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.attention = Attention(config)
        self.ffn_norm = RMSNorm(config.dim, config.norm_eps)
        self.ffn = FeedForward(config)
        self.recompute: Recompute | None = None
        """Calls the layer so that the backward pass recomputes activations; None: activations are stored."""

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """Maps [batch, sequence, dim] to the same shape."""
        return (
            self.recompute(self.compute, x, cos, sin, attend) if self.recompute else self.compute(x, cos, sin, attend)
        )

    def compute(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """Computes the layer without recomputation."""
        x = x + self.attention(self.attention_norm(x), cos, sin, attend)
        out: Tensor = x + self.ffn(self.ffn_norm(x))
        return out


class Transformer(nn.Module):
    """The decoder, or a chunk of its consecutive layers.

    Layers are in a ModuleDict keyed by their number in the whole decoder, so that parameter names do not depend on how
    layers are split over ranks.

    The values of matrices are undefined: `build` initializes them, other callers load them.

    Args:
        config: shape of the whole decoder.
        vocab_size: tokens of the vocabulary.
        layers: numbers of the layers; the first layer includes the embedding, the last one the norm and head. None:
            all.
    """

    def __init__(self, config: ModelConfig, vocab_size: int, layers: range | None = None) -> None:
        super().__init__()
        layers = range(config.layers) if layers is None else layers
        last = config.layers - 1 in layers
        self.config, self.vocab_size = config, vocab_size
        self.kernel: Kernel = sdpa_mask
        self.z_loss = ZLoss(0.0)
        self.head_loss: Callable[..., Tensor] = head_cross_entropy
        self.rows: Tensor | None = None
        """Positions of the sequence that this rank computes, int64 [positions]; None: all. `documents` has all."""
        rows = config.embedding_rows(vocab_size)
        self.embedding = Embedding(rows, config.dim) if 0 in layers else None
        self.layers = nn.ModuleDict({str(index): TransformerBlock(config) for index in layers})
        self.norm = RMSNorm(config.dim, config.norm_eps) if last else None
        self.head = Linear(config.dim, rows) if last and not config.tie_embeddings else None

    @property
    def head_weight(self) -> Tensor:
        """The matrix [vocab_size, dim] that turns a hidden state into logits, without rows that are no tokens."""
        return self._head if len(self._head) == self.vocab_size else self._head[: self.vocab_size]

    @property
    def _head(self) -> Tensor:
        """All rows of the head."""
        owner = self.embedding if self.head is None else self.head
        assert owner is not None, "this chunk has no head"
        return owner.weight

    def hidden(self, x: Tensor, documents: Tensor, bounds: Bounds | None = None) -> Tensor:
        """Returns the last hidden state, float [batch, positions, dim], normalized if the chunk has the norm.

        Args:
            x: int64 [batch, positions], tokens; for a chunk without the embedding, the output of the previous chunk.
            documents: int64 [batch, sequence], equal within a document and different between neighbors.
            bounds: of the documents; see `Kernel`.
        """
        positions = document_positions(documents)
        if self.rows is not None:
            positions = positions[:, self.rows]
        cos, sin = rotary(positions, self.config)
        attend = self.kernel(documents, self.rows, bounds)
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers.values():
            x = layer(x, cos, sin, attend)
        return x if self.norm is None else self.norm(x)

    def forward(self, tokens: Tensor, documents: Tensor) -> Tensor:
        """Returns the logits of the next token, [batch, sequence, vocab_size], for the arguments of `hidden`."""
        return F.linear(self.hidden(tokens, documents), self.head_weight)

    def loss(self, x: Tensor, documents: Tensor, labels: Tensor, bounds: Bounds | None = None) -> Tensor:
        """Returns the summed cross-entropy of `labels` in nats, float32 scalar; the other arguments as for `hidden`."""
        return self.head_loss(self.hidden(x, documents, bounds), self._head, labels, self.vocab_size)

    def add_z_loss(self, coefficient: float) -> None:
        """Adds z-loss to the gradients of `loss` (`loss`); its sum is in `z_loss`."""
        self.z_loss = ZLoss(coefficient)
        self.head_loss = partial(self.head_loss, z=self.z_loss)

    def counted(self, documents: Tensor, labels: Tensor) -> int:
        """Returns the number of terms in the sum of `loss`, the number of labels; the arguments are on the CPU."""
        return count_labels(labels)


def build(config: ModelConfig, vocab_size: int, seed: int, init: InitConfig = STANDARD) -> Transformer:
    """Returns a model in fp32 with random initial weights from `seed`."""
    model = Transformer(config, vocab_size)
    set_initial_weights(model, config, seed, init)
    return model


@torch.no_grad()
def set_initial_weights(model: Transformer, config: ModelConfig, seed: int, init: InitConfig = STANDARD) -> None:
    """Sets random initial weights from `seed`, in place."""
    for name, weight in model.named_parameters():
        weight.copy_(initial_weight(config, name, weight.shape, seed, init))


def initial_weight(config: ModelConfig, name: str, shape: torch.Size, seed: int, init: InitConfig = STANDARD) -> Tensor:
    """Returns the initial weight of a parameter, float32 on the CPU, as a function of the arguments alone.

    Matrices: normal with standard deviation 1 / sqrt(fan in), times 1 / sqrt(2 layers) for those that write to the
    residual stream, which keeps its variance independent of depth (GPT-2). Embedding: standard deviation 0.02 if it is
    also the head, so that the first logits are near zero, else 1. A separate head and biases start at zero, norms at
    one. `init` changes the deviations. Each weight has its own generator, seeded with its name: changing one layer does
    not change the initial weights of the others, and a rank computes only the weights of its own layers.
    """
    if (constant := initial_constant(name, shape, init)) is not None:
        return torch.full(shape, constant)
    generator = torch.Generator().manual_seed(_seed_of(seed, name))
    if name.startswith(("embedding.", "head.")):
        deviation = init.std or (0.02 if config.tie_embeddings else 1.0)
    else:
        residual = init.scale_outputs and name.endswith(("wo.weight", "w2.weight"))
        deviation = (init.std or shape[1] ** -0.5) / (math.sqrt(2 * config.layers) if residual else 1.0)
    deviation *= deviation_share(config, init, name)
    weight = torch.empty(shape)
    if init.truncate:
        limit = init.truncate * deviation
        return nn.init.trunc_normal_(weight, 0.0, deviation, -limit, limit, generator)
    return weight.normal_(0.0, deviation, generator=generator)


def initial_constant(name: str, shape: torch.Size, init: InitConfig = STANDARD) -> float | None:
    """Returns the value that all numbers of an initial weight have; None if they are drawn."""
    if (name.startswith("head.") and not init.std) or name.endswith(".bias"):
        return 0.0
    return 1.0 if len(shape) == 1 else None


def _seed_of(seed: int, name: str) -> int:
    digest = hashlib.blake2b(f"{seed}\n{name}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")


def rotary(positions: Tensor, config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Returns cosine and sine, float32 [batch, 1, sequence, head_dim / 2], of the rotary angles.

    Args:
        positions: int64 [batch, sequence].
        config: head width, base of the wavelengths, and their scaling.
    """
    angles = positions.float()[:, None, :, None] * frequencies(config, positions.device)
    cos, sin = angles.cos(), angles.sin()
    if isinstance(config.rope_scaling, YarnRope):
        size = 0.1 * math.log(config.rope_scaling.factor) + 1
        return cos * size, sin * size
    return cos, sin


def frequencies(config: ModelConfig, device: torch.device) -> Tensor:
    """Returns the angle in radians by which each pair rotates per position, float32 [head_dim / 2].

    With S the factor, L the original length and w = theta^(-2 i / head_dim) the unscaled angle of pair i, a pair makes
    r = L w / 2 pi turns over the original length. Scaling replaces w:

    linear  w / S: positions are interpolated (Chen et al. 2023, arXiv 2306.15595).
    llama3  w if r >= high_freq_factor, w / S if r <= low_freq_factor, and in between the mean of both, weighted
            linearly in r (Llama 3.1: `apply_scaling` in meta-llama/llama-models, models/llama3/model.py).
    yarn    the same, weighted linearly in i between the pairs that make beta_fast and beta_slow turns, rounded
            outward; in addition, queries and keys are multiplied by 0.1 ln S + 1 (Peng et al. 2023, arXiv 2309.00071,
            section 3; rounding as in the authors' code).
    """
    head_dim, scaling = config.head_dim, config.rope_scaling
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    plain = config.rope_theta**-exponents
    if scaling is None:
        return plain
    if isinstance(scaling, Llama3Rope):
        turns = scaling.original_length * plain / (2 * math.pi)
        unscaled_share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    elif isinstance(scaling, YarnRope):
        first = math.floor(_pair(config, scaling.original_length, scaling.beta_fast))
        last = math.ceil(_pair(config, scaling.original_length, scaling.beta_slow))
        first, last = max(first, 0), min(last, head_dim - 1)
        unscaled_share = 1 - (torch.arange(head_dim // 2, device=device) - first) / max(last - first, 1e-3)
    else:
        return plain / scaling.factor
    unscaled_share = unscaled_share.clamp(0, 1)
    return unscaled_share * plain + (1 - unscaled_share) * plain / scaling.factor


def _pair(config: ModelConfig, length: int, turns: float) -> float:
    """Returns the fractional index of the pair that makes `turns` turns over `length` positions."""
    return config.head_dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(config.rope_theta))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates the pairs (first half, second half) of the last dimension of `x` [batch, heads, sequence, head_dim]."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
