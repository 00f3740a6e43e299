"""Rows that give no document because of other rows: copies, and captures of pages rendered by a browser.

The result depends only on the input, not on its division into parts. No process holds the identities of all rows:

    identities-<n>    per group of parts: reads the rows, writes the identities of those that may be copies
    exclusions-<n>    per range of the hashes of URLs (`tasks.core.range_merge`): compares the identities of each URL
    excluded-<n>      per range of rows (again `range_merge`): writes a byte per row, its reason

Rows are numbered in input order over all parts, so the bytes of a part are in one place. If all rows fit in one range,
one task compares all identities and writes all reasons; if they are few, the task that reads them does. These parts are
left out of the artifact; a killed stage resumes with them.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tasks.core.artifact import ArtifactFolder, PartRecord
from tasks.core.engine import Engine
from tasks.core.range_merge import RangeMerge, Source, merge_ranges, range_begin, range_count
from tasks.core.stage import Output, Part, PartSpec, group_by_size
from tasks.stages.extract.config import ExtractConfig
from tasks.stages.extract.first_pass.identity import IDENTITY, NO_IDENTITY, SEVERAL_ROWS, unit_identities
from tasks.stages.extract.first_pass.row_counts import RowCounts, check_row_counts
from tasks.stages.extract.sources import InputUnit

EXCLUDED = ("", "duplicate_capture", "rendered")
"""Reasons why a row gives no document because of other rows; "" for none."""

_IDENTITIES, _EXCLUSIONS, _EXCLUDED = "identities", "exclusions", "excluded"
_EXCLUSION = np.dtype([("key", "<u8"), ("reason", "u1")])
"""One excluded row. `key`: its number times `_step`. `reason`: index in EXCLUDED."""

_RANGE_ROWS = 1 << 22
"""About the most rows of a range. Their identities have 172 MB, which a task sorts with twice as much memory."""
_GROUP_WEIGHT = 32_000_000
"""Input bytes whose identities are read in one task: half a second of work for JSON. Small corpora have one group."""
_FILE_WEIGHT, _INDEXED_WEIGHT = 1_000_000, 1_000
"""Input bytes that take as long to read as opening a file on an object store, and as one entry of an index."""


@dataclass(frozen=True)
class ExcludedRows:
    """The excluded rows of one part. Picklable, of constant size.

    Attributes:
        folder: the artifact being written.
        total: number of rows of all parts.
        ranges: number of ranges of rows.
        first: number of the first row of the part.
        end: end of its rows, exclusive.
    """

    folder: ArtifactFolder
    total: int
    ranges: int
    first: int
    end: int

    def reasons(self) -> bytes:
        """Returns the reason of each row of the part, as index in EXCLUDED."""
        if self.first == self.end:
            return b""
        first, last = (row * _step(self.total) * self.ranges >> 64 for row in (self.first, self.end - 1))
        return b"".join(map(self._read, range(first, last + 1)))

    def _read(self, number: int) -> bytes:
        begin, end = _rows_of(number, self.ranges, self.total)
        path = f"{self.folder.path}/{_path(_EXCLUDED, _names(_EXCLUDED, self.ranges)[number])}"
        return self.folder.store.read_range(path, max(self.first, begin) - begin, min(self.end, end) - begin)


@dataclass(frozen=True)
class PartInput:
    """Input of one part.

    Attributes:
        config: settings of the stage.
        units: input units of the part.
        excluded: its rows that give no document because of other rows; None if it cannot have any.
    """

    config: ExtractConfig
    units: tuple[InputUnit, ...]
    excluded: ExcludedRows | None = None


_Group = tuple[tuple[int, PartInput], ...]
"""Numbers and inputs of consecutive parts whose identities one task reads."""


def exclude_rows(
    specs: Sequence[PartSpec], units: Sequence[InputUnit], output: Output, engine: Engine
) -> list[PartSpec]:
    """Finds the excluded rows of all parts; returns the parts (payload `PartInput`) with them.

    Raises:
        InputError: a file of rows does not match its settings; see `check_row_counts`.
    """
    # Quick digests are not comparable with those of an index, which are SHA-1.
    quick = not any(unit.crawl and unit.crawl.index for unit in units)
    groups = _groups(specs)
    work = _exclude_in_group if len(groups) == 1 else _write_identities
    records = output.map_parts(engine, partial(work, quick), groups, conserved=False)
    check_row_counts(_row_counts(groups, records), units)
    total = sum(record.rows_in for record in records)
    ranges = _merge(records, total, output, engine) if len(groups) > 1 else 1
    excluded, first = dict[int, ExcludedRows](), 0
    for group, record in zip(groups, records, strict=True):
        for number, _ in group.payload:
            end = first + int(record.metrics[f"part {number}"])
            excluded[number] = ExcludedRows(output.folder, total, ranges, first, end)
            first = end
    return [
        replace(spec, payload=replace(spec.payload, excluded=excluded.get(number))) for number, spec in enumerate(specs)
    ]


def leave_out(output: Output) -> None:
    """Leaves the parts of all passes out of the artifact."""
    passes = tuple(f"{name}-" for name in (_IDENTITIES, _EXCLUSIONS, _EXCLUDED))
    output.leave_out([name for name in output.committed if name.startswith(passes)])


def _groups(specs: Sequence[PartSpec]) -> list[PartSpec]:
    """Returns the parts of the pass that reads identities, with payloads `_Group`."""
    weights = [sum(map(_weight, spec.payload.units)) for spec in specs]
    read = [number for number, weight in enumerate(weights) if weight]
    spans = list(group_by_size([weights[number] for number in read], _GROUP_WEIGHT))
    names = _names(_IDENTITIES if len(spans) > 1 else _EXCLUDED, len(spans))
    return [
        PartSpec(name, tuple((number, specs[number].payload) for number in read[first:end]), specs[read[first]].run)
        for name, (first, end) in zip(names, spans, strict=True)
    ]


def _weight(unit: InputUnit) -> int:
    """Returns the input bytes that are read for the identities of a unit; 0 if its row cannot have copies."""
    if unit.crawl and unit.crawl.index:
        return _FILE_WEIGHT + unit.crawl.records * _INDEXED_WEIGHT
    return _FILE_WEIGHT + unit.weight if unit.source.kind in SEVERAL_ROWS else 0


def _merge(records: Sequence[PartRecord], total: int, output: Output, engine: Engine) -> int:
    """Finds the excluded rows among the identities of several groups; returns the number of ranges of rows."""
    ranges = range_count(total, _RANGE_ROWS)
    last = _names(_EXCLUDED, ranges)
    write = partial(_exclude_in_range, total) if ranges == 1 else partial(_write_exclusions, total)
    between = last if ranges == 1 else _names(_EXCLUSIONS, ranges)
    compare = RangeMerge(f"{_IDENTITIES}-merge", IDENTITY, _read_identities)
    compared = merge_ranges(compare, write, output, engine, _sources(records), between, _RANGE_ROWS)
    if ranges > 1:
        order = RangeMerge(f"{_EXCLUSIONS}-merge", _EXCLUSION, _read_exclusions)
        write = partial(_write_reasons, total, ranges)
        merge_ranges(order, write, output, engine, _sources(compared), last, _RANGE_ROWS)
    return ranges


def _sources(records: Sequence[PartRecord]) -> list[Source]:
    """Returns the files of records with any; the number of each is that of the rows read before."""
    sources, before = [], 0
    for record in records:
        (file,) = record.files
        if file.rows:
            sources.append(Source(file.path, before, file.rows))
        before += record.rows_in
    return sources


def _write_identities(quick: bool, part: Part, group: _Group) -> None:
    identities = np.fromiter(_identities(quick, part, group), IDENTITY)
    part.write(_path(_IDENTITIES, part.name), identities.tobytes(), rows=len(identities))


def _exclude_in_group(quick: bool, part: Part, group: _Group) -> None:
    identities = np.fromiter(_identities(quick, part, group), IDENTITY)
    _exclude_in_range(part.rows_in, part, identities)


def _exclude_in_range(total: int, part: Part, identities: NDArray[np.void]) -> None:
    _write_reasons(total, 1, part, exclusions(identities, total))


def _write_exclusions(total: int, part: Part, identities: NDArray[np.void]) -> None:
    found = exclusions(identities, total)
    part.write(_path(_EXCLUSIONS, part.name), found.tobytes(), rows=len(found))


def _write_reasons(total: int, ranges: int, part: Part, found: NDArray[np.void]) -> None:
    begin, end = _rows_of(_names(_EXCLUDED, ranges).index(part.name), ranges, total)
    reasons = np.zeros(end - begin, np.uint8)
    reasons[found["key"] // np.uint64(_step(total)) - np.uint64(begin)] = found["reason"]
    part.write(_path(_EXCLUDED, part.name), reasons.tobytes())


def _identities(quick: bool, part: Part, group: _Group) -> Iterator[tuple[int, bytes, int, bool, int]]:
    """Yields the identities (IDENTITY) of rows that may be copies, numbered in input order from the first of the group.

    Counts the rows as metrics of the part: "part <number>", and for files of rows "unit <number in group> <reason>".
    """
    row = units = 0
    for number, part_input in group:
        first = row
        for unit in part_input.units:
            counts = Counter[str]()
            for one in unit_identities(unit, part_input.config, quick, counts):
                if one is not NO_IDENTITY:
                    yield *one, row
                row += 1
            for reason, rows in counts.items():
                part.metric(f"unit {units} {reason}", rows)
            units += 1
        part.metric(f"part {number}", row - first)
    part.count_in(row)


def _row_counts(groups: Sequence[PartSpec], records: Sequence[PartRecord]) -> RowCounts:
    """Returns what `_identities` has counted."""
    counts = RowCounts()
    for group, record in zip(groups, records, strict=True):
        units = [unit for _, part_input in group.payload for unit in part_input.units]
        for name, rows in record.metrics.items():
            of, number, *reason = name.split(" ")
            if of == "unit":
                unit = units[int(number)]
                counts[unit.source.name, unit.file.path, reason[0]] += int(rows)
    return counts


def exclusions(identities: NDArray[np.void], total: int) -> NDArray[np.void]:
    """Returns the excluded rows among some whose identities are all those of their URLs, as records of _EXCLUSION.

    Args:
        identities: records of IDENTITY; those of one URL are in input order.
        total: number of rows of all parts.
    """
    rendered = np.unique(identities["page"][identities["rendered"]])
    replaced = np.isin(identities["page"], rendered) & ~identities["rendered"] & (identities["page"] != 0)
    # A replaced capture must not count as the original of its rendered page, which would then be a copy.
    candidates = np.flatnonzero(~replaced)
    originals = candidates[np.unique(identities["id"][candidates], return_index=True)[1]]
    reasons = np.full(len(identities), EXCLUDED.index("duplicate_capture"), np.uint8)
    reasons[originals] = EXCLUDED.index("")
    reasons[replaced] = EXCLUDED.index("rendered")
    excluded = np.flatnonzero(reasons)
    found = np.empty(len(excluded), _EXCLUSION)
    found["key"], found["reason"] = identities["row"][excluded] * np.uint64(_step(total)), reasons[excluded]
    return found


def _read_identities(folder: ArtifactFolder, source: Source) -> NDArray[np.void]:
    identities = np.frombuffer(folder.read(source.path), IDENTITY).copy()
    identities["row"] += np.uint64(source.number)
    return identities


def _read_exclusions(folder: ArtifactFolder, source: Source) -> NDArray[np.void]:
    return np.frombuffer(folder.read(source.path), _EXCLUSION)


def _step(total: int) -> int:
    """Returns the factor that distributes the numbers of rows over the 64 bits of keys."""
    return ((1 << 64) - 1) // max(1, total)


def _rows_of(number: int, ranges: int, total: int) -> tuple[int, int]:
    """Returns first and end of the rows whose keys are in a range."""
    first, end = (min(total, -(-range_begin(edge, ranges) // _step(total))) for edge in (number, number + 1))
    return first, end


def _names(name: str, count: int) -> list[str]:
    return [f"{name}-{number:05d}-of-{count:05d}" for number in range(count)]


def _path(folder: str, part: str) -> str:
    return f"{folder}/{part}.bin"
