"""Held-out loss of Muon and AdamW at equal steps, and of gradients that two ranks send compressed.

`python -m benchmarks.optimizers` trains a small decoder on the bytes of the standard library's sources, each optimizer
at four learning rates, then on two ranks with each compression; every tenth file is held out. Writes
`benchmarks/results/optimizers.json`. Some minutes of one core.
"""

import json
import os
import socket
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness import ROOT, keep
from tasks.trainer.config import TrainConfig
from tasks.trainer.data.batches import Batch
from tasks.trainer.optim import learning_rate
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.parallel.replicated import Replicated

VOCABULARY, SEQ_LEN, BATCH, HELD_OUT = 256, 128, 8, 64
STEPS = 300
MODEL = {"layers": 4, "dim": 64, "heads": 4, "kv_heads": 2}
RATES = (2e-3, 4e-3, 8e-3, 1.6e-2)
COMPRESSIONS: tuple[dict[str, Any] | None, ...] = (
    None,
    {"kind": "bf16"},
    {"kind": "powersgd", "rank": 2},
    {"kind": "powersgd", "rank": 8},
)


def corpus() -> tuple[np.ndarray, np.ndarray]:
    """Returns the bytes of training and held-out files, uint8."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    held_out = b"".join(path.read_bytes() for path in files[::10])
    training = b"".join(path.read_bytes() for index, path in enumerate(files) if index % 10)
    return np.frombuffer(training, np.uint8), np.frombuffer(held_out, np.uint8)


def batch(data: np.ndarray, sequences: int, seed: int) -> Batch:
    """Returns sequences from random places of `data`."""
    starts = np.random.default_rng(seed).integers(0, len(data) - SEQ_LEN - 1, sequences)
    rows = np.stack([data[start : start + SEQ_LEN + 1] for start in starts]).astype(np.int64)
    return Batch.of(rows[:, :-1], rows[:, 1:], np.zeros((sequences, SEQ_LEN), np.int64))


def train(ranks: Ranks, optim: dict[str, Any], compression: dict[str, Any] | None, steps: int) -> dict[str, Any]:
    """Returns what a run of `steps` has come to."""
    settings = {"model": MODEL, "optim": optim, "compression": compression, "steps": steps, "batch_size": BATCH}
    run = TrainConfig.model_validate({**settings, "microbatch": BATCH // 2})
    engine, (training, held_out) = Replicated(run, VOCABULARY, ranks), corpus()
    in_optimizer, started = 0.0, time.process_time()
    for step in range(steps):
        parts = {number: batch(training, run.microbatch, 2 * step + number) for number in engine.numbers}
        engine.forward_backward(parts)
        engine.clip(run.optim.clip)
        before = time.process_time()
        engine.optimizer.step(learning_rate(run.optim, step, steps))
        in_optimizer += time.process_time() - before
    seconds = time.process_time() - started
    test = batch(held_out, HELD_OUT, 0)
    with torch.no_grad():
        loss = float(engine.model.loss(test.tokens, test.documents, test.labels)) / test.labels.numel()
    sent = engine._compressed.sent if engine._compressed else 4 * engine._gradient.numel()
    return {
        "held_out_loss": round(loss, 4),
        "cpu_s": round(seconds, 1),
        "optimizer_share": round(in_optimizer / seconds, 3),
        **({"bytes_per_step": sent} if ranks.world > 1 else {}),
    }


def on_two_ranks(compression: dict[str, Any] | None, steps: int) -> dict[str, Any]:
    """Trains with AdamW on two processes; returns what rank 0 has found."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.optimizers", json.dumps(compression), str(steps)]
    started = [
        subprocess.Popen(command, cwd=ROOT, env={**shared, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    printed = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError("a rank has failed")
    found: dict[str, Any] = json.loads(printed[0].splitlines()[-1])
    return found


def main() -> None:
    """Trains every variant, or as one of two ranks the one that the arguments name."""
    torch.set_num_threads(1)
    if len(sys.argv) > 2:
        with Ranks.from_environment() as ranks:
            print(json.dumps(train(ranks, {}, json.loads(sys.argv[1]), int(sys.argv[2]))))
        return
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else STEPS
    runs = []
    for name in ("adamw", "muon"):
        for rate in RATES:
            optim = {"name": name, "lr": rate}
            runs.append({**optim, **train(Ranks(0, 1, 0), optim, None, steps)})
            print(runs[-1], flush=True)
    best = {name: min(run["held_out_loss"] for run in runs if run["name"] == name) for name in ("adamw", "muon")}
    two = []
    for compression in COMPRESSIONS:
        two.append({"compression": compression, **on_two_ranks(compression, steps)})
        print(two[-1], flush=True)
    ratio = round(best["muon"] / best["adamw"], 4)
    figures = {"steps": steps, "tokens_per_step": BATCH * SEQ_LEN, "model": MODEL, "muon_over_adamw": ratio}
    keep("optimizers", {**figures, "optimizers": runs, "two_ranks": two})


if __name__ == "__main__":
    main()
