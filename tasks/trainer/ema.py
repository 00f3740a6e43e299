"""The exponential mean of the weights over the steps of a run (`[train.ema]`).

It is part of the optimizer's state, as `ema.<parameter>`: in fp32, sharded like the parameters, in every checkpoint,
and readable in any layout. The stage `train` writes the mean of each milestone to `averaged/`.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from tasks.trainer.checkpoints.checkpoint import EMA
from tasks.trainer.config import EmaConfig
from tasks.trainer.optim import AdamW, Muon, local


class Averaged:
    """An optimizer that also keeps the mean of the parameters after its steps.

    The mean after step t is d m + (1 - d) w with d = min(decay, 1 - 1 / t): until the horizon it is the plain mean of
    the weights so far, so it has no weight on the random initial ones. A refused step changes nothing. Of each number
    it is a function of that number alone, so its bits are those of any layout with the same weights.

    Args:
        optimizer: of the parameters.
        params: name -> parameter; of a DTensor, each rank averages its local shard.
        config: settings.
    """

    def __init__(self, optimizer: AdamW | Muon, params: Mapping[str, Tensor], config: EmaConfig) -> None:
        self.optimizer, self.params, self.keep = optimizer, dict(params), config.keep
        self.mean = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in self.params.items()}

    @property
    def steps_taken(self) -> int:
        """Number of steps taken, as in `AdamW`; not part of `state`."""
        return self.optimizer.steps_taken

    @steps_taken.setter
    def steps_taken(self, steps: int) -> None:
        self.optimizer.steps_taken = steps

    @property
    def divisor(self) -> float:
        """What a step divides the gradients by, as in `AdamW`."""
        return self.optimizer.divisor

    @divisor.setter
    def divisor(self, divisor: float) -> None:
        self.optimizer.divisor = divisor

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Takes a step of the optimizer with learning rate `lr`, and adds its weights to the mean."""
        self.optimizer.step(lr)
        added = max(1 - self.keep, 1 / self.steps_taken)
        for name, param in self.params.items():
            local(self.mean[name]).lerp_(local(param).float(), added)

    def state(self) -> dict[str, Tensor]:
        """Returns the state of the optimizer and `ema.<parameter>`; the tensors are not copied."""
        return self.optimizer.state() | {f"{EMA}{name}": tensor for name, tensor in self.mean.items()}
