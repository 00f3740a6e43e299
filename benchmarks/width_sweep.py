"""Best learning rate by width, with the standard parametrization and with muP: `[canary.widths]` on a larger grid.

    python -m benchmarks.width_sweep [--steps 60]

Trains decoders of two layers and three widths on the bytes of the standard library's sources, each at six learning
rates and with both parametrizations, whose base is the narrowest. Heads have 16 dimensions at every width. The same
batches, of 512 bytes, and the same seed for all; every tenth file is held out, and 64 sequences of it are measured.
Settings of the runs and the finding are those of a canary's sweep. About 90 CPU-seconds. Writes `width_sweep.json`: by
parametrization `decision.Sweep` (held-out bits per byte at each width and rate), whether the best rate of the narrowest
may be used for the widest, and the ratio of the best rates of the two.
"""

import math
import time
from typing import Any

import torch

from benchmarks.harness import keep, parser
from benchmarks.trainer import BYTES, bytes_batch, corpus
from tasks.stages.canary import CanaryConfig
from tasks.stages.canary.decision import Sweep
from tasks.stages.canary.widths import WidthsConfig
from tasks.trainer.config import OptimConfig, TrainConfig
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.optim import learning_rate
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.parallel.replicated import Replicated

WIDTHS, BATCH, HELD_OUT = (16, 32, 96), 4, 64
RATES = tuple(2.0**power for power in range(-8, -2))


def held_out_bits(run: TrainConfig) -> float:
    """Trains, and returns the held-out loss in bits per byte."""
    engine, (training, held_out) = Replicated(run, BYTES, Ranks(0, 1, 0)), corpus()
    engine.initialize()
    for step in range(run.steps):
        engine.forward_backward({0: bytes_batch(training, BATCH, step)})
        engine.clip(run.optim.clip)
        engine.optimizer.step(learning_rate(run.optim, step, run.steps))
    test = bytes_batch(held_out, HELD_OUT, 0)
    return float(engine.probe([test])[0]) / test.labels.numel() / math.log(2)


def sweep(mup: bool, steps: int) -> dict[str, Any]:
    """Returns the figures of a parametrization."""
    widths = WidthsConfig(dims=WIDTHS, lr=RATES, mup=mup)
    config = CanaryConfig(
        model=ModelConfig(layers=2, dim=WIDTHS[0], heads=1, kv_heads=1, tie_embeddings=False),
        optim=OptimConfig(warmup_steps=steps // 10),
        widths=widths,
        steps=steps,
        batch_size=BATCH,
        microbatch=BATCH,
    )
    arms = widths.arms({"arm": "arm-0"})
    results = [{**arm, "target_bpb": held_out_bits(config.training(0, arm))} for arm in arms]
    found = Sweep.of(widths, results)
    moved = found.best(found.widths[-1]) / found.best(found.widths[0])
    return {"best_moves_by": moved, "transfers": found.transfers, **found.model_dump(mode="json")}


def main() -> None:
    """Runs both sweeps."""
    arguments = parser(__doc__)
    arguments.add_argument("--steps", type=int, default=60)
    steps = arguments.parse_args().steps
    torch.set_num_threads(1)
    started = time.process_time()
    found = {name: sweep(mup, steps) for name, mup in (("standard", False), ("mup", True))}
    keep("width_sweep", {"steps": steps, "cpu_s": round(time.process_time() - started, 1), **found})


if __name__ == "__main__":
    main()
