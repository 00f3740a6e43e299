"""Saves checkpoints beside the training: the loop copies the state, a thread of each rank writes it.

Writes `<root>/step-<nnnnnnnn>/` (see `checkpoint`). At most one is being written; the next `save` waits for it.
"""

import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import torch.distributed as dist

from tasks.trainer import checkpoint
from tasks.trainer.ranks import TIMEOUT, Ranks


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
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="save")
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
        """Copies the state and returns; its checkpoint is written meanwhile.

        Args:
            step: steps that are done.
            state: goes into `state.json`.

        Raises:
            OSError: the checkpoint before this one could not be written.
        """
        self.wait()
        self._writing = self._thread.submit(self._write, self._stateful.stage(), step, dict(state))

    @property
    def writing(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._writing is not None and not self._writing.done()

    def wait(self) -> None:
        """Waits until the last checkpoint is on disk, on all ranks.

        Raises:
            OSError: it could not be written.
        """
        if self._writing:
            self._writing.result()
            self._writing = None

    def _write(self, staged: Any, step: int, state: dict[str, Any]) -> None:
        folder = checkpoint.unfinished(self.root, step)
        if self._ranks.rank == 0:
            checkpoint.begin(folder)
        self._barrier()
        mine = self._stateful.write(staged, folder)
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
