"""One rank of a test of compressed sums: `python -m tests.tasks.trainer.parallel.compression_worker folder`.

Sums synthetic gradients with each method, and writes the results to `<folder>/<rank>.pt`.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor

from tasks.trainer.parallel.ranks import Bf16Sum, PowerSgdSum, Ranks

SHAPES = {"wide": (24, 80), "vector": (7,), "tall": (80, 24), "small": (3, 4)}
RANK = 2
STEPS = 4
Gradients = dict[str, Tensor]


def gradients(rank: int, step: int) -> Gradients:
    """Returns normal gradients of a rank in a step."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def thin(rank: int, step: int) -> Gradients:
    """Returns gradients whose matrices are of rank 1, so that the sum of two of them is of rank 2."""
    return {
        name: torch.outer(tensor[:, 0], tensor[0]) if tensor.ndim == 2 else tensor
        for name, tensor in gradients(rank, step).items()
    }


def main(folder: str) -> None:
    """Runs every case."""
    torch.set_num_threads(1)
    with Ranks.from_environment() as ranks:
        rank = ranks.rank
        narrow, low = Bf16Sum(None), PowerSgdSum(RANK, None)
        rounded = gradients(rank, 0)
        narrow.sum(rounded, 0)
        exact = thin(rank, 0)
        PowerSgdSum(RANK, None).sum(exact, 0)
        steps, refused, after = [gradients(rank, step) for step in range(STEPS)], PowerSgdSum(RANK, None), []
        for taken, step in enumerate(steps):
            low.sum(step, taken)
            broken = {name: torch.full_like(tensor, torch.nan) for name, tensor in step.items()}
            refused.sum(broken, taken)
            after.append(gradients(rank, taken))
            refused.sum(after[-1], taken)
        sent = {"bf16": narrow.sent, "powersgd": low.sent}
        left = dict(low._next[0])
        low.sum(again := gradients(rank, 0), 0)
        found = {"rounded": rounded, "exact": exact, "steps": steps, "left": left, "after": after, "again": again}
        torch.save({**found, "sent": sent}, Path(folder) / f"{rank}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
