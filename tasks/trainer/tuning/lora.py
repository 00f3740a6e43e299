"""Low-rank adapters (Hu et al. 2021, arXiv 2106.09685) on the projections of a frozen model, which may be in 4 bits.

The 4 bits are NormalFloat of QLoRA (Dettmers et al. 2023, arXiv 2305.14314), in plain torch.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tasks.trainer.config import LoraConfig
from tasks.trainer.model.transformer import Transformer, initial_weight

BLOCK = 64
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
        self.base, self.scale = base, config.alpha / config.rank
        self.lora_a = nn.Parameter(torch.zeros(config.rank, shape[1]))
        self.lora_b = nn.Parameter(torch.zeros(shape[0], config.rank))
        self.active = True
        """Whether the adapter is applied; otherwise the layer computes the base."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps float [..., inputs] to [..., outputs]."""
        out: Tensor = self.base(x)
        return out + self.scale * F.linear(F.linear(x, self.lora_a), self.lora_b) if self.active else out

    def merged(self) -> Tensor:
        """Returns W + scale B A, float32 [outputs, inputs]."""
        return _weight_of(self.base) + self.scale * (self.lora_b.detach() @ self.lora_a.detach())


def attach(model: Transformer, config: LoraConfig, seed: int) -> None:
    """Freezes a model and adds adapters, which have no effect initially: A is random from `seed`, B is zero.

    With `base = "nf4"` all projections of the layers are quantized to 4 bits, including those without an adapter;
    embedding, norms and head are not.
    """
    freeze(model)
    for name, parent in list(model.layers.named_modules()):
        for child, linear in list(parent.named_children()):
            if not isinstance(linear, nn.Linear):
                continue
            shape = linear.weight.shape
            base = Nf4Linear(linear.weight, linear.bias) if config.base == "nf4" else linear
            if child in config.targets:
                adapted = LoraLinear(base, shape, config)
                own = f"layers.{name}.{child}.lora_a"
                with torch.no_grad():
                    adapted.lora_a.copy_(initial_weight(model.config, own, adapted.lora_a.shape, seed))
                setattr(parent, child, adapted)
            elif base is not linear:
                setattr(parent, child, base)


def adapters(model: nn.Module) -> list[LoraLinear]:
    """Returns the adapted projections of a model."""
    return [module for module in model.modules() if isinstance(module, LoraLinear)]


def merged_weights(model: Transformer) -> dict[str, Tensor]:
    """Returns the weights of an equivalent plain model, by the names of `Transformer`."""
    weights = {}
    for name, module in model.named_modules():
        if isinstance(module, LoraLinear):
            weights[f"{name}.weight"] = module.merged()
            weights |= _bias_of(module.base, name)
        elif isinstance(module, Nf4Linear) and not name.endswith(".base"):
            weights[f"{name}.weight"] = module.dequantized()
            weights |= _bias_of(module, name)
        elif not name.endswith(".base"):
            tensors = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
            weights |= {f"{name}.{own}": weight.detach() for own, weight in tensors.items()}
    return {name: weight.contiguous() for name, weight in sorted(weights.items())}


def _bias_of(base: nn.Module, name: str) -> dict[str, Tensor]:
    """Returns the bias of a frozen projection by its name in the model; {} if it has none."""
    bias = base.bias
    return {f"{name}.bias": bias.detach()} if isinstance(bias, Tensor) else {}


def _weight_of(base: nn.Module) -> Tensor:
    if isinstance(base, Nf4Linear):
        return base.dequantized()
    weight = base.weight
    assert isinstance(weight, Tensor)
    return weight.detach()


def freeze(module: nn.Module) -> None:
    """Replaces all parameters of a module and its submodules by non-persistent buffers of the same names."""
    for submodule in list(module.modules()):
        for name, weight in list(submodule._parameters.items()):
            if weight is not None:
                del submodule._parameters[name]
                submodule.register_buffer(name, weight.detach(), persistent=False)


class Nf4Linear(nn.Module):
    """A frozen projection, stored in 4 bits except for its bias; gradients are computed only for its input.

    Args:
        weight: float [outputs, inputs].
        bias: float [outputs]; None: no bias.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.shape = weight.shape
        self.register_buffer("bias", None if bias is None else bias.detach(), persistent=False)
        codes, scales = quantize(weight)
        self.register_buffer("codes", codes, persistent=False)
        self.register_buffer("scales", scales, persistent=False)

    def dequantized(self) -> Tensor:
        """Returns the dequantized weight, float32 [outputs, inputs]."""
        assert isinstance(self.codes, Tensor)
        assert isinstance(self.scales, Tensor)
        return dequantize(self.codes, self.scales, self.shape)

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
        return F.linear(x, dequantize(codes, scales, shape).to(x.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        codes, scales = ctx.saved_tensors
        return grads[0] @ dequantize(codes, scales, ctx.shape).to(grads[0].dtype), None, None, None


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
    flat = weight.detach().float().flatten()
    blocks = F.pad(flat, (0, -len(flat) % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(dim=1)
    values = torch.tensor(VALUES, device=flat.device)
    normed = blocks / torch.where(scales > 0, scales, 1)[:, None]
    codes = torch.bucketize(normed, (values[1:] + values[:-1]) / 2).to(torch.uint8).flatten()
    codes = codes[: len(flat) + len(flat) % 2].view(-1, 2)
    return (codes[:, 0] << 4) | codes[:, 1], scales


def dequantize(codes: Tensor, scales: Tensor, shape: torch.Size) -> Tensor:
    """Reverses `quantize`; returns float32 of `shape`, with the rounding error of NF4."""
    values = torch.tensor(VALUES, device=codes.device)
    flat = values[torch.stack((codes >> 4, codes & 15), dim=1).flatten().long()]
    return (flat * scales.repeat_interleave(BLOCK)[: len(flat)])[: shape.numel()].view(shape)
