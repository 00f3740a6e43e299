"""The disks of a run's nodes: which ranks share one, and the newest checkpoint that all ranks can read.

With a layout whose replicas span nodes, the files of a checkpoint are spread over the disks of the nodes. A file that a
rank needs and that is not on its disk, because the disk is new or the layout another, is fetched from a copy of the
checkpoint or from the milestone: in another layout, only files with parts of the tensors that are on this node. If the
scratch folder is shared by all nodes, there is one disk.
"""

import logging
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import torch
import torch.distributed as dist

from tasks.core.config import canonical_json, sha256_of_json
from tasks.core.digest import sha256_of_file
from tasks.core.errors import InputError, SluiceError, TransientError
from tasks.core.store import Store
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.checkpoints.checkpoint import Box
from tasks.trainer.checkpoints.fork import Fork
from tasks.trainer.checkpoints.locations import CopySource, MilestoneSource, Source, fetch_file
from tasks.trainer.config import TrainSpec
from tasks.trainer.logs import METRICS, Faults, proven_steps
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.place import Layout

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Disk:
    """The disk on which this rank has its checkpoints."""

    root: Path
    """Folder of the checkpoints."""
    number: int
    """Index of the disk: that of the node, or 0 if all nodes share one."""
    rank: int
    """Index of this rank among those that use the disk; rank 0 commits and removes checkpoints."""
    ranks: int
    """Number of ranks that use the disk."""

    @classmethod
    def find(cls, out: Path, ranks: Ranks) -> "Disk":
        """Returns the disk of this rank; a collective.

        Args:
            out: folder of the run on this node. If all nodes have theirs beside that of rank 0, all use that one.
            ranks: the process group, already connected.
        """
        first = out.with_name(ranks.broadcast_text(out.name))
        if ranks.nodes == 1 or _is_shared(first, ranks):
            return cls(first / "checkpoints", 0, ranks.rank, ranks.world)
        return cls(out / "checkpoints", ranks.node, ranks.local_rank, ranks.local_world)


def _is_shared(out: Path, ranks: Ranks) -> bool:
    """Returns whether every rank sees a folder of rank 0, by a file with a random name in it."""
    name = ranks.broadcast_text(f".seen-{secrets.token_hex(8)}")
    if ranks.rank == 0:
        (out / name).touch()
    ranks.barrier()
    seen = torch.tensor([float((out / name).exists())], device=ranks.device)
    ranks.sum([seen])
    if ranks.rank == 0:
        (out / name).unlink()
    return int(seen) == ranks.world


def sources_of(spec: TrainSpec) -> list[Source]:
    """Returns the sources of a run on several nodes, in the order in which they are tried."""
    sources: list[Source] = []
    for copy in spec.copies:
        store = Store(copy.store)
        sources.append(CopySource(store, copy.folder, required=copy.required))
        if copy.required:
            sources.append(MilestoneSource(store, str(PurePosixPath(copy.folder).parent)))
    if spec.copies and spec.fork:
        sources.append(Fork(spec.fork, Path(spec.out)))
    return sources


@dataclass(frozen=True)
class Listing:
    """A checkpoint by its `state.json`, on rank 0's disk or in a source."""

    state: dict[str, Any]
    sums: dict[str, str]
    """SHA-256 of its files by name, without that of the state."""
    folders: list[tuple[int, str]]
    """Its folders in the sources, each with the index of the source."""


