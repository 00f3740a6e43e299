"""The model: a Llama-type decoder with attention masked at document boundaries.

Pre-norm RMSNorm, rotary positions, grouped-query attention, SwiGLU (Touvron et al. 2023, arXiv 2302.13971; GQA: arXiv
2305.13245). Attention is torch's SDPA with a boolean mask: the reference for faster kernels, and the only one
of them that trains on a CPU.
"""

import hashlib
import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tasks.trainer.config import ModelConfig


class RMSNorm(nn.Module):
    """Scales by the root mean square over the last dimension, computed in fp32."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Shape and dtype of the result are those of `x`."""
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight, self.eps).to(x.dtype)


def rotary(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Returns cosine and sine, float32 [batch, 1, sequence, head_dim / 2], of the rotary angles (arXiv 2104.09864)."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions.device) / head_dim
    angles = positions.float()[:, None, :, None] * theta**-exponents
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns the pairs (first half, second half) of the last dimension of `x` [batch, heads, sequence, head_dim]."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def document_mask(documents: Tensor) -> Tensor:
    """Returns bool [batch, 1, sequence, sequence]: a query attends to keys of its document that are not later.

    Args:
        documents: int64 [batch, sequence], equal within a document.
    """
    length = documents.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=documents.device).tril()
    return (documents[:, None, :, None] == documents[:, None, None, :]) & causal


def document_positions(documents: Tensor) -> Tensor:
    """Returns int64 [batch, sequence]: how far each token is from the first token of its document."""
    index = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    starts = torch.ones_like(documents, dtype=torch.bool)
    starts[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return index - torch.where(starts, index, 0).cummax(dim=1).values


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        self.wq = nn.Linear(config.dim, config.heads * config.head_dim, bias=False)
        self.wk = nn.Linear(config.dim, config.kv_heads * config.head_dim, bias=False)
        self.wv = nn.Linear(config.dim, config.kv_heads * config.head_dim, bias=False)
        self.wo = nn.Linear(config.heads * config.head_dim, config.dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """Maps [batch, sequence, dim] to the same shape."""
        batch, length, _ = x.shape
        q = rotate(self.wq(x).view(batch, length, self.heads, -1).transpose(1, 2), cos, sin)
        k = rotate(self.wk(x).view(batch, length, self.kv_heads, -1).transpose(1, 2), cos, sin)
        v = self.wv(x).view(batch, length, self.kv_heads, -1).transpose(1, 2)
        # Repeated by hand: SDPA's own grouped mode has no fused CPU kernel.
        share = self.heads // self.kv_heads
        k, v = k.repeat_interleave(share, dim=1), v.repeat_interleave(share, dim=1)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        projected: Tensor = self.wo(mixed.transpose(1, 2).reshape(batch, length, -1))
        return projected


class FeedForward(nn.Module):
    """SwiGLU: w2(silu(w1 x) * w3 x)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.dim, config.ffn_dim, bias=False)
        self.w2 = nn.Linear(config.ffn_dim, config.dim, bias=False)
        self.w3 = nn.Linear(config.dim, config.ffn_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [batch, sequence, dim] to the same shape."""
        out: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return out


class Block(nn.Module):
    """One layer: attention, then feed-forward, each on a normalised input and added to the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.attention = Attention(config)
        self.ffn_norm = RMSNorm(config.dim, config.norm_eps)
        self.ffn = FeedForward(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """Maps [batch, sequence, dim] to the same shape."""
        x = x + self.attention(self.attention_norm(x), cos, sin, mask)
        out: Tensor = x + self.ffn(self.ffn_norm(x))
        return out


class Transformer(nn.Module):
    """The decoder. Layers are in a ModuleDict, so that a parameter keeps its name when layers are split over ranks."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.config, self.vocab_size = config, vocab_size
        self.embedding = nn.Embedding(vocab_size, config.dim)
        self.layers = nn.ModuleDict({str(index): Block(config) for index in range(config.layers)})
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.head = None if config.tie_embeddings else nn.Linear(config.dim, vocab_size, bias=False)

    @property
    def head_weight(self) -> Tensor:
        """The matrix [vocab_size, dim] that turns a hidden state into logits."""
        return self.embedding.weight if self.head is None else self.head.weight

    def hidden(self, tokens: Tensor, documents: Tensor) -> Tensor:
        """Returns the normalised last hidden state, float [batch, sequence, dim].

        Args:
            tokens: int64 [batch, sequence].
            documents: int64 [batch, sequence], equal within a document and different between neighbours.
        """
        cos, sin = rotary(document_positions(documents), self.config.head_dim, self.config.rope_theta)
        mask = document_mask(documents)
        x = self.embedding(tokens)
        for layer in self.layers.values():
            x = layer(x, cos, sin, mask)
        out: Tensor = self.norm(x)
        return out

    def forward(self, tokens: Tensor, documents: Tensor) -> Tensor:
        """Returns the logits of the next token, [batch, sequence, vocab_size], for the arguments of `hidden`."""
        return F.linear(self.hidden(tokens, documents), self.head_weight)


def initialise(model: Transformer, seed: int) -> None:
    """Fills the weights in place, equal for equal seeds whatever else draws random numbers.

    Matrices: normal with deviation 1 / sqrt(fan in); those that write to the residual stream a further 1 / sqrt(2
    layers), which keeps its variance independent of depth (GPT-2). Embedding: 0.02 where it is also the head (so that
    the first logits are near zero), else 1. A head of its own starts at zero. Each weight has its own generator, seeded
    with its name: a change of one layer does not change the initial weights of the others.
    """
    depth = math.sqrt(2 * model.config.layers)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            generator = torch.Generator().manual_seed(_seed_of(seed, name))
            if name.startswith("head."):
                weight.zero_()
            elif name.startswith("embedding."):
                weight.normal_(0.0, 0.02 if model.config.tie_embeddings else 1.0, generator=generator)
            elif weight.ndim == 2:
                residual = name.endswith(("wo.weight", "w2.weight"))
                weight.normal_(0.0, weight.shape[1] ** -0.5 / (depth if residual else 1.0), generator=generator)


def _seed_of(seed: int, name: str) -> int:
    digest = hashlib.blake2b(f"{seed}\n{name}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")


def build(config: ModelConfig, vocab_size: int, seed: int) -> Transformer:
    """Returns a model in fp32 with the initial weights of `seed`."""
    model = Transformer(config, vocab_size)
    initialise(model, seed)
    return model


def parameter_counts(config: ModelConfig, vocab_size: int) -> Mapping[str, int]:
    """Returns the number of weights by part: `embedding`, `head`, `layers`, `norm` and their sum `total`."""
    attention = config.dim * config.head_dim * (2 * config.heads + 2 * config.kv_heads)
    layers = config.layers * (attention + 3 * config.dim * config.ffn_dim + 2 * config.dim)
    embedding = vocab_size * config.dim
    head = 0 if config.tie_embeddings else embedding
    total = embedding + head + layers + config.dim
    return {"embedding": embedding, "head": head, "layers": layers, "norm": config.dim, "total": total}
