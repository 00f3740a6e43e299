"""The optimizer of a run, its learning-rate schedule and gradient clipping."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from tasks.trainer.adamw import AdamW
from tasks.trainer.config import OptimConfig, TrainConfig
from tasks.trainer.muon import Muon


def build_optimizer(params: Mapping[str, Tensor], run: TrainConfig) -> AdamW | Muon:
    """Returns the optimizer of named parameters that `[train.optim] name` names; Muon iterates in `precision`."""
    if run.optim.name == "adamw":
        return AdamW(params, run.optim)
    return Muon(params, run.optim, torch.float32 if run.precision == "fp32" else torch.bfloat16)


def load_optimizer(optimizer: AdamW | Muon, state: Mapping[str, Tensor]) -> None:
    """Copies what `state` of such an optimizer returned into this one; raises KeyError if a tensor is missing."""
    for name, tensor in optimizer.state().items():
        tensor.copy_(state[name])


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


def clip(gradient: Tensor, limit: float) -> float:
    """Scales `gradient` in place so that its Euclidean norm is at most `limit`.

    Returns:
        The norm before, in float64; NaN or infinite if the gradient is, which is then left as it was.
    """
    norm = float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
    if limit < norm < math.inf:
        gradient.mul_(limit / norm)
    return norm
