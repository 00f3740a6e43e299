"""One rank of a test of memory: `python -m tests.tasks.trainer.parallel.memory_worker job.json result.json`.

Reads settings of a run, and a layout or null. Trains two steps of a small model, then two of `RUN`, and writes by how
many bytes the process has grown at most in these. The small model comes first, so that libraries and groups are there
before memory is counted.
"""

import gc
import json
import sys
from pathlib import Path

import numpy as np
import torch

from tasks.trainer.config import TrainConfig
from tasks.trainer.data.batches import Batch
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.parallel.replicated import Replicated
from tasks.trainer.parallel.sharded import Sharded
from tasks.trainer.place import Layout

VOCABULARY, SEQ_LEN = 4096, 512
RUN = TrainConfig(
    model=ModelConfig(layers=6, dim=256, heads=4, kv_heads=4, tie_embeddings=False), batch_size=8, microbatch=4
)
SMALL = ModelConfig(layers=6, dim=64, heads=4, kv_heads=4, tie_embeddings=False)


def peak() -> int:
    """Returns the peak of resident bytes since `forget`."""
    status = Path("/proc/self/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


def forget() -> None:
    """Resets the peak to the current resident size."""
    Path("/proc/self/clear_refs").write_text("5")


def two_steps(run: TrainConfig, layout: Layout | None, vocab_size: int, seq_len: int, ranks: Ranks) -> None:
    """Trains on random tokens."""
    model: Sharded | Replicated = (
        Sharded(run, layout, vocab_size, seq_len, ranks) if layout else Replicated(run, vocab_size, ranks)
    )
    model.initialize()
    random = np.random.default_rng(0)
    for _ in range(2):
        parts = {}
        for number in model.numbers:
            tokens = random.integers(0, vocab_size, (run.microbatch, seq_len + 1))
            documents = np.zeros((run.microbatch, seq_len), dtype=np.int64)
            parts[number] = Batch.of(tokens[:, :-1].copy(), tokens[:, 1:].copy(), documents)
        model.forward_backward(parts)
        model.clip(1.0)
        model.optimizer.step(1e-3)


def main() -> None:
    """Measures."""
    torch.set_num_threads(1)
    given = json.loads(Path(sys.argv[1]).read_text())
    layout = Layout(**given["layout"]) if given["layout"] is not None else None
    run = RUN.model_copy(update=given["settings"])
    with Ranks.from_environment() as ranks:
        ranks.join_alone()
        two_steps(run.model_copy(update={"model": SMALL}), layout, 256, 64, ranks)
        gc.collect()
        forget()
        before = peak()
        two_steps(run, layout, VOCABULARY, SEQ_LEN, ranks)
        Path(sys.argv[2]).write_text(json.dumps(peak() - before))


if __name__ == "__main__":
    main()
