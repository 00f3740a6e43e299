"""Best learning rate by width, with the standard parametrization and with muP.

    python -m benchmarks.width_sweep [--steps 60]

Trains decoders of two layers and three widths on the bytes of the standard library's sources, each at six learning
rates and with both parametrizations, whose base is the narrowest. Heads have 16 dimensions at every width. The same
batches, of 512 bytes, and the same seed for all; every tenth file is held out, and 64 sequences of it are measured.
With muP the rate is that of the base. About 90 CPU-seconds. Writes `width_sweep.json`: by parametrization and width
the held-out loss (nats per byte) at each rate, and the best rate; by parametrization the ratio of the best rates of the
widest and the narrowest, and what the widest loses at the best rate of the narrowest.
"""

import time
from typing import Any

import torch

from benchmarks.harness import keep, parser
from benchmarks.trainer import BYTES, bytes_batch, corpus
from tasks.trainer.config import InitConfig, OptimConfig, TrainConfig
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.optim import learning_rate
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.parallel.replicated import Replicated

WIDTHS, HEAD_WIDTH, BATCH, HELD_OUT = (16, 32, 96), 16, 4, 64
RATES = tuple(2.0**power for power in range(-8, -2))


def settings(width: int, rate: float, mup: bool, steps: int) -> TrainConfig:
    """Returns the settings of a run."""
    heads = width // HEAD_WIDTH
    return TrainConfig(
        model=ModelConfig(layers=2, dim=width, heads=heads, kv_heads=heads, tie_embeddings=False),
        optim=OptimConfig(lr=rate, warmup_steps=steps // 10),
        init=InitConfig(base_width=WIDTHS[0] if mup else 0),
        steps=steps,
        batch_size=BATCH,
        microbatch=BATCH,
    )


def held_out_loss(run: TrainConfig) -> float:
    """Trains, and returns the held-out loss in nats per byte."""
    engine, (training, held_out) = Replicated(run, BYTES, Ranks(0, 1, 0)), corpus()
    engine.initialize()
    for step in range(run.steps):
        engine.forward_backward({0: bytes_batch(training, BATCH, step)})
        engine.clip(run.optim.clip)
        engine.optimizer.step(learning_rate(run.optim, step, run.steps))
    test = bytes_batch(held_out, HELD_OUT, 0)
    return float(engine.probe([test])[0]) / test.labels.numel()


def sweep(mup: bool, steps: int) -> dict[str, Any]:
    """Returns the figures of a parametrization."""
    rows: list[dict[str, Any]] = []
    for width in WIDTHS:
        losses = {rate: held_out_loss(settings(width, rate, mup, steps)) for rate in RATES}
        best = min(losses, key=losses.__getitem__)
        rounded = {f"{rate:.2g}": round(loss, 4) for rate, loss in losses.items()}
        rows.append({"width": width, "best": best, "losses": rounded})
    narrow, wide = rows[0], rows[-1]
    at_narrow = wide["losses"][f"{narrow['best']:.2g}"] - min(wide["losses"].values())
    return {
        "best_moves_by": wide["best"] / narrow["best"],
        "loss_of_transfer": round(at_narrow, 4),
        "widths": rows,
    }


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
