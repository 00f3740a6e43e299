"""AdamW, its learning-rate schedule and gradient clipping.

An AdamW of a few lines (Loshchilov & Hutter 2019, arXiv 1711.05101, as in torch.optim) for two reasons: its state is
plain named fp32 tensors that a checkpoint stores without pickle; and torch.optim imports torch._dynamo when an
optimizer is made, which costs 1.4 s in every rank and every canary.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from tasks.trainer.config import OptimConfig


def learning_rate(config: OptimConfig, step: int, steps: int) -> float:
    """Returns the learning rate of `step` (0-based) of `steps`.

    Linear warm-up from lr / warmup_steps; then cosine (arXiv 1608.03983) or warm-up, stable, decay (arXiv 2404.06395),
    both ending at lr * min_lr_share.
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    if config.schedule == "cosine":
        start = min(config.warmup_steps, steps - 1)
    else:
        start = max(config.warmup_steps, round(steps * (1 - config.decay_share)))
    progress = min(1.0, max(0.0, (step + 1 - start) / max(1, steps - start)))
    shape = (1 + math.cos(math.pi * progress)) / 2 if config.schedule == "cosine" else 1 - progress
    return config.lr * (config.min_lr_share + (1 - config.min_lr_share) * shape)


def decayed(name: str, weight: Tensor) -> bool:
    """Whether weight decay applies: to matrices except the embedding, where it would fade rare tokens."""
    return weight.ndim == 2 and not name.startswith("embedding.")


def local(tensor: Tensor) -> Tensor:
    """Returns what this rank has of a tensor: of a DTensor its own part, without copying it."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


class AdamW:
    """AdamW over named parameters; all state is fp32, and sharded as they are.

    Args:
        params: name -> parameter; a DTensor is updated by each rank where it has it.
        config: settings.
    """

    def __init__(self, params: Mapping[str, Tensor], config: OptimConfig) -> None:
        self.config = config
        self.steps_taken = 0
        """Steps so far, for the correction of the moments' bias. Not in `state`: whoever loads that sets it."""
        self.params = dict(params)
        self.decay = {name: config.weight_decay if decayed(name, p) else 0.0 for name, p in self.params.items()}
        self.first = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in self.params.items()}
        self.second = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in self.params.items()}

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Applies the gradients in `.grad` of the parameters with learning rate `lr`."""
        self.steps_taken += 1
        beta1, beta2 = self.config.betas
        size = lr / (1 - beta1**self.steps_taken)
        root = math.sqrt(1 - beta2**self.steps_taken)
        for name, param in self.params.items():
            assert param.grad is not None, name
            grad, weight = local(param.grad).float(), local(param)
            first, second = local(self.first[name]), local(self.second[name])
            first.lerp_(grad, 1 - beta1)
            second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            weight.mul_(1 - lr * self.decay[name])
            weight.addcdiv_(first, second.sqrt().div_(root).add_(self.config.eps), value=-size)

    def state(self) -> dict[str, Tensor]:
        """Returns the moments as `first.<parameter>` and `second.<parameter>`; the tensors are not copied."""
        moments = {f"first.{name}": tensor for name, tensor in self.first.items()}
        return moments | {f"second.{name}": tensor for name, tensor in self.second.items()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Loads what `state` returned; raises KeyError if a tensor is missing."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])


def clip(gradient: Tensor, limit: float) -> float:
    """Scales `gradient` in place so that its Euclidean norm is at most `limit`.

    Returns:
        The norm before, in float64; NaN or infinite if the gradient is, which is then left as it was.
    """
    norm = float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
    if limit < norm < math.inf:
        gradient.mul_(limit / norm)
    return norm
