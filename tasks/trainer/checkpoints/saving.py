"""Asynchronous checkpoints: on each rank, a thread copies the state and writes the copy.

The optimizer changes the state only at the end of a step, so the copy is made while the next gradient is computed, and
the loop waits for it before the update (`wait_for_copy`).

Writes `<root>/step-<nnnnnnnn>/` (see `checkpoint`). At most one checkpoint is being written; the next `save` waits for
it. A disk without space for it ends the run, even if other locations have room: they copy from here, and a restart of
the ranks and a rollback read only here.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import torch
import torch.distributed as dist

from tasks.core.errors import StoreError
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.launch.failure import RESUMES, disk_fault
from tasks.trainer.parallel.ranks import TIMEOUT, Ranks


class Stateful(Protocol):
    """A model and its optimizer, replicated or sharded."""

    def stage(self) -> Any:
        """Returns a copy of the state in CPU memory; the next call overwrites it."""

    def write(self, staged: Any, folder: Path) -> dict[str, str]:
        """Writes the result of `stage`; returns the SHA-256 of this rank's files by name. Has no barrier at its end."""

    def read(self, folder: Path | None) -> None:
        """Loads a checkpoint; None: it is only on the disk of rank 0, not on that of this rank."""


class Saver:
    """The checkpoints of a run, on one rank.

    Args:
        root: folder of the checkpoints.
        state: the model and optimizer to save.
        ranks: the process group.
        keep: number of newest checkpoints that are kept in addition to the milestones.
        milestones: steps whose checkpoints are kept permanently.
        keep_every: checkpoints of steps that are multiples of this are kept, too; 0: none.
    """

    def __init__(
        self, root: Path, state: Stateful, ranks: Ranks, keep: int, milestones: Sequence[int], keep_every: int = 0
    ) -> None:
        self.root, self.keep, self.milestones, self.keep_every = root, keep, milestones, keep_every
        self._stateful, self._ranks = state, ranks
        # A separate group, because collectives of the thread must not mix with those of the loop. Gloo even with GPUs.
        self._group = dist.new_group(backend="gloo", timeout=TIMEOUT) if ranks.world > 1 else None
        self._thread = ThreadPoolExecutor(1, "save", _use, (ranks.device,))
        self._stream = CopyStream(ranks.device)
        self._copying: Future[Any] | None = None
        self._writing: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Waits for the last checkpoint; after an error, does not wait for other ranks."""
        try:
            if kind is None:
                self.wait()
        finally:
            self._thread.shutdown(wait=kind is None, cancel_futures=True)

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Starts a checkpoint and returns; `wait_for_copy` must be called before the state changes.

        Args:
            step: number of completed steps.
            state: content of `state.json`.

        Raises:
            StoreError, OSError: the previous checkpoint could not be written; see `wait`.
        """
        self.wait()
        self._copying = self._thread.submit(self._stream.run, self._stream.mark(), self._stateful.stage)
        self._writing = self._thread.submit(self._write, self._copying, step, dict(state))

    def wait_for_copy(self) -> None:
        """Waits until the state of the last `save` is copied and may change."""
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
            StoreError: the disk is full or cannot be written; the unfinished checkpoint is removed.
            OSError: it could not be written for another reason.
        """
        self.wait_for_copy()
        if self._writing:
            self._writing.result()
            self._writing = None

    def _write(self, copy: "Future[Any]", step: int, state: dict[str, Any]) -> None:
        folder = checkpoint.unfinished(self.root, step)
        try:
            self._write_to(folder, copy, step, state)
        except BaseException as error:  # torch.distributed.checkpoint raises one that is no Exception
            # Half a checkpoint would keep the disk full, so that the failure could not be recorded.
            shutil.rmtree(folder, ignore_errors=True)
            if fault := disk_fault(error):
                where = f"scratch, {self.root}, cannot take the checkpoint of step {step}"
                raise StoreError(f"{where}: {fault}", RESUMES) from error
            raise

    def _write_to(self, folder: Path, copy: "Future[Any]", step: int, state: dict[str, Any]) -> None:
        if self._ranks.rank == 0:
            checkpoint.begin(folder)
        self._barrier()
        own = self._stateful.write(copy.result(), folder)
        digests = [own]
        if self._group:
            digests = [{} for _ in range(self._ranks.world)]
            dist.all_gather_object(digests, own, group=self._group)
        if self._ranks.rank == 0:
            all_digests = {file: value for of_rank in digests for file, value in of_rank.items()}
            checkpoint.commit(folder, step, state, all_digests)
            checkpoint.prune(self.root, self.keep, self.keep_every, self.milestones)
        self._barrier()
        shutil.rmtree(folder, ignore_errors=True)  # on the disks of other nodes, where nothing is committed

    def _barrier(self) -> None:
        if self._group:
            dist.barrier(self._group)


class CopyStream:
    """The CUDA stream of the copies of one GPU; on a CPU, copies are plain calls.

    On the stream of the loop, a copy would run after the kernels that the loop has queued, and those queued later after
    the copy.
    """

    def __init__(self, device: torch.device) -> None:
        is_gpu = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if is_gpu else None  # type: ignore[no-untyped-call]

    def mark(self) -> torch.cuda.Event | None:
        """Returns the end of the work that the loop has queued; the loop calls it when the state has changed."""
        return torch.cuda.current_stream(self._stream.device).record_event() if self._stream else None

    def run(self, ready: torch.cuda.Event | None, copy: Callable[[], Any]) -> Any:
        """Returns the result of `copy`, run after `ready` on the stream, when its copies are complete."""
        if self._stream is None or ready is None:
            return copy()
        self._stream.wait_event(ready)
        with torch.cuda.stream(self._stream):
            copied = copy()
        self._stream.synchronize()
        return copied


def _use(device: torch.device) -> None:
    """Makes a GPU the current device of a thread, which waits for its copies."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
