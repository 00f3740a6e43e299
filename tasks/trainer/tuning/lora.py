"""Low-rank adapters (Hu et al. 2021, arXiv 2106.09685) on the projections of a frozen model."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tasks.trainer.config import LoraConfig
from tasks.trainer.model.transformer import Transformer, initial_weight
from tasks.trainer.tuning.frozen import freeze
from tasks.trainer.tuning.nf4 import Nf4Linear


class LoraLinear(nn.Module):
    """A frozen projection with an adapter: W x + scale B A x.

    Args:
        base: the projection, without parameters.
        shape: (outputs, inputs) of it.
        config: rank and alpha.
    """

    def __init__(self, base: nn.Module, shape: torch.Size, config: LoraConfig) -> None:
        super().__init__()
        self.base, self.scale = base, config.alpha / config.rank
        self.lora_a = nn.Parameter(torch.zeros(config.rank, shape[1]))
        self.lora_b = nn.Parameter(torch.zeros(shape[0], config.rank))
        self.active = True
        """Whether the adapter counts; without it this is the base."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps float [..., inputs] to [..., outputs]."""
        out: Tensor = self.base(x)
        return out + self.scale * F.linear(F.linear(x, self.lora_a), self.lora_b) if self.active else out

    def merged(self) -> Tensor:
        """Returns W + scale B A, float32 [outputs, inputs]."""
        return _weight_of(self.base) + self.scale * (self.lora_b.detach() @ self.lora_a.detach())


def attach(model: Transformer, config: LoraConfig, seed: int) -> None:
    """Freezes a model and gives it adapters, which change nothing yet: A is drawn by `seed`, B is zero.

    With `base = "nf4"` all projections of the layers are kept in 4 bits, those without an adapter, too; embedding,
    norms and head stay as they are.
    """
    freeze(model)
    for name, parent in list(model.layers.named_modules()):
        for child, linear in list(parent.named_children()):
            if not isinstance(linear, nn.Linear):
                continue
            shape = linear.weight.shape
            base = Nf4Linear(linear.weight) if config.base == "nf4" else linear
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
    """Returns the weights of a plain model that computes the same, by the names of `Transformer`."""
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, LoraLinear):
            found[f"{name}.weight"] = module.merged()
        elif isinstance(module, Nf4Linear) and not name.endswith(".base"):
            found[f"{name}.weight"] = module.dequantised()
        elif not name.endswith(".base"):
            of = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
            found |= {f"{name}.{own}": weight.detach() for own, weight in of.items()}
    return {name: weight.contiguous() for name, weight in sorted(found.items())}


def _weight_of(base: nn.Module) -> Tensor:
    if isinstance(base, Nf4Linear):
        return base.dequantised()
    weight = base.weight
    assert isinstance(weight, Tensor)
    return weight.detach()
