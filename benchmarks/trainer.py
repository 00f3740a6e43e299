"""Parts of the trainer on a CPU: optimizers and compression, saving, generation.

    python -m benchmarks.trainer optimizers [--steps 300]
    python -m benchmarks.trainer saving [--rounds 5]
    python -m benchmarks.trainer generation [--rounds 3]

`optimizers`: held-out loss of Muon and AdamW at equal steps, and with compressed gradients on two ranks. Trains a
small decoder on the bytes of the standard library's sources, each optimizer at four learning rates, then on two ranks
with each compression; every tenth file is held out. A few minutes of one core. Writes `optimizers.json`.

`saving`: steps while a checkpoint is written in the background, against steps without. Trains a model of 100 M weights
on one rank with one thread, on random batches of 512 tokens, so that a core is free for the writer, as in a run on a
GPU. Rounds alternate: some steps, a save, the steps until it is on disk (the window), and so on. The figures are
seconds of the call, length of the window, and the extra time of the steps of the window, including the call, as a share
of the window and of the time between checkpoints of a run that saves every 100 steps. Writes `saving.json`.

`generation`: greedy generation with a cache of keys and values, against reading the whole sequence for every token.
Both continue the same prompts of random tokens in one batch, on one thread, in turn; the tokens must be equal. CPU
seconds of both, and the median of their ratio over the rounds, for several lengths of prompts and continuations. Writes
`generation.json`.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.harness import ROOT, in_turn, keep, parser, spent
from tasks.trainer.checkpoints.disks import Disk
from tasks.trainer.checkpoints.saving import Saver
from tasks.trainer.config import TrainConfig
from tasks.trainer.data.batches import Batch
from tasks.trainer.inference import Decoding
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.model.shape import ModelShape
from tasks.trainer.model.transformer import Transformer, build
from tasks.trainer.optim import learning_rate
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.parallel.replicated import Replicated

BYTES, BYTES_SEQ_LEN, BATCH, HELD_OUT = 256, 128, 8, 64
STEPS = 300
SMALL = {"layers": 4, "dim": 64, "heads": 4, "kv_heads": 2}
RATES = (2e-3, 4e-3, 8e-3, 1.6e-2)
COMPRESSIONS: tuple[dict[str, Any] | None, ...] = (
    None,
    {"kind": "bf16"},
    {"kind": "powersgd", "rank": 2},
    {"kind": "powersgd", "rank": 8},
)
SAVING_VOCABULARY, SAVING_SEQ_LEN = 8192, 512
MEDIUM = ModelConfig(layers=12, dim=768, heads=12, kv_heads=12)
EVERY = 100
"""Steps between the checkpoints of a usual run."""
VOCABULARY, ROWS = 4096, 8
MODELS = {
    "2 M": ModelConfig(layers=4, dim=128, heads=4, kv_heads=2, tie_embeddings=False),
    "28 M": ModelConfig(layers=8, dim=512, heads=8, kv_heads=4, tie_embeddings=False),
}
LENGTHS = ((32, 32), (192, 64), (448, 64))
"""Tokens of a prompt, and of its continuation."""


def corpus() -> tuple[np.ndarray, np.ndarray]:
    """Returns the bytes of training and held-out files, uint8."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    held_out = b"".join(path.read_bytes() for path in files[::10])
    training = b"".join(path.read_bytes() for index, path in enumerate(files) if index % 10)
    return np.frombuffer(training, np.uint8), np.frombuffer(held_out, np.uint8)


def bytes_batch(data: np.ndarray, sequences: int, seed: int) -> Batch:
    """Returns sequences from random offsets of `data`."""
    starts = np.random.default_rng(seed).integers(0, len(data) - BYTES_SEQ_LEN - 1, sequences)
    rows = np.stack([data[start : start + BYTES_SEQ_LEN + 1] for start in starts]).astype(np.int64)
    return Batch.of(rows[:, :-1], rows[:, 1:], np.zeros((sequences, BYTES_SEQ_LEN), np.int64))


