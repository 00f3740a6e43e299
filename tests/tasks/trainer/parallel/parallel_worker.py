"""One rank of a test of layouts: `python -m tests.tasks.trainer.parallel.parallel_worker jobs.json results.json`.

Reads a list of jobs, each `{"layout": {..} or null, "steps": [first, until], "tie": bool, "optimizer": name,
"model": settings, "compression": settings, "batches": different ones, "read": folder, "write": folder}`, and trains a
tiny model on synthetic batches in each, one after the other. Rank 0 writes a list with `{"losses", "norms", "bpb"}` per
job, the last of synthetic held-out text after every step. A layout of null is the trainer's bit-exact mode.
All jobs have z-loss and a mean of the weights.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.checkpoints.disks import Disk
from tasks.trainer.checkpoints.saving import Saver
from tasks.trainer.config import OptimConfig, TrainConfig
from tasks.trainer.data.batches import Batch
from tasks.trainer.data.heldout import HeldoutDocument
from tasks.trainer.evaluation.bpb import HeldoutBpb
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.model.loss import IGNORED
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.parallel.replicated import Replicated
from tasks.trainer.parallel.sharded import Sharded
from tasks.trainer.place import Layout

VOCABULARY, SEQ_LEN, MICROBATCHES = 96, 32, 8
LEARNING_RATE = 1e-2


def config(*, tie: bool, **more: Any) -> TrainConfig:
    """Returns the settings of a job."""
    shape = {"layers": 4, "dim": 32, "heads": 4, "kv_heads": 2, **more.get("model", {})}
    model = ModelConfig.model_validate({**shape, "tie_embeddings": tie})
    optim = OptimConfig(name=more.get("optimizer", "adamw"), lr=LEARNING_RATE)
    settings = {"model": model, "optim": optim, "compression": more.get("compression"), "z_loss": 1e-3}
    settings |= {"ema": {"horizon": 3}}
    return TrainConfig.model_validate({**settings, "batch_size": MICROBATCHES, "microbatch": 1})


def batch(step: int, number: int) -> Batch:
    """Returns a microbatch of one sequence with some documents and some positions without a label."""
    random = np.random.default_rng([step, number])
    tokens, labels = random.integers(0, VOCABULARY, (2, 1, SEQ_LEN))
    labels[random.random(labels.shape) < 0.1] = IGNORED
    return Batch.of(tokens, labels, np.cumsum(random.random(tokens.shape) < 0.1, axis=1))


def held_out() -> dict[str, list[HeldoutDocument]]:
    """Returns documents of two sources, some longer than a sequence; ranks do not divide their number of parts."""
    random = np.random.default_rng(7)
    sizes = {"a": (5, 70, 20, 33), "b": (SEQ_LEN, 3)}
    return {
        source: [HeldoutDocument(b"", random.integers(0, VOCABULARY, size), 2 * size) for size in some]
        for source, some in sizes.items()
    }


def run(job: dict[str, Any], ranks: Ranks) -> dict[str, list[float]]:
    """Runs a job; returns loss, gradient norm and bits per byte of every step."""
    settings = config(**{"tie": True, **job})
    model: Sharded | Replicated
    if job["layout"] is None:
        model = Replicated(settings, VOCABULARY, ranks)
    else:
        model = Sharded(settings, Layout(**job["layout"]), VOCABULARY, SEQ_LEN, ranks)
    model.initialize()
    measured = HeldoutBpb(held_out(), model, 1, SEQ_LEN, 0)
    bpb = []
    first, until = job["steps"]
    if "read" in job:
        model.read(Path(job["read"]) / checkpoint.name_of(first))
        model.optimizer.steps_taken = first
    losses, norms = [], []
    for step in range(first, until):
        drawn = step % job.get("batches", until)
        loss, _, _ = model.forward_backward({number: batch(drawn, number) for number in model.numbers})
        norms.append(model.clip(1.0))
        losses.append(loss)
        model.optimizer.step(LEARNING_RATE)
        model.loads.update()
        bpb.append(measured.measure()["bpb/a"])
    if "write" in job:
        with Saver(Disk(Path(job["write"]), 0, ranks.rank, ranks.world), model, 1, ()) as saver:
            saver.save(until, {})
    return {"losses": losses, "norms": norms, "bpb": bpb}


def main(jobs: str, results: str) -> None:
    """Runs all jobs."""
    torch.set_num_threads(1)
    with Ranks.from_environment() as ranks:
        ranks.join_alone()
        found = [run(job, ranks) for job in json.loads(Path(jobs).read_text())]
        if ranks.rank == 0:
            Path(results).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