class Readable:
    """Finds checkpoints that all ranks can read; every rank calls the same methods.

    Args:
        disk: of this rank.
        ranks: the process group.
        layout: in which the ranks read.
        boxes: returns which part of each tensor this rank reads; None: all files.
        sources: of files that are not on a disk.
        faults: of the run.
    """

    def __init__(
        self,
        disk: Disk,
        ranks: Ranks,
        layout: Layout | None,
        boxes: Callable[[], Mapping[str, Box] | None],
        sources: Sequence[Source],
        faults: Faults,
    ) -> None:
        self.disk, self.ranks, self.layout, self.boxes = disk, ranks, layout, boxes
        self.sources, self.faults = sources, faults
        self._group = ranks.checkpoint_group() if ranks.world > 1 else None
        self._run = disk.root.parent

    def newest(self, wanted: Callable[[int], bool] = lambda step: True) -> dict[str, Any] | None:
        """Returns the state of the newest checkpoint that verifies; None if there is none. Fetches missing files.

        Args:
            wanted: called on rank 0; whether to consider the checkpoint of a step.

        Raises:
            TransientError: there are checkpoints, but none can be read by all ranks.
            SluiceError: the store cannot be read.
        """
        steps = self._broadcast([step for step in self._steps() if wanted(step)] if self.ranks.rank == 0 else None)
        for step in steps:
            if (state := self._read(step)) is not None:
                return state
        if steps:
            cause = f"no checkpoint in {self.disk.root} verifies, and no copy of one"
            raise TransientError(cause, "run again: a start searches the other locations")
        return None

    def _steps(self) -> list[int]:
        """Returns the steps of all checkpoints, newest first: of this disk, and of the sources as far as the log."""
        proven = proven_steps(self._run / METRICS) if self.sources else 0
        elsewhere = {step for source in self.sources for step in self._steps_in(source) if step <= proven}
        return sorted({*checkpoint.steps_at(self.disk.root), *elsewhere}, reverse=True)

    def _steps_in(self, source: Source) -> list[int]:
        try:
            return source.steps()
        except (SluiceError, OSError) as error:
            if source.required:
                raise
            self.faults.location(0, f"checkpoints in {source.store.root} cannot be read: {error}")
            return []

    def _read(self, step: int) -> dict[str, Any] | None:
        """Verifies and completes the checkpoint of a step on all disks; returns its state, None if that fails."""
        listing = self._broadcast(self._list(step) if self.ranks.rank == 0 else None)
        if listing is None:
            return None
        here, damaged = self._verify(step, listing)
        on_disks: dict[int, set[str]] = {}
        for number, files, reasons in self._gather((self.disk.number, here, damaged)):
            on_disks.setdefault(number, set()).update(files)
            damaged = reasons or damaged
        needed = self._needed(step, listing, on_disks, here)
        missing = sorted(needed - on_disks[self.disk.number])[self.disk.rank :: self.disk.ranks]
        reasons = [reason for reason in self._gather(self._fetch(step, listing, missing)) if reason]
        if not reasons:
            if self.disk.rank == 0 and needed:
                self._complete(step, listing)
            state: dict[str, Any] = listing.state
            return state
        self.faults.damaged(step, InputError(damaged or reasons[0]))
        if self.disk.ranks < self.ranks.world and self.disk.rank == 0:
            shutil.rmtree(self._folder(step), ignore_errors=True)  # what is left of it helps no start
        return None

    def _list(self, step: int) -> Listing | None:
        """Reads `state.json` from this disk, or else from a source; returns None if it is damaged everywhere."""
        folders = []
        for number, source in enumerate(self.sources):
            try:
                if step in self._steps_in(source):
                    folders.append((number, source.folder_of(step)))
            except (InputError, FileNotFoundError) as error:
                self.faults.damaged(step, error)
        folder = self._folder(step)
        if not (folder / checkpoint.STATE).exists() and folders:
            folder.mkdir(parents=True, exist_ok=True)
            number, there = folders[0]
            (folder / checkpoint.STATE).write_bytes(self.sources[number].store.read(f"{there}/{checkpoint.STATE}"))
        try:
            state, sums = checkpoint.read_state(folder)
            if sums.pop(checkpoint.STATE) != sha256_of_json(state):
                raise InputError(f"{folder / checkpoint.STATE} does not have the sha256 its checkpoint states")
        except InputError as error:
            self.faults.damaged(step, error)
            return None
        return Listing(state, sums, folders)

    def _verify(self, step: int, listing: Listing) -> tuple[list[str], str]:
        """Verifies this rank's share of the files on its disk; returns the good ones, and what is wrong with others."""
        good, damaged = [], ""
        for file in sorted(listing.sums)[self.disk.rank :: self.disk.ranks]:
            path = self._folder(step) / file
            if path.exists() and sha256_of_file(path) == listing.sums[file]:
                good.append(file)
            elif path.exists():
                damaged = f"{path} does not have the sha256 its checkpoint states"
        return good, damaged

    def _needed(self, step: int, listing: Listing, on_disks: Mapping[int, set[str]], here: Sequence[str]) -> set[str]:
        """Returns the files that the ranks of this disk read; a collective.

        Args:
            step: of the checkpoint.
            listing: its files.
            on_disks: the good files on each disk.
            here: those that this rank has verified.
        """
        same = self.layout is not None and listing.state.get(checkpoint.LAYOUT) == self.layout.sharding
        parts: Mapping[str, Sequence[tuple[str, Box]]] = {}
        if self.layout and not same and any(files != listing.sums.keys() for files in on_disks.values()):
            parts = self._parts(step, listing, set.union(*on_disks.values()), here)
        boxes = self.boxes()
        if boxes is None:
            own = list(listing.sums)
        elif same:
            own = [file for file in listing.sums if boxes and file.startswith(checkpoint.file_prefix(self.ranks.rank))]
        else:
            own = [file for file in listing.sums if boxes and _overlaps(boxes, parts.get(file))]
        needed = set[str]()
        for number, files in self._gather((self.disk.number, own)):
            needed.update(files if number == self.disk.number else ())
        return needed

    def _parts(
        self, step: int, listing: Listing, on_disks: set[str], here: Sequence[str]
    ) -> dict[str, list[tuple[str, Box]]]:
        """Returns the parts of tensors in each file whose header can be read; each header is read once per disk."""
        absent = sorted(listing.sums.keys() - on_disks)[self.ranks.rank :: self.ranks.world]
        of_rank = {}
        for file, ways in [(file, [None]) for file in here] + [(file, self._ways(listing, file)) for file in absent]:
            for read in ways:
                with suppress(SluiceError, OSError):
                    parts = checkpoint.parts_in(self._folder(step) / file, read)
                    of_rank[file] = [(name, part.box) for name, _, part in parts]
                    break
        return {file: parts for of_one in self._gather(of_rank) for file, parts in of_one.items()}

    def _ways(self, listing: Listing, file: str) -> Iterator[Callable[[int, int], bytes]]:
        """Yields functions that return the bytes between two offsets of a file in a source."""
        for number, folder in listing.folders:
            yield partial(self.sources[number].store.read_range, f"{folder}/{file}")

    def _fetch(self, step: int, listing: Listing, files: Sequence[str]) -> str:
        """Fetches files from the sources to this disk; returns "", or the reason why one is not there."""
        for file in files:
            reason = f"{file} is not on the disk of node {self.disk.number}, and in no copy"
            for number, folder in listing.folders:
                target = self._folder(step) / file
                try:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    fetch_file(self.sources[number].store, folder, file, listing.sums[file], target)
                except (SluiceError, OSError) as error:
                    reason = str(error)
                    continue
                reason = ""
                break
            if reason:
                return reason
        if files:
            log.info("fetched %d files of step %d", len(files), step)
        return ""

    def _complete(self, step: int, listing: Listing) -> None:
        """Writes `state.json` to a disk whose files were fetched."""
        path = self._folder(step) / checkpoint.STATE
        if not path.exists():
            sums = {**listing.sums, checkpoint.STATE: sha256_of_json(listing.state)}
            path.write_text(canonical_json({**listing.state, "sha256": sums}) + "\n")

    def _folder(self, step: int) -> Path:
        return self.disk.root / checkpoint.name_of(step)

    def _broadcast(self, item: Any) -> Any:
        if self._group is None:
            return item
        items = [item]
        dist.broadcast_object_list(items, 0, self._group)
        return items[0]

    def _gather(self, item: Any) -> list[Any]:
        if self._group is None:
            return [item]
        items = [None] * self.ranks.world
        dist.all_gather_object(items, item, group=self._group)
        return items


def _overlaps(boxes: Mapping[str, Box], parts: Sequence[tuple[str, Box]] | None) -> bool:
    """Whether a file has a part of one of the boxes; of a file whose parts are unknown, it may."""
    return parts is None or any(name in boxes and boxes[name].overlap(box) for name, box in parts)
