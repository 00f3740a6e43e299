"""AdamW over named parameters.

An AdamW of a few lines (Loshchilov & Hutter 2019, arXiv 1711.05101, as in torch.optim) for two reasons: its state is
plain named fp32 tensors that a checkpoint stores without pickle; and torch.optim imports torch._dynamo when an
optimizer is made, which costs 1.4 s in every rank and every canary.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from tasks.trainer.config import OptimConfig


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
        if any(local(param).is_cuda for param in self.params.values()):
            self._fused(lr)
        else:
            self._plain(lr)

    def _plain(self, lr: float) -> None:
        """One parameter after the other; the same bits on every CPU of a kind."""
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

    def _fused(self, lr: float) -> None:
        """All parameters in one kernel per weight decay: what torch.optim.AdamW(fused=True) calls, fp32 as here."""
        beta1, beta2 = self.config.betas
        for decay in sorted(set(self.decay.values())):
            # Where rows are few, a rank can have none of a parameter.
            names = [name for name, of in self.decay.items() if of == decay and local(self.params[name]).numel()]
            if not names:
                continue
            grads = [self.params[name].grad for name in names]
            weights = [local(self.params[name]) for name in names]
            taken = torch.tensor(float(self.steps_taken), device=weights[0].device)
            torch._fused_adamw_(
                weights,
                [local(grad).float() for grad in grads if grad is not None],
                [local(self.first[name]) for name in names],
                [local(self.second[name]) for name in names],
                [],
                [taken] * len(names),
                lr=lr,
                beta1=beta1,
                beta2=beta2,
                weight_decay=decay,
                eps=self.config.eps,
                amsgrad=False,
                maximize=False,
            )

    def state(self) -> dict[str, Tensor]:
        """Returns the moments as `first.<parameter>` and `second.<parameter>`; the tensors are not copied."""
        moments = {f"first.{name}": tensor for name, tensor in self.first.items()}
        return moments | {f"second.{name}": tensor for name, tensor in self.second.items()}
