"""Weights in 4 bits: NormalFloat of QLoRA (Dettmers et al. 2023, arXiv 2305.14314), in plain torch.

Blocks of 64 consecutive weights are divided by their largest absolute value, and each is rounded to the nearest of 16
values. With one float32 per block that is 4.5 bits per weight; the scales are not quantised again.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BLOCK = 64
VALUES = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""Quantiles of the normal distribution, with an exact zero (appendix E of the paper)."""


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Returns codes and scales of a tensor, which dequantise to it with the rounding error of NF4.

    Args:
        weight: float, any shape.

    Returns:
        codes: uint8 [ceil(elements / 2)], two codes a byte, the first one in the upper four bits.
        scales: float32 [ceil(elements / 64)], largest absolute value of each block.
    """
    flat = weight.detach().float().flatten()
    blocks = F.pad(flat, (0, -len(flat) % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(dim=1)
    values = torch.tensor(VALUES, device=flat.device)
    normed = blocks / torch.where(scales > 0, scales, 1)[:, None]
    codes = torch.bucketize(normed, (values[1:] + values[:-1]) / 2).to(torch.uint8).flatten()
    codes = codes[: len(flat) + len(flat) % 2].view(-1, 2)
    return (codes[:, 0] << 4) | codes[:, 1], scales


def dequantise(codes: Tensor, scales: Tensor, shape: torch.Size) -> Tensor:
    """Returns the tensor that `quantise` was given, float32 of `shape`, rounded."""
    values = torch.tensor(VALUES, device=codes.device)
    flat = values[torch.stack((codes >> 4, codes & 15), dim=1).flatten().long()]
    return (flat * scales.repeat_interleave(BLOCK)[: len(flat)])[: shape.numel()].view(shape)


class _Product(torch.autograd.Function):
    """x W.T, with W made from its codes in both passes, so that no pass keeps it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, codes: Tensor, scales: Tensor, shape: torch.Size) -> Tensor:
        ctx.save_for_backward(codes, scales)
        ctx.shape = shape
        return F.linear(x, dequantise(codes, scales, shape).to(x.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        codes, scales = ctx.saved_tensors
        return grads[0] @ dequantise(codes, scales, ctx.shape).to(grads[0].dtype), None, None, None


class Nf4Linear(nn.Module):
    """A frozen projection without bias, kept in 4 bits; gradients flow through it, and none to it.

    Args:
        weight: float [outputs, inputs].
    """

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.shape = weight.shape
        codes, scales = quantise(weight)
        self.register_buffer("codes", codes, persistent=False)
        self.register_buffer("scales", scales, persistent=False)

    def dequantised(self) -> Tensor:
        """Returns the weight as it counts, float32 [outputs, inputs]."""
        assert isinstance(self.codes, Tensor)
        assert isinstance(self.scales, Tensor)
        return dequantise(self.codes, self.scales, self.shape)

    def forward(self, x: Tensor) -> Tensor:
        """Maps float [..., inputs] to [..., outputs]."""
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        out: Tensor = _Product.apply(x, self.codes, self.scales, self.shape)  # type: ignore[no-untyped-call]
        return out
