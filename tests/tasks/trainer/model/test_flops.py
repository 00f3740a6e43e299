"""FLOPs per token are those that torch counts in a step; a peak is known by the name of the GPU or not at all."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tasks.trainer.config import ModelConfig
from tasks.trainer.model.shape import Shape, attended_length, flops_per_token
from tasks.trainer.model.transformer import build
from tasks.trainer.planning.config import peak_flops


@pytest.mark.parametrize("tied", [True, False])
def test_the_flops_of_a_token_are_those_that_torch_counts_forward_and_backward(tied: bool) -> None:
    config, vocab, length = ModelConfig(layers=2, dim=32, heads=4, kv_heads=2, tie_embeddings=tied), 96, 24
    model = build(config, vocab, 0)
    tokens = torch.randint(vocab, (3, length))
    # Of the fused kernel on a CPU torch counts nothing.
    with FlopCounterMode(display=False) as counted, sdpa_kernel(SDPBackend.MATH):
        model(tokens, torch.zeros_like(tokens)).sum().backward()
    assert counted.get_total_flops() == flops_per_token(Shape.of(config, vocab), length) * tokens.numel()


def test_attention_within_documents_needs_less_than_the_convention_counts() -> None:
    assert attended_length([2048]) == 1024.5
    assert attended_length([700, 700, 648]) == pytest.approx(342.2, abs=0.1)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A10G", 70e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA B200", 2250e12),
        ("NVIDIA GB200", 2500e12),
        ("NVIDIA H200 NVL", 835e12),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA GeForce RTX 3060", None),
        ("CPU", None),
    ],
)
def test_a_peak_is_known_by_the_words_of_the_name(name: str, peak: float | None) -> None:
    assert peak_flops(name) == peak
