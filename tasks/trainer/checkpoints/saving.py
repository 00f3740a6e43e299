"""Asynchronous checkpoints: on each rank, a thread copies the state and writes the copy.

The optimizer changes the state only at the end of a step, so the copy is made while the next gradient is computed, and
the loop waits for it before the update (`wait_for_copy`).

Writes `<root>/step-<nnnnnnnn>/` (see `checkpoint`). At most one checkpoint is being written; the next `save` waits for
it. A disk without space for it ends the run, even if other locations have room: they copy from here, and a rollback
reads only here.

If the checkpoint is spread over disks, every disk has a folder with its files and the same state. All nodes then copy
the same steps: the first rank of each disk hands them over to the stage on its node (`hand_over`), unless a node is
still copying an earlier one.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist

from tasks.core.errors import StoreError
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.checkpoints.copies import hand_over, handed_over
from tasks.trainer.checkpoints.disks import Disk
from tasks.trainer.config import CopySpec
from tasks.trainer.launch.failure import RESUMES, disk_fault
from tasks.trainer.parallel.replica import Replica


class Saver:
    """The checkpoints of a run, on one rank.

    Args:
        disk: on which the checkpoints are.
        replica: the model and optimizer to save.
        keep: number of newest checkpoints that are kept in addition to the milestones.
        milestones: steps whose checkpoints are kept permanently.
        keep_every: checkpoints of steps that are multiples of this are kept, too; 0: none.
        copies: locations to which the nodes copy a spread checkpoint.
    """

    def __init__(
        self,
        disk: Disk,
        replica: Replica,
        keep: int,
        milestones: Sequence[int],
        *,
        keep_every: int = 0,
        copies: Sequence[CopySpec] = (),
    ) -> None:
        self.disk, self.root, self.copies = disk, disk.root, copies
        self.keep, self.milestones, self.keep_every = keep, milestones, keep_every
        self._replica, self._ranks = replica, (ranks := replica.ranks)
        self._handed_over = [0] * len(copies)
        # A separate group, because collectives of the thread must not mix with those of the loop. Gloo even with GPUs.
        self._group = ranks.checkpoint_group() if ranks.world > 1 else None
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

    def save(self, step: int, state: Mapping[str, Any], *, needed: bool = False) -> None:
        """Starts a checkpoint and returns; `wait_for_copy` must be called before the state changes.

        Args:
            step: number of completed steps.
            state: content of `state.json`.
            needed: whether every location needs a copy of it, if it is spread: for a best checkpoint, or an early end.

        Raises:
            StoreError, OSError: the previous checkpoint could not be written; see `wait`.
        """
        self.wait()
        self._copying = self._thread.submit(self._stream.run, self._stream.mark(), self._replica.stage)
        self._writing = self._thread.submit(self._write, self._copying, step, dict(state), needed)

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

    def _write(self, copy: "Future[Any]", step: int, state: dict[str, Any], needed: bool) -> None:
        folder = checkpoint.unfinished(self.root, step)
        try:
            self._write_to(folder, copy, step, state, needed)
        except BaseException as error:  # torch.distributed.checkpoint raises one that is no Exception
            # Half a checkpoint would keep the disk full, so that the failure could not be recorded.
            shutil.rmtree(folder, ignore_errors=True)
            if fault := disk_fault(error):
                where = f"scratch, {self.root}, cannot take the checkpoint of step {step}"
                raise StoreError(f"{where}: {fault}", RESUMES) from error
            raise

    def _write_to(self, folder: Path, copy: "Future[Any]", step: int, state: dict[str, Any], needed: bool) -> None:
        commits = self.disk.rank == 0
        if commits:
            checkpoint.begin(folder)
        self._barrier()
        own = self._replica.write(copy.result(), folder)
        busy = [bool(handed_over(self.root.parent, number)) for number in range(len(self.copies))] if commits else []
        written = self._gather((self.disk.number, own, busy))
        digests = {file: value for _, files, _ in written for file, value in files.items()}
        disks = {number for number, files, _ in written if files}
        if commits and self.disk.number in disks:
            final = checkpoint.commit(folder, step, state, digests)
            if len(disks) > 1:
                flags = [any(flags) for flags in zip(*(f for *_, f in written if f), strict=True)]
                self._hand_over(final, step, flags, needed)
            checkpoint.prune(self.root, self.keep, self.keep_every, self.milestones)
        self._barrier()
        if commits:
            shutil.rmtree(folder, ignore_errors=True)  # on the disks of nodes without a file

    def _hand_over(self, final: Path, step: int, busy: Sequence[bool], needed: bool) -> None:
        """Links a spread checkpoint for the locations where it is due; all nodes decide the same.

        Args:
            final: folder of the checkpoint.
            step: its step.
            busy: for each location, whether any node has still to copy an earlier checkpoint.
            needed: see `save`.
        """
        for number, (copy, is_busy) in enumerate(zip(self.copies, busy, strict=True)):
            last = self._handed_over[number]
            is_due = not is_busy and (not last or step - last >= copy.every)
            if is_due or needed or (copy.required and step in self.milestones):
                self._handed_over[number] = step
                hand_over(self.root.parent, number, final)

    def _gather(self, item: Any) -> list[Any]:
        if self._group is None:
            return [item]
        items = [None] * self._ranks.world
        dist.all_gather_object(items, item, group=self._group)
        return items

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
