"""Saves checkpoints beside the training: a thread of each rank copies the state, and writes the copy.

A step changes the state only at its end, so the copy is made while the next gradient is computed, and the loop waits
for it before the step of the optimizer (`wait_for_copy`).

Writes `<root>/step-<nnnnnnnn>/` (see `checkpoint`). At most one is being written; the next `save` waits for it.
"""

import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import torch
import torch.distributed as dist

from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.parallel.ranks import TIMEOUT, Ranks


class Stateful(Protocol):
    """A model and its optimizer, of which this rank has all or a part."""

    def stage(self) -> Any:
        """Returns a copy of the state in the processor's memory; the next call overwrites it."""

    def write(self, staged: Any, folder: Path) -> dict[str, str]:
        """Writes what `stage` returned, and returns the sha256 of the files of this rank by name; no barrier after."""

    def read(self, folder: Path | None) -> None:
        """Loads a checkpoint; None: there is none on this rank's disk, and rank 0 has it."""


class Saver:
    """The checkpoints of a run, on one rank.

    Args:
        root: folder of the checkpoints.
        state: what is saved.
        ranks: the process group.
        keep: newest checkpoints that are kept beside the milestones.
        milestones: steps whose checkpoints are kept for good.
        keep_every: checkpoints of steps that are multiples of it are kept, too; 0: none.
    """

    def __init__(
        self, root: Path, state: Stateful, ranks: Ranks, keep: int, milestones: Sequence[int], keep_every: int = 0
    ) -> None:
        self.root, self.keep, self.milestones, self.keep_every = root, keep, milestones, keep_every
        self._stateful, self._ranks = state, ranks
        # Of its own: collectives of the thread must not mix with those of the loop. Over gloo also beside GPUs.
        self._group = dist.new_group(backend="gloo", timeout=TIMEOUT) if ranks.world > 1 else None
        self._thread = ThreadPoolExecutor(1, "save", _use, (ranks.device,))
        self._copying: Future[Any] | None = None
        self._writing: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Waits for the last checkpoint; after an error only for what this rank does by itself."""
        try:
            if kind is None:
                self.wait()
        finally:
            self._thread.shutdown(wait=kind is None, cancel_futures=True)

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Begins a checkpoint and returns; `wait_for_copy` must be called before the state changes.

        Args:
            step: steps that are done.
            state: goes into `state.json`.

        Raises:
            OSError: the checkpoint before this one could not be written.
        """
        self.wait()
        self._copying = self._thread.submit(self._stateful.stage)
        self._writing = self._thread.submit(self._write, self._copying, step, dict(state))

    def wait_for_copy(self) -> None:
        """Waits until the state of the last `save` is copied: from then on it may change."""
        if self._copying:
            self._copying.result()
            self._copying = None

    @property
    def writing(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._writing is not None and not self._writing.done()

    def wait(self) -> None:
        """Waits until the last checkpoint is on disk, on all ranks.

        Raises:
            OSError: it could not be written.
        """
        self.wait_for_copy()
        if self._writing:
            self._writing.result()
            self._writing = None

    def _write(self, copy: "Future[Any]", step: int, state: dict[str, Any]) -> None:
        folder = checkpoint.unfinished(self.root, step)
        if self._ranks.rank == 0:
            checkpoint.begin(folder)
        self._barrier()
        mine = self._stateful.write(copy.result(), folder)
        digests = [mine]
        if self._group:
            digests = [{} for _ in range(self._ranks.world)]
            dist.all_gather_object(digests, mine, group=self._group)
        if self._ranks.rank == 0:
            everyone = {file: value for one in digests for file, value in one.items()}
            checkpoint.commit(folder, step, state, everyone)
            checkpoint.prune(self.root, self.keep, self.keep_every, self.milestones)
        self._barrier()
        shutil.rmtree(folder, ignore_errors=True)  # on the disk of another node, where nothing is committed

    def _barrier(self) -> None:
        if self._group:
            dist.barrier(self._group)


def _use(device: torch.device) -> None:
    """Makes a GPU the current one of a thread, whose copies are awaited there."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
