"""What saving costs a training run: steps while a checkpoint is written beside them, against steps without.

Trains a model of 100 M weights on one rank with one thread, on made-up batches of 512 tokens, so that a processor of
the machine is free for the writer, as in a run on a GPU. Rounds alternate: some steps, a save, the steps until it is on
disk (the window), and so on. Writes `results/saving.json`: seconds of the call, length of the window, and how much
longer than usual the steps of the window took, the call included, as a share of the window and of the time between
checkpoints of a run that saves every 100 steps.

    python -m benchmarks.saving
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.harness import keep
from tasks.trainer.checkpoints.saving import Saver
from tasks.trainer.config import ModelConfig, TrainConfig
from tasks.trainer.data.batches import Batch
from tasks.trainer.model.shape import Shape
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.parallel.replicated import Replicated

VOCABULARY, SEQ_LEN = 8192, 512
MODEL = ModelConfig(layers=12, dim=768, heads=12, kv_heads=12)
EVERY = 100


def batch(number: int) -> Batch:
    """Returns a sequence of random tokens."""
    tokens = np.random.default_rng(number).integers(0, VOCABULARY, (2, 1, SEQ_LEN))
    return Batch.of(tokens[0], tokens[1], np.zeros((1, SEQ_LEN), dtype=np.int64))


def step(model: Replicated, number: int, saver: Saver) -> float:
    """Trains one step; returns its seconds."""
    started = time.perf_counter()
    model.forward_backward({0: batch(number)})
    model.clip(1.0)
    saver.wait_for_copy()
    model.optimizer.step(1e-4)
    return time.perf_counter() - started


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    model = Replicated(TrainConfig(model=MODEL, batch_size=1, microbatch=1), VOCABULARY, Ranks(0, 1, 0))
    usual, calls, windows, extra = [], [], [], []
    with tempfile.TemporaryDirectory() as folder, Saver(Path(folder), model, Ranks(0, 1, 0), 1, ()) as saver:
        for number in range(3):  # the first save allocates what the others use again
            step(model, number, saver)
        saver.save(1, {})
        saver.wait()
        for number in range(rounds):
            usual += [step(model, n, saver) for n in range(6)]
            started = time.perf_counter()
            saver.save(2 + number, {})
            calls.append(time.perf_counter() - started)
            taken: list[float] = []
            while saver.writing:
                taken.append(step(model, len(taken), saver))
            windows.append(time.perf_counter() - started)
            extra.append(calls[-1] + sum(taken) - len(taken) * statistics.median(usual[-6:]))
    each = statistics.median(usual)
    keep(
        "saving",
        {
            "weights": Shape.of(MODEL, VOCABULARY).weights["total"],
            "step_s": round(each, 3),
            "call_s": round(statistics.median(calls), 3),
            "window_s": round(statistics.median(windows), 2),
            "share_of_window": round(statistics.median(extra) / statistics.median(windows), 4),
            "share_of_run": round(statistics.median(extra) / (EVERY * each), 4),
            "rounds": rounds,
        },
    )


if __name__ == "__main__":
    main()
