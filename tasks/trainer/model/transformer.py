"""The model: a decoder with attention masked at document boundaries.

By default that of Llama: pre-norm RMSNorm, rotary positions (Su et al. 2021, arXiv 2104.09864), grouped-query
attention, SwiGLU (Touvron et al. 2023, arXiv 2302.13971; GQA: arXiv 2305.13245). Settings of `ModelConfig` change one
feature each, as OLMo 2 (Team OLMo 2025, arXiv 2501.00656), SmolLM3, Gemma 2 and 3 (arXiv 2408.00118, 2503.19786),
gpt-oss (arXiv 2508.10925) and nanochat have them. The attention kernels and masks are in `attention`.
"""

import hashlib
import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tasks.trainer.config import STANDARD, InitConfig
from tasks.trainer.model.attention import (
    Attend,
    Bounds,
    Kernel,
    Scores,
    document_positions,
    sdpa_mask,
    soft_capped,
)
from tasks.trainer.model.config import Llama3Rope, ModelConfig, YarnRope
from tasks.trainer.model.experts import Mixture
from tasks.trainer.model.loss import ZLoss, count_labels, head_cross_entropy, loss_of_rows
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
    """Root mean square normalization over the last dimension, computed in fp32.

    Args:
        dim: width of the vector that is normalized.
        eps: added to the mean square.
        kind: `norm_weight` of ModelConfig.
    """

    def __init__(self, dim: int, eps: float, kind: str = "plain") -> None:
        super().__init__()
        self.weight = None if kind == "none" else nn.Parameter(torch.full((dim,), float(kind == "plain")))
        self.is_offset = kind == "offset"
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Returns a tensor with the shape and dtype of `x`."""
        factor = None if self.weight is None else self.weight.float() + 1 if self.is_offset else self.weight.float()
        return F.rms_norm(x.float(), (x.shape[-1],), factor, self.eps).to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions or none, and optionally norms of queries and keys before.

    Args:
        config: shape of the decoder.
        layer: number of the layer in the decoder.
    """

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.has_rope, self.norms_all_heads = config.has_rope(layer), config.qk_norm == "projection"
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.wq = Linear(config.dim, queries, config.qkv_bias)
        self.wk = Linear(config.dim, keys, config.qkv_bias)
        self.wv = Linear(config.dim, keys, config.qkv_bias)
        self.wo = Linear(queries, config.dim, config.output_bias)
        self.sinks = nn.Parameter(torch.zeros(config.heads)) if config.attention_sinks else None
        self.q_norm: RMSNorm | None = None
        self.k_norm: RMSNorm | None = None
        if config.qk_norm:
            widths = (queries, keys) if self.norms_all_heads else (self.head_dim, self.head_dim)
            self.q_norm, self.k_norm = (RMSNorm(width, config.norm_eps, config.norm_weight) for width in widths)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """Maps [batch, sequence, dim] to the same shape."""
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        if self.q_norm is not None and self.k_norm is not None and self.norms_all_heads:
            q, k = self.q_norm(q), self.k_norm(k)
        # The number of heads is derived from the projections, because with tensor parallelism a rank has only some of
        # them.
        q, k, v = (projection.unflatten(-1, (-1, self.head_dim)) for projection in (q, k, v))
        if self.q_norm is not None and self.k_norm is not None and not self.norms_all_heads:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (heads.transpose(1, 2) for heads in (q, k, v))
        if self.has_rope:
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        projected: Tensor = self.wo(attend(q, k, v, self.sinks).transpose(1, 2).flatten(-2))
        return projected


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu2": lambda x: F.relu(x).square(),
}


