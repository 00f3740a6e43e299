"""Shape of a decoder: its number of weights, its FLOPs per token, and shapes from 1 M to 70 B weights by name.

`ModelShape` is slightly more general than `ModelConfig`, so that the same formulas apply to published models. FLOPs are
those of model FLOPs utilization (MFU; Chowdhery et al. 2022, PaLM, arXiv 2204.02311, appendix B): the share of the
devices' peak rate that the same tokens per second would need without any overhead. The forward and backward pass count;
recomputation does not:

    FLOPs per token = 6 * N + 12 * layers * width of attention * attended length

N is the number of weights that a token is multiplied with: those of the layers and of the output head, without the
embedding look-up. By convention the attended length is the sequence length even if attention is causal, as in the
figures of PaLM and llm-foundry, so that results are comparable. `attended_length` returns the smaller length that
causal attention within documents needs. Layers with a window attend to at most that many keys.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tasks.trainer.model.config import ModelConfig

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

LOSS_ROWS = {"cpu": 512, "cuda": 4096}
"""Positions whose logits exist at the same time while the loss is computed, by type of device: a GPU needs larger
matrix products and fewer kernels, and has the memory for them."""


@dataclass(frozen=True)
class ModelShape:
    """Dimensions of a decoder.

    Args:
        layers: blocks of attention and feed-forward.
        dim: width of the residual stream.
        heads: query heads.
        kv_heads: key and value heads.
        head_dim: width of a head.
        ffn_dim: inner width of the feed-forward layer.
        vocab_size: rows of the embedding: tokens of the vocabulary, and padding if there is any.
        tied: whether embedding and output head are one matrix.
        gated: whether the feed-forward layer has three matrices (SwiGLU), else two.
        biases: whether every matrix of the layers has a bias.
        qkv_biases: whether queries, keys and values have a bias, if not all have.
        output_bias: likewise, of the attention's output.
        sinks: whether every head has a sink.
        qk_norm: whether queries and keys have a norm, with the width of a head.
        qk_norm_whole: whether it has the width of all heads.
        experts: number of gated experts in place of the feed-forward layer; 0: none.
        active_experts: of them, those that compute a token.
        expert_dim: inner width of an expert.
        shared_dim: inner width of a gated layer beside the experts.
        expert_biases: whether the router and the matrices of experts have biases.
        positions: learned positions; 0 for rotary positions.
        norm_vectors: weight vectors per norm: 1 for RMSNorm, 2 for LayerNorm, 0 for a norm without weights.
        layer_norms: norms of `dim` per layer.
        window: keys that a query attends to in layers with a window.
        windowed_layers: layers with a window.
        attention_cap: whether scores have a cap.
    """

    layers: int
    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_dim: int
    vocab_size: int
    tied: bool
    gated: bool = True
    biases: bool = False
    qkv_biases: bool = False
    output_bias: bool = False
    sinks: bool = False
    qk_norm: bool = False
    qk_norm_whole: bool = False
    experts: int = 0
    active_experts: int = 0
    expert_dim: int = 0
    shared_dim: int = 0
    expert_biases: bool = False
    positions: int = 0
    norm_vectors: int = 1
    layer_norms: int = 2
    window: int = 0
    windowed_layers: int = 0
    attention_cap: bool = False

    @classmethod
    def of(cls, model: ModelConfig, vocab_size: int) -> "ModelShape":
        """Returns the shape of a configured model."""
        sizes = (model.layers, model.dim, model.heads, model.kv_heads, model.head_dim, model.ffn_dim)
        rows = model.embedding_rows(vocab_size)
        mixture: dict[str, Any] = {}
        if experts := model.experts:
            mixture = {"experts": experts.count, "active_experts": experts.per_token, "expert_dim": experts.width}
            mixture |= {"shared_dim": experts.shared_width, "expert_biases": experts.bias}
        return cls(
            *sizes,
            rows,
            model.tie_embeddings,
            gated=model.gated,
            qkv_biases=model.qkv_bias,
            output_bias=model.output_bias,
            sinks=model.attention_sinks,
            qk_norm=bool(model.qk_norm),
            qk_norm_whole=model.qk_norm == "projection",
            norm_vectors=0 if model.norm_weight == "none" else 1,
            layer_norms=4 if model.norm_place == "both" else 2,
            window=model.window,
            windowed_layers=sum(model.window_of(layer) > 0 for layer in range(model.layers)),
            attention_cap=model.attention_cap > 0,
            **mixture,
        )

    @property
    def layer_matrices(self) -> int:
        """Weights in the matrices of one layer, of all its experts."""
        return self.layer_matmul_weights + self.expert_matrices - self.active_experts * 3 * self.dim * self.expert_dim

    @property
    def expert_matrices(self) -> int:
        """Weights in the matrices of all experts of one layer."""
        return self.experts * 3 * self.dim * self.expert_dim

    @property
    def layer_matmul_weights(self) -> int:
        """Weights in the matrices of one layer that a token is multiplied with."""
        attention = self.dim * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        if self.experts:
            return attention + self.dim * (self.experts + 3 * self.inner_dim)
        return attention + (3 if self.gated else 2) * self.dim * self.ffn_dim

    @property
    def inner_dim(self) -> int:
        """Inner width of the feed-forward part of a layer for one token."""
        return self.active_experts * self.expert_dim + self.shared_dim if self.experts else self.ffn_dim

    @property
    def matmul_weights(self) -> int:
        """Weights that a token is multiplied with: the matrices of the layers without idle experts, and the head."""
        return self.layers * self.layer_matmul_weights + self.vocab_size * self.dim

    @property
    def weights(self) -> Mapping[str, int]:
        """Weights by part: `embedding`, `head`, `layers`, `norm` (the last one), and their sum `total`."""
        qkv = self.head_dim * (self.heads + 2 * self.kv_heads)
        others = 2 * self.dim + self.ffn_dim * (2 if self.gated else 1)
        vectors = (self.biases or self.qkv_biases) * qkv + self.biases * others
        vectors += self.output_bias * self.dim + self.sinks * self.heads
        norm = self.norm_vectors * self.dim
        heads = self.heads + self.kv_heads if self.qk_norm_whole else 2
        vectors += self.layer_norms * norm + self.qk_norm * self.norm_vectors * heads * self.head_dim
        vectors += self.expert_biases * self.experts * (1 + self.dim + 2 * self.expert_dim)
        layers = self.layers * (self.layer_matrices + vectors)
        embedding = (self.vocab_size + self.positions) * self.dim
        head = 0 if self.tied else self.vocab_size * self.dim
        total = embedding + head + layers + norm
        return {"embedding": embedding, "head": head, "layers": layers, "norm": norm, "total": total}


def flops_per_token(shape: ModelShape, attended: float) -> float:
    """Returns the FLOPs of forward and backward pass per token.

    Args:
        shape: of the model.
        attended: mean number of keys that a query is compared with; the sequence length by convention.
    """
    whole, windowed = shape.layers - shape.windowed_layers, shape.windowed_layers
    keys = whole * attended + windowed * min(attended, shape.window)
    return 6 * shape.matmul_weights + 12 * shape.heads * shape.head_dim * keys


def attended_length(lengths: "ArrayLike") -> float:
    """Returns the mean number of keys of a query under causal attention within documents.

    Args:
        lengths: tokens of each document's run in a sequence, integers of shape (runs,); their sum is above 0.

    >>> attended_length([4]), attended_length([2, 2])
    (2.5, 1.5)
    """
    import numpy as np  # imported here, because DAG files use shapes without NumPy

    runs = np.asarray(lengths, dtype=np.float64)
    return float((runs * (runs + 1)).sum() / 2 / runs.sum())


@dataclass(frozen=True)
class Size:
    """A shape and a vocabulary size whose number of weights is within 5 % of the name's."""

    model: ModelConfig
    vocab_size: int


