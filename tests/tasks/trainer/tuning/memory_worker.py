"""One rank of a test of memory: `python -m tests.tasks.trainer.tuning.memory_worker job.json result.json`.

Reads two specs of fine-tunings, a layout or null, and a number of steps. Trains two steps of the first, which is small,
so that libraries and groups are there before memory is counted; then that number of the second, and writes by how many
bytes the process has grown at most in these.
"""

import gc
import json
import sys
from pathlib import Path

import numpy as np
import torch

from tasks.trainer.config import TrainSpec
from tasks.trainer.data.batches import Batch
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.parallel.replicated import Replicated
from tasks.trainer.parallel.sharded import Sharded
from tasks.trainer.place import Layout
from tasks.trainer.tuning.model import build_tuned, load_base
from tests.tasks.trainer.parallel.memory_worker import forget, peak


def train(spec: TrainSpec, layout: Layout | None, ranks: Ranks, steps: int) -> None:
    """Trains on random tokens, whose documents are pairs."""
    tuning, run = spec.tuning, spec.run
    assert tuning is not None
    if layout is None:
        model: Replicated | Sharded = Replicated(run, tuning.vocab_size, ranks, build_tuned(spec))
    else:
        model = Sharded(run, layout, tuning.vocab_size, tuning.seq_len, ranks, tuning)
        load_base(model.chunks[0], spec)
    random = np.random.default_rng(0)
    for _ in range(steps):
        parts = {}
        for number in model.numbers:
            tokens = random.integers(0, tuning.vocab_size, (run.microbatch, tuning.seq_len + 1))
            documents = np.repeat([[0, 1]], tuning.seq_len // 2, axis=1).repeat(run.microbatch, axis=0)
            parts[number] = Batch.of(tokens[:, :-1].copy(), tokens[:, 1:].copy(), documents)
        model.forward_backward(parts)
        model.clip(1.0)
        model.optimizer.step(1e-3)


def main() -> None:
    """Measures."""
    torch.set_num_threads(1)
    given = json.loads(Path(sys.argv[1]).read_text())
    small, spec = (TrainSpec.model_validate(one) for one in given["specs"])
    layout = Layout(**given["layout"]) if given["layout"] is not None else None
    with Ranks.from_environment() as ranks:
        ranks.join_alone()
        train(small, layout, ranks, 2)
        gc.collect()
        forget()
        before = peak()
        train(spec, layout, ranks, given["steps"])
        Path(sys.argv[2]).write_text(json.dumps(peak() - before))


if __name__ == "__main__":
    main()