class FeedForward(nn.Module):
    """w2(activation(w1 x) * w3 x), by default SwiGLU; without the gate w2(activation(w1 x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.activation = _ACTIVATIONS[config.activation]
        self.w1 = Linear(config.dim, config.ffn_dim)
        self.w2 = Linear(config.ffn_dim, config.dim)
        self.w3 = Linear(config.dim, config.ffn_dim) if config.gated else None

    def forward(self, x: Tensor) -> Tensor:
        """Maps [batch, sequence, dim] to the same shape."""
        inner = self.activation(self.w1(x))
        out: Tensor = self.w2(inner if self.w3 is None else inner * self.w3(x))
        return out


def feed_forward(config: ModelConfig) -> nn.Module:
    """Returns the feed-forward part of a layer: SwiGLU, or a mixture of experts."""
    if config.experts is None:
        return FeedForward(config)
    width = config.experts.shared_width
    shared = FeedForward(config.model_copy(update={"ffn_width": width})) if width else None
    return Mixture(config.dim, config.experts, shared)


class TransformerBlock(nn.Module):
    """One layer: attention, then feed-forward, each added to the residual stream; norms are where `norm_place` says.

    Args:
        config: shape of the decoder.
        layer: number of the layer in the decoder.
    """

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        norm = partial(RMSNorm, config.dim, config.norm_eps, config.norm_weight)
        before, after = config.norm_place != "post", config.norm_place != "pre"
        self.attention_norm = norm() if before else None
        self.attention = Attention(config, layer)
        self.attention_post_norm = norm() if after else None
        self.ffn_norm = norm() if before else None
        self.ffn = feed_forward(config)
        self.ffn_post_norm = norm() if after else None
        self.recompute: Recompute | None = None
        """Calls the layer so that the backward pass recomputes activations; None: activations are stored."""

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """Maps [batch, sequence, dim] to the same shape."""
        return (
            self.recompute(self.compute, x, cos, sin, attend) if self.recompute else self.compute(x, cos, sin, attend)
        )

    def compute(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """Computes the layer without recomputation."""
        attended = self.attention(_normed(self.attention_norm, x), cos, sin, attend)
        x = x + _normed(self.attention_post_norm, attended)
        return x + _normed(self.ffn_post_norm, self.ffn(_normed(self.ffn_norm, x)))


def _normed(norm: RMSNorm | None, x: Tensor) -> Tensor:
    out: Tensor = x if norm is None else norm(x)
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
        if config.logit_cap:
            self.head_loss = partial(head_cross_entropy, of_rows=partial(loss_of_rows, cap=config.logit_cap))
        self.rows: Tensor | None = None
        """Positions of the sequence that this rank computes, int64 [positions]; None: all. `documents` has all."""
        rows = config.embedding_rows(vocab_size)
        self.embedding = Embedding(rows, config.dim) if 0 in layers else None
        self.layers = nn.ModuleDict({str(index): TransformerBlock(config, index) for index in layers})
        self.norm = RMSNorm(config.dim, config.norm_eps, config.norm_weight) if last else None
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
        x = self.embed(x)
        windows = {index: self.config.window_of(int(index)) for index in self.layers}
        angles = {window: rotary(positions, self.config, window) for window in set(windows.values())}
        attends = {
            window: self.kernel(documents, self.rows, bounds, scores_of(self.config, window)) for window in angles
        }
        for index, layer in self.layers.items():
            x = layer(x, *angles[windows[index]], attends[windows[index]])
        return x if self.norm is None else self.norm(x)

    def embed(self, x: Tensor) -> Tensor:
        """Returns the scaled rows of tokens, [batch, positions, dim]; `x` itself in a chunk without the embedding."""
        if self.embedding is None:
            return x
        x = self.embedding(x)
        if self.config.embedding_scale == "sqrt_dim":
            # In the dtype of the rows, as the models with this factor were trained.
            return x * torch.tensor(math.sqrt(self.config.dim), dtype=x.dtype)
        if self.config.embedding_scale == "rms":
            return F.rms_norm(x.float(), (x.shape[-1],), eps=self.config.norm_eps).to(x.dtype)
        return x

    def capped(self, logits: Tensor) -> Tensor:
        """Returns logits with the cap of the model, if it has one."""
        return soft_capped(logits, self.config.logit_cap) if self.config.logit_cap else logits

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns the logits [..., vocab_size], in the dtype of hidden states [..., dim]."""
        return self.capped(F.linear(hidden, self.head_weight))

    def forward(self, tokens: Tensor, documents: Tensor) -> Tensor:
        """Returns the logits of the next token, [batch, sequence, vocab_size], for the arguments of `hidden`."""
        return self.logits(self.hidden(tokens, documents))

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


def scores_of(config: ModelConfig, window: int) -> Scores:
    """Returns how the scores of the layers with this window are computed."""
    scale = config.attention_scalar**-0.5 if config.attention_scalar else None
    return Scores(window, config.attention_cap, scale)


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
    also the head, so that the first logits are near zero, else 1. A separate head, biases and sinks start at zero,
    norms with the factor one. `init` changes the deviations. Each weight has its own generator, seeded with its name:
    changing one layer does not change the initial weights of the others, and a rank computes only the weights of its
    own layers.
    """
    if (constant := initial_constant(config, name, shape, init)) is not None:
        return torch.full(shape, constant)
    generator = torch.Generator().manual_seed(_seed_of(seed, name))
    if name.startswith(("embedding.", "head.")):
        deviation = init.std or (0.02 if config.tie_embeddings else 1.0)
    else:
        residual = init.scale_outputs and name.endswith(("wo.weight", "w2.weight"))
        deviation = (init.std or shape[-1] ** -0.5) / (math.sqrt(2 * config.layers) if residual else 1.0)
    deviation *= deviation_share(config, init, name)
    weight = torch.empty(shape)
    if init.truncate:
        limit = init.truncate * deviation
        return nn.init.trunc_normal_(weight, 0.0, deviation, -limit, limit, generator)
    return weight.normal_(0.0, deviation, generator=generator)


def initial_constant(config: ModelConfig, name: str, shape: torch.Size, init: InitConfig = STANDARD) -> float | None:
    """Returns the value that all numbers of an initial weight have; None if they are drawn."""
    if (name.startswith("head.") and not init.std) or name.endswith((".bias", ".sinks")):
        return 0.0
    return None if len(shape) > 1 else 0.0 if config.norm_weight == "offset" else 1.0


def _seed_of(seed: int, name: str) -> int:
    digest = hashlib.blake2b(f"{seed}\n{name}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")


def rotary(positions: Tensor, config: ModelConfig, window: int = 0) -> tuple[Tensor, Tensor]:
    """Returns cosine and sine, float32 [batch, 1, sequence, head_dim / 2], of the rotary angles.

    Args:
        positions: int64 [batch, sequence].
        config: head width, base of the wavelengths, and their scaling.
        window: of the layers; those with one can have another base.
    """
    if window and config.window_rope_theta:
        config = config.model_copy(update={"rope_theta": config.window_rope_theta, "rope_scaling": None})
    angles = positions.float()[:, None, :, None] * frequencies(config, positions.device)
    cos, sin = angles.cos(), -angles.sin() if config.rope_reversed else angles.sin()
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
            outward unless `truncate` is off; in addition, queries and keys are multiplied by 0.1 ln S + 1 (Peng et al.
            2023, arXiv 2309.00071, section 3; rounding as in the authors' code).
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
        first = _pair(config, scaling.original_length, scaling.beta_fast)
        last = _pair(config, scaling.original_length, scaling.beta_slow)
        if scaling.truncate:
            first, last = math.floor(first), math.ceil(last)
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