SIZES = {
    "1m": Size(ModelConfig(layers=4, dim=112, heads=4, kv_heads=2), 4096),
    "10m": Size(ModelConfig(layers=6, dim=320, heads=5, kv_heads=5), 8192),
    "30m": Size(ModelConfig(layers=8, dim=512, heads=8, kv_heads=8), 8192),
    "125m": Size(ModelConfig(layers=12, dim=768, heads=12, kv_heads=12), 50304),
    "350m": Size(ModelConfig(layers=24, dim=1024, heads=16, kv_heads=16), 50304),
    "760m": Size(ModelConfig(layers=24, dim=1536, heads=16, kv_heads=16), 50304),
    "1.3b": Size(ModelConfig(layers=24, dim=2048, heads=16, kv_heads=16), 50304),
    "3b": Size(ModelConfig(layers=26, dim=3072, heads=24, kv_heads=8), 128256),
    "8b": Size(
        ModelConfig(
            layers=32, dim=4096, heads=32, kv_heads=8, ffn_multiple=3.5, rope_theta=500_000.0, tie_embeddings=False
        ),
        128256,
    ),
    "70b": Size(
        ModelConfig(
            layers=80, dim=8192, heads=64, kv_heads=8, ffn_multiple=3.5, rope_theta=500_000.0, tie_embeddings=False
        ),
        128256,
    ),
}
