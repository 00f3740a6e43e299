"""Exchange of sorted runs between two passes: each task of the next pass reads one range of the keys of all runs.

Ranges are buckets of hashes or, for results that go back to the documents, the row ids of each part. If each of R tasks
looked up each of P runs, the requests would grow with P x R. So runs are merged in levels (`core.merges.range_merge`),
and a task reads a few pieces of known size, whatever the number of runs. Up to `_FEW` runs of a local store are read in
place, memory-mapped. If there is only one range, its task reads all runs.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.core.artifact import ArtifactFolder, PartRecord
from tasks.core.engine import Engine
from tasks.core.merges.range_merge import MergedRanges, RangeMerge, Source, merge_levels, range_begin
from tasks.core.remote import concurrently
from tasks.core.stage import Output
from tasks.formats.dedup import sorted_runs

_FEW = 32
"""As many pieces as a task reads after a merge."""

_END = 1 << 64

ReadRun = Callable[[ArtifactFolder, Source, int, int], NDArray[np.void]]
"""Returns the records of a run with keys from the first number on and below the second, in any order. The range of a
run on a remote store is that of all keys."""


@dataclass(frozen=True)
class Exchange:
    """The records that the tasks of a pass read. Picklable; its size does not depend on the runs, if these are merged.

    Attributes:
        dtype: dtype of the records, with a field `key`.
        count: number of ranges, of equal width.
        keys: end of the keys, exclusive.
        read: reads a run.
        runs: the runs, if they are read in place.
        merged: the merged runs otherwise.
    """

    dtype: "np.dtype[Any]"
    count: int
    keys: int
    read: ReadRun
    runs: tuple[Source, ...] = ()
    merged: MergedRanges | None = None

    def records(self, folder: ArtifactFolder, number: int) -> NDArray[np.void]:
        """Returns the records of a range, in any order.

        Args:
            folder: the artifact whose passes exchange them.
            number: of the range.
        """
        if self.merged:
            return self.merged.read(folder, number)
        first, end = (range_begin(edge, self.count, self.keys) for edge in (number, number + 1))
        if not folder.store.is_local:
            first, end = 0, _END
        read = partial(_read, self.read, folder, first, end)
        pieces = map(read, self.runs) if folder.store.is_local else concurrently(read, self.runs)
        return np.concatenate([np.empty(0, self.dtype), *pieces], dtype=self.dtype)


def _read(read: ReadRun, folder: ArtifactFolder, first: int, end: int, run: Source) -> NDArray[np.void]:
    return read(folder, run, first, end)


def _read_whole(read: ReadRun, folder: ArtifactFolder, run: Source) -> NDArray[np.void]:
    return read(folder, run, 0, _END)


def read_run(
    dtype: "np.dtype[Any]", folder: ArtifactFolder, run: Source, first: int = 0, end: int = _END
) -> NDArray[np.void]:
    """Reads a run of a folder; see `ReadRun`."""
    if folder.store.is_local:
        return sorted_runs.read_range(folder, [run.path], dtype, first, end)
    return sorted_runs.decode(folder.read(run.path), dtype)


def runs_of(records: Iterable[PartRecord], folder: str, dtype: "np.dtype[Any]", first: int = 0) -> list[Source]:
    """Returns the runs in a folder that some parts have written and that are not empty, numbered from `first`."""
    paths = ((entry.path, entry.bytes) for record in records for entry in record.files)
    sizes = [
        (path, sorted_runs.most_records(size, dtype))
        for path, size in paths
        if path.startswith(f"{folder}/") and path.endswith(".bin")
    ]
    return [Source(path, number, size) for number, (path, size) in enumerate(sizes, first) if size > 0]


def exchange(
    name: str,
    dtype: "np.dtype[Any]",
    output: Output,
    engine: Engine,
    runs: Sequence[Source],
    per_range: int,
    count: int,
    keys: int = _END,
    read: ReadRun | None = None,
    filled: int | None = None,
) -> Exchange:
    """Prepares the runs of a pass for the tasks of the next one; merges them if they are many.

    Args:
        name: of the next pass, unique in the stage.
        dtype: dtype of the records, with a field `key` whose values are about uniform below `keys`, or in `filled`.
        output: the artifact being written, whose committed parts have the runs.
        engine: runs the merge.
        runs: the runs.
        per_range: about the most records that a task of the merge holds.
        count: number of ranges.
        keys: end of the keys, exclusive.
        read: reads a run; `read_run` by default.
        filled: least number of ranges that may have all records; `count` by default.
    """
    read = read or partial(read_run, dtype)
    if not runs or count == 1 or (output.store.is_local and len(runs) <= _FEW):
        return Exchange(dtype, count, keys, read, tuple(runs))
    merge = RangeMerge(f"to-{name}", dtype, partial(_read_whole, read), keys)
    merged = merge_levels(merge, output, engine, runs, count, per_range, filled)
    return Exchange(dtype, count, keys, read, merged=merged)


def exchange_by_part(
    name: str,
    dtype: "np.dtype[Any]",
    output: Output,
    engine: Engine,
    runs: Sequence[Source],
    per_range: int,
    earlier: int,
    new: int,
) -> Exchange:
    """Prepares runs sorted by row id (`document_ids`): range n has the records of part n. See `exchange`.

    The first `earlier` parts are those of the dedup index, the others are `new`. The fewer of the two may have nearly
    all records, for example a small version with a large index.
    """
    parts, filled = earlier + new, min(earlier, new) or None
    return exchange(name, dtype, output, engine, runs, per_range, parts, parts << 32, filled=filled)
