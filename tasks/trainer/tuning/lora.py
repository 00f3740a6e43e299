"""Low-rank adapters (Hu et al. 2021, arXiv 2106.09685) on the projections of a frozen model, which may be in 4 bits.

The 4 bits are NormalFloat of QLoRA (Dettmers et al. 2023, arXiv 2305.14314), in plain torch.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tasks.trainer.config import LoraConfig
from tasks.trainer.model.transformer import Transformer

BLOCK = 64
CHUNK = 1 << 20
"""Weights that are quantized at a time, which bounds the memory for it; a multiple of BLOCK."""
VALUES = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""Quantiles of the normal distribution with an exact zero (appendix E of QLoRA)."""


class LoraLinear(nn.Module):
    """A frozen projection with an adapter: W x + scale B A x.

    Args:
        base: the frozen projection, without trainable parameters.
        shape: (outputs, inputs) of the projection.
        config: rank and alpha.
    """

    def __init__(self, base: nn.Module, shape: torch.Size, config: LoraConfig) -> None:
        super().__init__()
        self.base, self.scale = base, scale_of(config)
        self.lora_a = nn.Parameter(torch.zeros(config.rank, shape[1]))
        self.lora_b = nn.Parameter(torch.zeros(shape[0], config.rank))
        self.active = True
        """Whether the adapter is applied; otherwise the layer computes the base."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps float [..., inputs] to [..., outputs]."""
        out: Tensor = self.base(x)
        return out + self.scale * F.linear(F.linear(x, self.lora_a), self.lora_b) if self.active else out


def scale_of(config: LoraConfig) -> float:
    """Returns the factor of B A."""
    return config.alpha / config.rank


def attach(model: Transformer, config: LoraConfig) -> None:
    """Freezes a model and adds adapters; values of adapters and of weights in 4 bits are undefined until `fill`.

    With `base = "nf4"` all projections of the layers are in 4 bits, including those without an adapter; embedding,
    norms, biases and head are not.
    """
    freeze(model)
    for parent in list(model.layers.modules()):
        for child, linear in list(parent.named_children()):
            if not isinstance(linear, nn.Linear):
                continue
            shape = linear.weight.shape
            base = Nf4Linear(shape, linear.bias) if config.base == "nf4" else linear
            if child in config.targets:
                setattr(parent, child, LoraLinear(base, shape, config))
            elif base is not linear:
                setattr(parent, child, base)


def adapters(model: nn.Module) -> dict[str, LoraLinear]:
    """Returns the adapted projections of a model by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLinear)}


def freeze(module: nn.Module) -> None:
    """Replaces all parameters of a module and its submodules by non-persistent buffers of the same names."""
    for submodule in list(module.modules()):
        for name, weight in list(submodule._parameters.items()):
            if weight is not None:
                del submodule._parameters[name]
                submodule.register_buffer(name, weight.detach(), persistent=False)


class Nf4Linear(nn.Module):
    """A frozen projection in 4 bits, except for its bias; gradients are computed only for its input.

    Its weight is undefined until `codes` and `scales` have the values of `encoded`.

    Args:
        shape: (outputs, inputs).
        bias: float [outputs]; None: no bias.
    """

    def __init__(self, shape: torch.Size, bias: Tensor | None = None) -> None:
        super().__init__()
        self.shape = shape
        codes = torch.empty(-(-shape.numel() // 2), dtype=torch.uint8)
        # As bytes, because FSDP casts floats to the dtype of the computation.
        scales = torch.empty(-(-shape.numel() // BLOCK) * 4, dtype=torch.uint8)
        self.register_buffer("codes", codes, persistent=False)
        self.register_buffer("scales", scales, persistent=False)
        self.register_buffer("bias", None if bias is None else bias.detach(), persistent=False)

    @staticmethod
    def encoded(weight: Tensor) -> dict[str, Tensor]:
        """Returns the buffers `codes` and `scales` of a weight, uint8 [bytes] each."""
        codes, scales = quantize(weight)
        return {"codes": codes, "scales": scales.view(torch.uint8)}

    def forward(self, x: Tensor) -> Tensor:
        """Maps float [..., inputs] to [..., outputs]."""
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        out: Tensor = _Nf4Product.apply(x, self.codes, self.scales, self.shape)  # type: ignore[no-untyped-call]
        return out + self.bias.to(out.dtype) if isinstance(self.bias, Tensor) else out


class _Nf4Product(torch.autograd.Function):
    """x W.T, with W dequantized in both passes, so that it is not stored between them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, codes: Tensor, scales: Tensor, shape: torch.Size) -> Tensor:
        ctx.save_for_backward(codes, scales)
        ctx.shape = shape
        return F.linear(x, dequantize(codes, scales.view(torch.float32), shape).to(x.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        codes, scales = ctx.saved_tensors
        weight = dequantize(codes, scales.view(torch.float32), ctx.shape)
        return grads[0] @ weight.to(grads[0].dtype), None, None, None


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantizes a tensor to NF4; returns codes and scales.

    Blocks of 64 consecutive weights are divided by their largest absolute value, and each is rounded to the nearest of
    16 values. With one float32 per block this takes 4.5 bits per weight; the scales are not quantized further.

    Args:
        weight: float, any shape.

    Returns:
        codes: uint8 [ceil(elements / 2)], two codes per byte, the first in the upper four bits.
        scales: float32 [ceil(elements / 64)], largest absolute value of each block.
    """
    chunks = [_quantize(chunk) for chunk in torch.split(weight.detach().flatten(), CHUNK)]
    codes, scales = (torch.cat(parts) for parts in zip(*chunks, strict=True))
    return codes, scales


def _quantize(flat: Tensor) -> tuple[Tensor, Tensor]:
    blocks = F.pad(flat.float(), (0, -len(flat) % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(dim=1)
    values = torch.tensor(VALUES, device=flat.device)
    normed = blocks / torch.where(scales > 0, scales, 1)[:, None]
    codes = torch.bucketize(normed, (values[1:] + values[:-1]) / 2, out_int32=True).to(torch.uint8).flatten()
    codes = codes[: len(flat) + len(flat) % 2].view(-1, 2)
    return (codes[:, 0] << 4) | codes[:, 1], scales


def dequantize(codes: Tensor, scales: Tensor, shape: torch.Size) -> Tensor:
    """Reverses `quantize`; returns float32 of `shape`, with the rounding error of NF4."""
    # Both values of a byte are looked up at once, so that the index takes 2 bytes per weight.
    flat = _pairs_of_values(codes.device)[codes.int()].flatten()[: shape.numel()]
    whole = len(flat) // BLOCK * BLOCK
    flat[:whole].view(-1, BLOCK).mul_(scales[: whole // BLOCK, None])
    flat[whole:].mul_(scales[-1])
    return flat.view(shape)


def _pairs_of_values(device: torch.device) -> Tensor:
    """Returns the two values of each byte of codes, float32 [256, 2]."""
    values, codes = torch.tensor(VALUES, device=device), torch.arange(256, device=device)
    return torch.stack((values[codes >> 4], values[codes & 15]), dim=1)