def trained(ranks: Ranks, optim: dict[str, Any], compression: dict[str, Any] | None, steps: int) -> dict[str, Any]:
    """Returns the figures of a run of `steps`."""
    settings = {"model": SMALL, "optim": optim, "compression": compression, "steps": steps, "batch_size": BATCH}
    run = TrainConfig.model_validate({**settings, "microbatch": BATCH // 2})
    engine, (training, held_out) = Replicated(run, BYTES, ranks), corpus()
    engine.initialize()
    in_optimizer, started = 0.0, time.process_time()
    for step in range(steps):
        parts = {number: bytes_batch(training, run.microbatch, 2 * step + number) for number in engine.numbers}
        engine.forward_backward(parts)
        engine.clip(run.optim.clip)
        before = time.process_time()
        engine.optimizer.step(learning_rate(run.optim, step, steps))
        in_optimizer += time.process_time() - before
    seconds = time.process_time() - started
    test = bytes_batch(held_out, HELD_OUT, 0)
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
    """Trains with AdamW in two processes; returns the result of rank 0."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    program = "import sys; from benchmarks.trainer import one_rank; one_rank(*sys.argv[1:])"
    command = [sys.executable, "-W", "ignore", "-c", program, json.dumps(compression), str(steps)]
    started = [
        subprocess.Popen(command, cwd=ROOT, env={**shared, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    printed = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError("a rank has failed")
    found: dict[str, Any] = json.loads(printed[0].splitlines()[-1])
    return found


def one_rank(compression: str, steps: str) -> None:
    """Trains as the rank of this process's environment, and prints the result as JSON."""
    torch.set_num_threads(1)
    with Ranks.from_environment() as ranks:
        print(json.dumps(trained(ranks, {}, json.loads(compression), int(steps))))


def optimizers(given: argparse.Namespace) -> None:
    """Trains every variant."""
    steps = given.steps
    runs = []
    for name in ("adamw", "muon"):
        for rate in RATES:
            optim = {"name": name, "lr": rate}
            runs.append({**optim, **trained(Ranks(0, 1, 0), optim, None, steps)})
            print(runs[-1], flush=True)
    best = {name: min(run["held_out_loss"] for run in runs if run["name"] == name) for name in ("adamw", "muon")}
    two = []
    for compression in COMPRESSIONS:
        two.append({"compression": compression, **on_two_ranks(compression, steps)})
        print(two[-1], flush=True)
    ratio = round(best["muon"] / best["adamw"], 4)
    figures = {"steps": steps, "tokens_per_step": BATCH * BYTES_SEQ_LEN, "model": SMALL, "muon_over_adamw": ratio}
    keep("optimizers", {**figures, "optimizers": runs, "two_ranks": two})


def random_batch(number: int) -> Batch:
    """Returns a sequence of random tokens."""
    tokens = np.random.default_rng(number).integers(0, SAVING_VOCABULARY, (2, 1, SAVING_SEQ_LEN))
    return Batch.of(tokens[0], tokens[1], np.zeros((1, SAVING_SEQ_LEN), dtype=np.int64))


def step(model: Replicated, number: int, saver: Saver) -> float:
    """Trains one step; returns its seconds."""
    started = time.perf_counter()
    model.forward_backward({0: random_batch(number)})
    model.clip(1.0)
    saver.wait_for_copy()
    model.optimizer.step(1e-4)
    return time.perf_counter() - started


def saving(given: argparse.Namespace) -> None:
    """Trains with and without a checkpoint being written."""
    rounds = given.rounds
    model = Replicated(TrainConfig(model=MEDIUM, batch_size=1, microbatch=1), SAVING_VOCABULARY, Ranks(0, 1, 0))
    model.initialize()
    usual, calls, windows, extra = [], [], [], []
    with tempfile.TemporaryDirectory() as folder, Saver(Disk(Path(folder), 0, 0, 1), model, 1, ()) as saver:
        for number in range(3):  # the first save allocates buffers that later ones reuse
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
            extra.append(calls[-1] + sum(taken) - len(taken) * median(usual[-6:]))
    each = median(usual)
    keep(
        "saving",
        {
            "weights": ModelShape.of(MEDIUM, SAVING_VOCABULARY).weights["total"],
            "step_s": round(each, 3),
            "call_s": round(median(calls), 3),
            "window_s": round(median(windows), 2),
            "share_of_window": round(median(extra) / median(windows), 4),
            "share_of_run": round(median(extra) / (EVERY * each), 4),
            "rounds": rounds,
        },
    )


@torch.no_grad()
def reading_again(model: Transformer, prompts: list[list[int]], more: int) -> list[list[int]]:
    """Returns the prompts with their continuations; reads the whole sequence for every token."""
    rows = [list(prompt) for prompt in prompts]
    for _ in range(more):
        tokens = torch.tensor(rows)
        hidden = model.hidden(tokens, torch.zeros_like(tokens))[:, -1]
        for row, token in zip(rows, F.linear(hidden, model.head_weight).argmax(dim=-1).tolist(), strict=True):
            row.append(token)
    return rows


def with_kept(model: Transformer, prompts: list[list[int]], more: int) -> list[list[int]]:
    """Returns the same with a cache of keys and values."""
    rows = [list(prompt) for prompt in prompts]
    read = Decoding(model, prompts, more)
    for count in range(more):
        chosen = read.logits().argmax(dim=-1).tolist()
        for row, token in zip(rows, chosen, strict=True):
            row.append(token)
        if count + 1 < more:
            read.append(chosen)
    return rows


def generated(model: Transformer, prompt: int, more: int, rounds: int) -> dict[str, Any]:
    """Returns CPU seconds of both and their ratio."""
    draw = torch.Generator().manual_seed(0)
    prompts: list[list[int]] = torch.randint(0, VOCABULARY, (ROWS, prompt), generator=draw).tolist()
    written: list[list[list[int]]] = []

    def seconds(way: Callable[[Transformer, list[list[int]], int], list[list[int]]]) -> float:
        return spent(lambda: written.append(way(model, prompts, more)))

    ways = {"again": partial(seconds, reading_again), "kept": partial(seconds, with_kept)}
    taken = in_turn(ways, rounds)
    assert all(one == written[0] for one in written), "both write the same"
    return {
        "prompt": prompt,
        "new_tokens": more,
        "rows": ROWS,
        "read_again_s": round(median(taken["again"]), 3),
        "kept_s": round(median(taken["kept"]), 3),
        "ratio": round(median(slow / fast for slow, fast in zip(taken["again"], taken["kept"], strict=True)), 1),
    }


def generation(given: argparse.Namespace) -> None:
    """Generates by models of two sizes."""
    figures = {}
    for name, config in MODELS.items():
        model = build(config, VOCABULARY, 0).eval()
        with torch.no_grad():  # a head is initialized to zero, which makes all tokens equally likely
            model.head_weight.normal_(generator=torch.Generator().manual_seed(1))
        figures[name] = [generated(model, prompt, more, given.rounds) for prompt, more in LENGTHS]
    keep("generation", {"parameters": figures})


def main() -> None:
    options = parser(__doc__)
    commands = options.add_subparsers(required=True)
    one = commands.add_parser("optimizers", help="Muon, AdamW and compressed gradients")
    one.add_argument("--steps", type=int, default=STEPS)
    one.set_defaults(run=optimizers)
    one = commands.add_parser("saving", help="steps while a checkpoint is written")
    one.add_argument("--rounds", type=int, default=5)
    one.set_defaults(run=saving)
    one = commands.add_parser("generation", help="a cache of keys and values")
    one.add_argument("--rounds", type=int, default=3)
    one.set_defaults(run=generation)
    given = options.parse_args()
    torch.set_num_threads(1)
    given.run(given)


if __name__ == "__main__":
    main()
