"""Rows that give no document because of other rows: copies, and captures of pages rendered by a browser.

The result depends only on the input, not on its division into parts. No process holds the identities of all rows:

    identities-<n>    per group of parts: reads the rows, writes the identities of those that may be copies
    exclusions-<n>    per range of the hashes of URLs (`core.merges.range_merge`): compares the identities of each URL
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
from tasks.core.merges.range_merge import RangeMerge, Source, merge_ranges, range_count
from tasks.core.merges.row_marks import (
    MARK,
    RowMarks,
    RowRanges,
    marks_path,
    merge_marks,
    range_names,
    sources_of,
    write_marks,
)
from tasks.core.stage import Output, Part, PartSpec, group_by_size
from tasks.stages.extract.config import ExtractConfig
from tasks.stages.extract.first_pass.identity import IDENTITY, NO_IDENTITY, SEVERAL_ROWS, unit_identities
from tasks.stages.extract.first_pass.row_counts import RowCounts, check_row_counts
from tasks.stages.extract.sources import InputUnit

EXCLUDED = ("", "duplicate_capture", "rendered")
"""Reasons why a row gives no document because of other rows; "" for none."""

_IDENTITIES, _EXCLUSIONS, _EXCLUDED = "identities", "exclusions", "excluded"

_RANGE_ROWS = 1 << 22
"""About the most rows of a range. Their identities have 172 MB, which a task sorts with twice as much memory."""
_GROUP_WEIGHT = 32_000_000
"""Input bytes whose identities are read in one task: half a second of work for JSON. Small corpora have one group."""
_FILE_WEIGHT, _INDEXED_WEIGHT = 1_000_000, 1_000
"""Input bytes that take as long to read as opening a file on an object store, and as one entry of an index."""


@dataclass(frozen=True)
class PartInput:
    """Input of one part.

    Attributes:
        config: settings of the stage.
        units: input units of the part.
        excluded: the reason of each row, as index in EXCLUDED; None if no row can have one.
    """

    config: ExtractConfig
    units: tuple[InputUnit, ...]
    excluded: RowMarks | None = None


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
    ranges = RowRanges(total, range_count(total, _RANGE_ROWS) if len(groups) > 1 else 1)
    if len(groups) > 1:
        _merge(records, ranges, output, engine)
    excluded, first = dict[int, RowMarks](), 0
    for group, record in zip(groups, records, strict=True):
        for number, _ in group.payload:
            end = first + int(record.metrics[f"part {number}"])
            excluded[number] = RowMarks(output.folder, _EXCLUDED, ranges, first, end)
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
    names = range_names(_IDENTITIES if len(spans) > 1 else _EXCLUDED, len(spans))
    return [
        PartSpec(name, tuple((number, specs[number].payload) for number in read[first:end]), specs[read[first]].run)
        for name, (first, end) in zip(names, spans, strict=True)
    ]


def _weight(unit: InputUnit) -> int:
    """Returns the input bytes that are read for the identities of a unit; 0 if its row cannot have copies."""
    if unit.crawl and unit.crawl.index:
        return _FILE_WEIGHT + unit.crawl.records * _INDEXED_WEIGHT
    return _FILE_WEIGHT + unit.weight if unit.source.kind in SEVERAL_ROWS else 0


def _merge(records: Sequence[PartRecord], ranges: RowRanges, output: Output, engine: Engine) -> None:
    """Finds the excluded rows among the identities of several groups."""
    write = partial(_exclude_in_range if ranges.count == 1 else _write_exclusions, ranges)
    names = range_names(_EXCLUDED if ranges.count == 1 else _EXCLUSIONS, ranges.count)
    compare = RangeMerge(f"{_IDENTITIES}-merge", IDENTITY, _read_identities)
    compared = merge_ranges(compare, write, output, engine, sources_of(records), names, _RANGE_ROWS)
    if ranges.count > 1:
        merge_marks(_EXCLUDED, ranges, output, engine, compared, _RANGE_ROWS)


def _write_identities(quick: bool, part: Part, group: _Group) -> None:
    identities = np.fromiter(_identities(quick, part, group), IDENTITY)
    part.write(marks_path(_IDENTITIES, part.name), identities.tobytes(), rows=len(identities))


def _exclude_in_group(quick: bool, part: Part, group: _Group) -> None:
    identities = np.fromiter(_identities(quick, part, group), IDENTITY)
    _exclude_in_range(RowRanges(part.rows_in, 1), part, identities)


def _exclude_in_range(ranges: RowRanges, part: Part, identities: NDArray[np.void]) -> None:
    write_marks(_EXCLUDED, ranges, part, exclusions(identities, ranges))


def _write_exclusions(ranges: RowRanges, part: Part, identities: NDArray[np.void]) -> None:
    found = exclusions(identities, ranges)
    part.write(marks_path(_EXCLUSIONS, part.name), found.tobytes(), rows=len(found))


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


def exclusions(identities: NDArray[np.void], ranges: RowRanges) -> NDArray[np.void]:
    """Returns the excluded rows among some whose identities are all those of their URLs, as records of MARK.

    Args:
        identities: records of IDENTITY; those of one URL are in input order.
        ranges: the rows of all parts.
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
    found = np.empty(len(excluded), MARK)
    found["key"], found["mark"] = ranges.keys(identities["row"][excluded]), reasons[excluded]
    return found


def _read_identities(folder: ArtifactFolder, source: Source) -> NDArray[np.void]:
    identities = np.frombuffer(folder.read(source.path), IDENTITY).copy()
    identities["row"] += np.uint64(source.number)
    return identities
