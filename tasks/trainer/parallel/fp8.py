"""Linear layers that multiply in fp8, with one scale per tensor that is computed anew for each product.

As in float8 training of torchao and torchtitan ("tensorwise", dynamic): activations and weights are rounded to e4m3,
gradients of outputs to e5m2, which has more range and less precision (Micikevicius et al. 2022, arXiv 2209.05433). The
three products of a layer - output, gradient of the input, gradient of the weight - are in fp8 with sums in fp32;
weights, their gradients and everything else keep their dtype.
"""

from typing import Any

import torch
from torch import Tensor, nn

from tasks.core.errors import InputError

MULTIPLE = 16
"""Both dimensions of a product in fp8, and what it sums over, are multiples of it."""
_LEAST = 1e-12
"""Scales are finite for tensors of zeros, too."""


def use_fp8(layers: nn.Module, device: torch.device) -> None:
    """Makes the linear layers within `layers` multiply in fp8 where their dimensions allow it; weights stay.

    Args:
        layers: the hidden layers of a model, sharded or not. Embedding and head are not among them: they stay as they
            are.
        device: where the model will compute.

    Raises:
        InputError: the GPU has no products in fp8.
    """
    check_device(device)
    for module in layers.modules():
        if type(module) is nn.Linear and module.bias is None and not any(n % MULTIPLE for n in module.weight.shape):
            # In place, as fully_shard does: who holds the module or its weight (FSDP, an optimizer) holds it still.
            module.__class__ = Fp8Linear


def check_device(device: torch.device) -> None:
    """Raises InputError where the GPU has no products in fp8: before SM 8.9. On a CPU torch computes them slowly."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 9):
        major, minor = torch.cuda.get_device_capability(device)
        raise InputError(
            f"{torch.cuda.get_device_name(device)} (SM {major}.{minor}) cannot multiply in fp8",
            "train in bf16, or on a GPU from SM 8.9 (Ada, Hopper, Blackwell)",
        )


class Fp8Linear(nn.Linear):
    """A linear layer without bias; the number of its input's rows is a multiple of MULTIPLE."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps float [..., in_features] to [..., out_features] of the same dtype, under autocast of that of autocast.

        Raises:
            InputError: the number of rows is not a multiple of MULTIPLE.
        """
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        rows = x.numel() // x.shape[-1]
        if rows % MULTIPLE:
            raise InputError(
                f"{rows} positions of a microbatch cannot be multiplied in fp8",
                f"make microbatch x seq_len (over the ranks that share it) a multiple of {MULTIPLE}",
            )
        out: Tensor = _Product.apply(x.flatten(0, -2), self.weight)  # type: ignore[no-untyped-call]
        return out.unflatten(0, x.shape[:-1])  # type: ignore[no-untyped-call, no-any-return]


class _Product(torch.autograd.Function):
    """x @ weight.T of [rows, in] and [out, in]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        narrow, scale = quantised(x, torch.float8_e4m3fn)
        # The weight itself and not its rounded copy: under FSDP the gathered weight is freed until the backward pass.
        ctx.save_for_backward(narrow, scale, weight)
        ctx.dtype = x.dtype
        other, other_scale = quantised(weight, torch.float8_e4m3fn)
        # Sums of outputs may be rounded on the way, which is faster; those of gradients are not (as in torchao).
        return _multiplied(narrow, scale, other.T, other_scale, x.dtype, fast=True)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, scale, weight = ctx.saved_tensors
        grad, grad_scale = quantised(grads[0], torch.float8_e5m2)
        other, other_scale = quantised(weight, torch.float8_e4m3fn)
        grad_x = _multiplied(grad, grad_scale, _column_major(other), other_scale, ctx.dtype)
        grad_weight = _multiplied(grad.T.contiguous(), grad_scale, _column_major(x), scale, weight.dtype)
        return grad_x, grad_weight


def quantised(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Returns `x` in fp8, scaled so that its largest value is the largest of `dtype`, and what undoes the scaling.

    Args:
        x: float [rows, columns].
        dtype: float8_e4m3fn or float8_e5m2.

    Returns:
        [rows, columns] of `dtype`, contiguous, and float32 scalar.
    """
    largest = torch.finfo(dtype).max
    scale = largest / x.abs().amax().float().clamp(min=_LEAST)
    narrow = (x.float() * scale).clamp(-largest, largest).to(dtype)
    return narrow.contiguous(), scale.reciprocal()


def _multiplied(
    a: Tensor, scale_a: Tensor, b: Tensor, scale_b: Tensor, dtype: torch.dtype, fast: bool = False
) -> Tensor:
    """Returns a @ b of [rows, k], row-major, and [k, columns], column-major: what tensor cores read."""
    out: Tensor = torch._scaled_mm(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=dtype, use_fast_accum=fast)
    return out


def _column_major(x: Tensor) -> Tensor:
    return x.T.contiguous().T
