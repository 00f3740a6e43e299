"""Rotary positions (Su et al. 2021, arXiv 2104.09864), and their scaling for sequences longer than those of a training.

With S the factor, L the original length and w = theta^(-2 i / head_dim) the angle by which pair i turns from one
position to the next, a pair turns r = L w / 2 pi times over the original length. Scaling replaces w:

linear  w / S: positions are interpolated (Chen et al. 2023, arXiv 2306.15595).
llama3  w where r >= high_freq_factor, w / S where r <= low_freq_factor, and between them the mean of both, weighted
        linearly in r (Llama 3.1: `apply_scaling` in meta-llama/llama-models, models/llama3/model.py).
yarn    the same, weighted linearly in i between the pairs that turn beta_fast and beta_slow times, rounded outwards;
        and queries and keys are multiplied by 0.1 ln S + 1 (Peng et al. 2023, arXiv 2309.00071, section 3; rounding
        as in the authors' code).
"""

import math

import torch
from torch import Tensor

from tasks.trainer.config import Llama3Rope, ModelConfig, YarnRope


def rotary(positions: Tensor, config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Returns cosine and sine, float32 [batch, 1, sequence, head_dim / 2], of the rotary angles.

    Args:
        positions: int64 [batch, sequence].
        config: has the width of a head, the base of the wavelengths and their scaling.
    """
    angles = positions.float()[:, None, :, None] * frequencies(config, positions.device)
    cos, sin = angles.cos(), angles.sin()
    if isinstance(config.rope_scaling, YarnRope):
        size = 0.1 * math.log(config.rope_scaling.factor) + 1
        return cos * size, sin * size
    return cos, sin


def frequencies(config: ModelConfig, device: torch.device) -> Tensor:
    """Returns the angle in radians by which each pair turns per position, float32 [head_dim / 2]."""
    head_dim, scaling = config.head_dim, config.rope_scaling
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    plain = config.rope_theta**-exponents
    if scaling is None:
        return plain
    if isinstance(scaling, Llama3Rope):
        turns = scaling.original_length * plain / (2 * math.pi)
        kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    elif isinstance(scaling, YarnRope):
        first = math.floor(_pair(config, scaling.original_length, scaling.beta_fast))
        last = math.ceil(_pair(config, scaling.original_length, scaling.beta_slow))
        first, last = max(first, 0), min(last, head_dim - 1)
        kept = 1 - (torch.arange(head_dim // 2, device=device) - first) / max(last - first, 1e-3)
    else:
        return plain / scaling.factor
    kept = kept.clamp(0, 1)
    return kept * plain + (1 - kept) * plain / scaling.factor


def _pair(config: ModelConfig, length: int, turns: float) -> float:
    """Returns the number of the pair, not rounded, that turns so many times over `length` positions."""
    return config.head_dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(config.rope_theta))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns the pairs (first half, second half) of the last dimension of `x` [batch, heads, sequence, head_dim]."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
