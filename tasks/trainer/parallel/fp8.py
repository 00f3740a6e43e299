"""Linear layers with fp8 matrix products, and dynamic scales per tensor.

As in the float8 training of torchao and torchtitan ("tensorwise", dynamic): activations and weights are rounded to
e4m3, gradients of outputs to e5m2, which has more range and less precision (Micikevicius et al. 2022, arXiv
2209.05433). The three products of a layer - output, gradient of the input, gradient of the weight - are in fp8 with
sums in fp32; weights, their gradients and all other tensors keep their dtype.
"""

from typing import Any

import torch
from torch import Tensor, nn

from tasks.core.errors import InputError
from tasks.trainer.parallel.fit import FP8_MULTIPLE
from tasks.trainer.parallel.start import check_fp8, device_of
from tasks.trainer.place import Layout

_LEAST = 1e-12
"""Lower bound of the largest value, so that the scale of a zero tensor is finite."""


def use_fp8(layers: nn.Module, device: torch.device) -> None:
    """Switches the linear layers in `layers` to fp8 products if their dimensions allow it; weights are unchanged.

    Args:
        layers: the hidden layers of a model, sharded or not, without embedding and head.
        device: device of the model.

    Raises:
        InputError: the GPU does not support fp8 products.
    """
    if device.type == "cuda":  # on a CPU torch computes them slowly
        check_fp8(device_of(device), Layout())
    for module in layers.modules():
        if isinstance(module, nn.Linear) and not any(n % FP8_MULTIPLE for n in module.weight.shape):
            # In place, as fully_shard does, so that references to the module or its weight (FSDP, optimizer) remain
            # valid.
            module.__class__ = Fp8Linear


class Fp8Linear(nn.Linear):
    """A linear layer whose input has a multiple of FP8_MULTIPLE rows; a bias is added in the dtype of the output."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps float [..., in_features] to [..., out_features] of the same dtype, or of the autocast dtype.

        Raises:
            InputError: the number of rows is not a multiple of FP8_MULTIPLE.
        """
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        rows = x.numel() // x.shape[-1]
        if rows % FP8_MULTIPLE:
            raise InputError(
                f"{rows} positions of a microbatch cannot be multiplied in fp8",
                f"make microbatch x seq_len (over the ranks that share it) a multiple of {FP8_MULTIPLE}",
            )
        out: Tensor = _Product.apply(x.flatten(0, -2), self.weight)  # type: ignore[no-untyped-call]
        if self.bias is not None:
            out = out + self.bias.to(out.dtype)
        return out.unflatten(0, x.shape[:-1])  # type: ignore[no-untyped-call, no-any-return]


class _Product(torch.autograd.Function):
    """x @ weight.T of [rows, in] and [out, in]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        narrow, scale = quantize(x, torch.float8_e4m3fn)
        factor = scale_of(weight, torch.float8_e4m3fn)
        # The weight and not its rounded copy, because FSDP frees the gathered weight until the backward pass. There the
        # copy is in another order, and rounded while it is reordered, without another search for the largest value.
        ctx.save_for_backward(narrow, scale, weight, factor)
        ctx.dtype = x.dtype
        other, other_scale = quantize(weight, torch.float8_e4m3fn, factor)
        # Fast accumulation rounds intermediate sums; it is used for outputs, but not for gradients (as in torchao).
        return _multiply(narrow, scale, other.T, other_scale, x.dtype, fast=True)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, scale, weight, factor = ctx.saved_tensors
        grad, grad_scale = quantize(grads[0], torch.float8_e5m2)
        other, other_scale = quantize(weight, torch.float8_e4m3fn, factor)
        grad_x = _multiply(grad, grad_scale, _column_major(other), other_scale, ctx.dtype)
        grad_weight = _multiply(grad.T.contiguous(), grad_scale, _column_major(x), scale, weight.dtype)
        return grad_x, grad_weight


def scale_of(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the factor, float32 scalar, that makes the largest value of a float tensor the largest of `dtype`."""
    return torch.finfo(dtype).max / x.abs().amax().float().clamp(min=_LEAST)


def quantize(x: Tensor, dtype: torch.dtype, scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Returns `x` in fp8, scaled so that its largest value is the largest of `dtype`, and the inverse scale.

    Args:
        x: float [rows, columns].
        dtype: float8_e4m3fn or float8_e5m2.
        scale: `scale_of` it, if it is known.

    Returns:
        [rows, columns] of `dtype`, contiguous, and float32 scalar.
    """
    largest = torch.finfo(dtype).max
    scale = scale_of(x, dtype) if scale is None else scale
    narrow = (x.float() * scale).clamp(-largest, largest).to(dtype)
    return narrow.contiguous(), scale.reciprocal()


def _multiply(a: Tensor, scale_a: Tensor, b: Tensor, scale_b: Tensor, dtype: torch.dtype, fast: bool = False) -> Tensor:
    """Returns a @ b for row-major [rows, k] and column-major [k, columns], as tensor cores require."""
    out: Tensor = torch._scaled_mm(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=dtype, use_fast_accum=fast)
    return out


def _column_major(x: Tensor) -> Tensor:
    return x.T.contiguous().T
