"""Look-ahead: the microbatches of the coming steps are made by threads while the model trains on the present one.

What a step has is a function of the step alone (`batches`), so the number of threads changes when something is made and
never what. Threads and not processes: a thread makes some tens of millions of tokens a second, mostly within NumPy,
which a model consumes by the ten thousands; and only the waiting for a remote store takes time, which they share.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from tasks.trainer.data.batches import Batch, StepData

WORKERS = 2
LOOK_AHEAD_STEPS = 8
"""Steps made in advance at most. A remote store that does not answer for this long is not noticed."""
LOOK_AHEAD_BYTES = 2**28
"""What they may have together, in bytes of this rank; one step is always made in advance."""
_BYTES_PER_TOKEN = 3 * 8


class Loader:
    """The microbatches of one rank, step by step.

    Args:
        batches: the batches of the run.
        numbers: the microbatches of this rank.
        steps: steps of the run: none is made beyond.
        device: where the batches go; for a GPU they are made in page-locked memory.
        workers: threads; 0: everything is made when it is needed.
    """

    def __init__(
        self, batches: StepData, numbers: Sequence[int], steps: int, device: torch.device, workers: int = WORKERS
    ) -> None:
        self._batches, self._numbers, self._steps = batches, numbers, steps
        self._pin = device.type == "cuda"
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="loader") if workers else None
        size = len(numbers) * batches.microbatch * batches.seq_len * _BYTES_PER_TOKEN
        self._ahead = max(1, min(LOOK_AHEAD_STEPS, LOOK_AHEAD_BYTES // size))
        self._made: dict[int, Future[dict[int, Batch]]] = {}

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *_: object) -> None:
        """Waits for the threads: torch aborts a process that ends while one of them is in it."""
        if self._pool:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def microbatches(self, step: int) -> dict[int, Batch]:
        """Returns the microbatches of a step by number, and has the next steps made.

        Raises:
            InputError, StoreError, TransientError: as `Batches`, at the step that cannot be made.
        """
        if self._pool is None:
            return self._make(step)
        self._made = {ahead: made for ahead, made in self._made.items() if ahead >= step}
        for ahead in range(step, min(step + 1 + self._ahead, max(self._steps, step + 1))):
            if ahead not in self._made:
                self._made[ahead] = self._pool.submit(self._make, ahead)
        return self._made.pop(step).result()

    def _make(self, step: int) -> dict[int, Batch]:
        made = self._batches.microbatches(step, self._numbers)
        return {number: batch.pinned() for number, batch in made.items()} if self._pin else made
