"""Shapes of models from 1 M to 70 B weights, by name: to copy into `[train.model]`, and to measure with.

350m, 760m and 1.3b have the widths and depths of the models that llm-foundry publishes throughput of (MPT; there with a
feed-forward layer of four times the width instead of SwiGLU of 8/3); 8b and 70b are those of Llama 3 (arXiv 2407.21783,
table 3).
"""

from dataclasses import dataclass

from tasks.trainer.config import ModelConfig


@dataclass(frozen=True)
class Size:
    """A shape, and the tokens of the vocabulary with which it has the weights that its name says, up to 5 %."""

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
