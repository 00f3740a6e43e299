"""Merge of the sorted records of many parts into ranges of keys; bytes and requests grow with the records, not faster.

If each of R ranges read from each of P files, there would be P x R reads of ever fewer bytes. Instead

    level 0          each task reads the whole files of consecutive sources, about a range of records, and writes a run
    level 1, 2 ...   each task merges the same span of ranges of up to `_FAN` runs into a run of that span
    last level       each task merges one range, and writes it as the caller wants it

Each level has about as many runs as there are ranges, and they have the same size: a level merges as many times more
sources into a run as its span is narrower. So a task reads and sorts about a range of records in at most `_FAN` pieces,
whatever the number of parts. This bound holds for sources of at most a range of records, since a task of level 0 reads
whole ones, and for distinct keys: equal ones, such as those of all rows of one domain in an index, fall into one range,
and the task of this range holds them all (40 bytes for each record of 16). Ranges that differ in their records, such as
those of the rows of each part, are merged together in smaller numbers (`merge_levels`).

A record is read once per level, and there are log(R) / log(`_FAN`) levels after level 0. If all records fit in one
range, its task reads the sources itself, and there are no runs.

The tasks of the last level are those of `merge_ranges`, or of a pass of the caller, which reads its range itself
(`merge_levels`). Ranges of few records, such as those of the rows of one part among millions, are merged together: the
last level reads one piece of a run that has those of many ranges.

A run is a file of the artifact: the number of its records below the begin of each span that the next level reads from
it, and below the end of the last one (u64, little-endian), then the records, sorted by key. The runs are parts of their
own, so a killed merge resumes; the commit of the artifact removes them.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.core.artifact import ArtifactFolder, PartRecord
from tasks.core.engine import Engine
from tasks.core.part import Part, PartSpec
from tasks.core.ranges import IN_FLIGHT
from tasks.core.stage import Output, group_by_size

_FAN = 32
"""Most runs that a task merges. Their pieces are fetched at the same time (`ranges.IN_FLIGHT`), each by two requests,
one after the other: for its place in the run and for its records. With ranges of 4 M records of 16 bytes a piece has
2 MB, whose transfer takes as long as a round trip. One level after level 0 is enough for 130 million records, two for 4
billion, three for 137 billion."""

_COUNT = np.dtype("<u8")


@dataclass(frozen=True)
class RangeMerge:
    """What is merged. Picklable.

    Attributes:
        folder: folder of the runs, and prefix of the names of their parts.
        dtype: dtype of the records, with a field `key` of 64 bits whose values are about uniform below `keys`; if not,
            see `merge_levels`.
        read: returns all records of a source in a new or read-only array, in any order. Called in threads.
        keys: end of the keys, exclusive, at most 2**64; ranges have equal widths of them.
    """

    folder: str
    dtype: "np.dtype[Any]"
    read: Callable[[ArtifactFolder, "Source"], NDArray[np.void]]
    keys: int = 1 << 64


@dataclass(frozen=True)
class Source:
    """A file of records: its path in the artifact, its number among all sources, and its number of records."""

    path: str
    number: int
    records: int


def range_begin(number: int, count: int, keys: int = 1 << 64) -> int:
    """Returns the smallest key of range `number` of `count`; that of range `count` is `keys`."""
    return -(-(number * keys) // count)


def range_count(records: int, per_range: int) -> int:
    """Returns the number of ranges for a number of records, at least 1."""
    return max(1, -(-records // per_range))


def merge_ranges(
    merge: RangeMerge,
    write: Callable[[Part, NDArray[np.void]], None],
    output: Output,
    engine: Engine,
    sources: Sequence[Source],
    names: Sequence[str],
    per_range: int,
) -> list[PartRecord]:
    """Makes one part for each range; returns their records.

    Args:
        merge: what is merged.
        write: writes the records of a range to its part, sorted by key; equal keys are in the order of the sources.
        output: the artifact being written, whose committed parts have the sources.
        engine: runs the tasks.
        sources: the files to merge.
        names: names of the parts of the ranges, which are of equal width.
        per_range: about the most records of a task at level 0.
    """
    if len(names) == 1:
        whole = partial(_merge_whole, merge, write, output.folder)
        return output.map_parts(engine, whole, [PartSpec(names[0], tuple(sources))], conserved=False)
    merged = merge_levels(merge, output, engine, sources, len(names), per_range)
    specs = [PartSpec(name, number) for number, name in enumerate(names)]
    return output.map_parts(engine, partial(_write_range, merged, write, output.folder), specs, conserved=False)


@dataclass(frozen=True)
class MergedRanges:
    """Runs whose ranges the tasks of a pass read. Picklable; its size does not depend on the sources."""

    merge: RangeMerge
    plan: "MergePlan"

    def read(self, folder: ArtifactFolder, number: int) -> NDArray[np.void]:
        """Returns the records of a range, sorted by key; equal keys are in the order of the sources."""
        return _read_span(self.merge, folder, self.plan, self.plan.last, 0, number)


def merge_levels(
    merge: RangeMerge,
    output: Output,
    engine: Engine,
    sources: Sequence[Source],
    count: int,
    per_range: int,
    filled: int | None = None,
) -> MergedRanges:
    """Makes the runs of all levels, so that each of `count` ranges is in at most `_FAN` pieces.

    The parts are left out of the artifact; until its commit their files exist.

    Args:
        merge: what is merged.
        output: the artifact being written, whose committed parts have the sources.
        engine: runs the tasks.
        sources: the files to merge.
        count: number of ranges.
        per_range: about the most records of a task. Ranges with fewer are merged together.
        filled: if all records may be in some of the ranges, the least number of those; `count` by default. A task then
            has about `per_range` records, or those of one such range, wherever they are.
    """
    folder = output.folder
    sizes = [one.records for one in sources]
    groups = [sources[first:end] for first, end in group_by_size(sizes, per_range)]
    together = max(1, (filled or count) // range_count(sum(sizes), per_range))
    plan = plan_levels(merge.folder, len(groups), count, merge.keys, together)
    specs = [PartSpec(plan.name(0, number, 0), (number, tuple(group))) for number, group in enumerate(groups)]
    output.map_parts(engine, partial(_write_first_run, merge, folder, plan), specs, conserved=False)
    for level in range(1, plan.last):
        before = [spec.name for spec in specs]
        specs = [
            PartSpec(plan.name(level, group, span), (group, span))
            for group in range(plan.groups[level])
            for span in range(plan.spans[level])
        ]
        output.map_parts(engine, partial(_write_run, merge, folder, plan, level), specs, conserved=False)
        output.leave_out(before)  # the process of the stage holds the records of two levels at most
    output.leave_out([name for name in output.committed if name.startswith(f"{merge.folder}-")])
    return MergedRanges(merge, plan)


@dataclass(frozen=True)
class MergePlan:
    """The runs of a merge: at level l, one for each of `groups[l]` groups of sources and `spans[l]` spans of ranges.

    Attributes:
        folder: folder of the runs.
        ranges: number of ranges.
        fan: number of groups that the next level merges into one.
        groups: groups of sources by level; the last level has one.
        widths: ranges of a span by level; 1 at the last level.
        keys: end of the keys.
    """

    folder: str
    ranges: int
    fan: int
    groups: tuple[int, ...]
    widths: tuple[int, ...]
    keys: int

    @property
    def last(self) -> int:
        """The last level."""
        return len(self.widths) - 1

    @property
    def spans(self) -> list[int]:
        """Spans by level."""
        return [-(-self.ranges // width) for width in self.widths]

    def divisions(self, level: int) -> int:
        """Returns into how many spans of the next level those of a level are divided."""
        return -(-self.widths[level] // self.widths[level + 1])

    def begin(self, level: int, span: int) -> int:
        """Returns the smallest key of a span; for the one after the last, the end of the keys."""
        return range_begin(min(span * self.widths[level], self.ranges), self.ranges, self.keys)

    def name(self, level: int, group: int, span: int) -> str:
        """Returns the name of the part of a run, which has all that its records depend on besides groups of sources."""
        keys = [] if self.keys == 1 << 64 else [self.keys]
        plan = "-".join(map(str, (self.groups[0], self.ranges, self.fan, self.widths[1], *keys)))
        return f"{self.folder}-{plan}-{level}-{group:05d}-{span:05d}"

    def path(self, level: int, group: int, span: int) -> str:
        """Returns the file of a run."""
        return f"{self.folder}/{self.name(level, group, span)}.bin"


def plan_levels(folder: str, groups: int, ranges: int, keys: int, together: int) -> MergePlan:
    """Returns the plan of a merge; the last level but one has runs of `together` ranges each, if these are several."""
    levels = 1
    while _FAN**levels < groups:
        levels += 1
    fan = 1
    while fan**levels < groups:
        fan += 1
    of_groups = [-(-groups // fan**level) for level in range(levels + 1)]
    widths = [ranges, *(together * fan ** (levels - level) for level in range(1, levels + 1))]
    if groups == 1:
        widths[-1] = 1  # the only run has the places of all ranges
    elif together > 1:
        of_groups, widths = [*of_groups, 1], [*widths, 1]
    return MergePlan(folder, ranges, fan, tuple(of_groups), tuple(widths), keys)


def _merge_whole(
    merge: RangeMerge,
    write: Callable[[Part, NDArray[np.void]], None],
    folder: ArtifactFolder,
    part: Part,
    sources: Sequence[Source],
) -> None:
    write(part, _read_sources(merge, folder, sources))


def _write_first_run(
    merge: RangeMerge, folder: ArtifactFolder, plan: MergePlan, part: Part, payload: tuple[int, Sequence[Source]]
) -> None:
    group, sources = payload
    _write(part, plan, 0, group, 0, _read_sources(merge, folder, sources))


def _write_run(
    merge: RangeMerge, folder: ArtifactFolder, plan: MergePlan, level: int, part: Part, payload: tuple[int, int]
) -> None:
    group, span = payload
    _write(part, plan, level, group, span, _read_span(merge, folder, plan, level, group, span))


def _write_range(
    merged: MergedRanges,
    write: Callable[[Part, NDArray[np.void]], None],
    folder: ArtifactFolder,
    part: Part,
    number: int,
) -> None:
    write(part, merged.read(folder, number))


def _write(part: Part, plan: MergePlan, level: int, group: int, span: int, records: NDArray[np.void]) -> None:
    first = span * plan.divisions(level)
    begins = [plan.begin(level + 1, first + division) for division in range(plan.divisions(level) + 1)]
    with part.file(plan.path(level, group, span), rows=len(records)) as file:
        file.write(np.array([below(records["key"], begin) for begin in begins], _COUNT).tobytes())
        file.write(records.view(np.uint8).data)


def _read_sources(merge: RangeMerge, folder: ArtifactFolder, sources: Sequence[Source]) -> NDArray[np.void]:
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        return _sorted(merge, list(pool.map(partial(merge.read, folder), sources)))


def _read_span(
    merge: RangeMerge, folder: ArtifactFolder, plan: MergePlan, level: int, group: int, span: int
) -> NDArray[np.void]:
    """Returns the records of a span from the runs of the level before."""
    before = level - 1
    wider, division = divmod(span, plan.divisions(before))
    head = (plan.divisions(before) + 1) * _COUNT.itemsize
    size = merge.dtype.itemsize

    def read(number: int) -> NDArray[np.void]:
        path = f"{folder.path}/{plan.path(before, number, wider)}"
        at = division * _COUNT.itemsize
        first, end = np.frombuffer(folder.store.read_range(path, at, at + 2 * _COUNT.itemsize), _COUNT).tolist()
        if first == end:
            return np.empty(0, merge.dtype)
        return np.frombuffer(folder.store.read_range(path, head + first * size, head + end * size), merge.dtype)

    groups = range(group * plan.fan, min((group + 1) * plan.fan, plan.groups[before]))
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        return _sorted(merge, list(pool.map(read, groups)))


def _sorted(merge: RangeMerge, pieces: list[NDArray[np.void]]) -> NDArray[np.void]:
    """Returns the records of all pieces, sorted; equal keys are in the order of the pieces. Empties the list."""
    # With the dtype, because NumPy would change numbers to the byte order of the machine.
    records = np.concatenate([*pieces, np.empty(0, merge.dtype)], dtype=merge.dtype)
    pieces.clear()  # they have as many bytes as the sorted copy below
    sorted_: NDArray[np.void] = records[np.argsort(records["key"], kind="stable")]
    return sorted_


def below(keys: NDArray[np.uint64], bound: int) -> int:
    """Returns the number of sorted keys below a bound of at most 2**64."""
    return len(keys) if bound >> 64 else int(np.searchsorted(keys, np.uint64(bound)))
