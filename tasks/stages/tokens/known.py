"""Documents of a version that the version before has encoded, for shards that accumulate.

No table of the earlier version is read, but each range of the index of its keys (`key_index`) once, whatever the number
of its parts:

    known.keys-<n>    per new part: the keys of the ids and of the pages of its documents
    known.found-<n>   per range of keys: the earlier documents that have them
    known-<n>         per range of documents: a byte each, 1 if an earlier document has both its id and its page

A key has 64 bits, with which one of a billion documents could be taken for another; both keys have 128, like an id.
These parts are left out of the artifact; a killed stage resumes with them.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.core.artifact import ArtifactFolder
from tasks.core.engine import Engine
from tasks.core.range_merge import RangeMerge, Source, merge_ranges, range_begin, range_count
from tasks.core.row_marks import (
    MARK,
    RowMarks,
    RowRanges,
    marks_path,
    range_names,
    range_number,
    sources_of,
    write_marks,
)
from tasks.core.stage import Output, Part, PartSpec
from tasks.formats.documents.key_index import ID, KEY, URL, MergedKeys, keys_of
from tasks.formats.documents.tombstones import page_term

_KEYS, _FOUND, _KNOWN = "known.keys", "known.found", "known"
_ROW_KEY = np.dtype([("key", "<u8"), ("row", "<u8")])
_MATCH = np.dtype([("key", "<u8"), ("place", "<u8")])
"""An earlier document (part and row in its index) with a key of a new one, whose row `key` stands for (`RowRanges`)."""

_RANGE = 1 << 22
"""About the most keys of the index, and new documents, that a task compares: 64 MB."""

Names = tuple[Sequence[str], Sequence[str]]
"""Ids (32 hex digits) and URLs of the documents of a part."""


def find_known(
    earlier: MergedKeys, names: Callable[[Any], Names], payloads: Sequence[Any], output: Output, engine: Engine
) -> list[RowMarks]:
    """Returns which documents of each part the version before has.

    Args:
        earlier: the keys of its documents.
        names: returns ids and URLs of the documents of a part, given its payload; must be picklable.
        payloads: of the parts.
        output: the artifact being written.
        engine: runs the tasks.
    """
    specs = list(map(PartSpec, range_names(_KEYS, len(payloads)), payloads))
    records = output.map_parts(engine, partial(_write_keys, names), specs, conserved=False)
    total = sum(record.rows_in for record in records)
    ranges = RowRanges(total, range_count(total, _RANGE))
    found = range_names(_FOUND, range_count(2 * total + sum(earlier.rows), _RANGE))
    compare, write = (
        RangeMerge(f"{_KEYS}-merge", _ROW_KEY, _read_keys),
        partial(_write_matches, earlier, ranges, len(found)),
    )
    compared = merge_ranges(compare, write, output, engine, sources_of(records), found, _RANGE)
    mark = RangeMerge(f"{_FOUND}-merge", _MATCH, _read_matches)
    merge_ranges(
        mark,
        partial(_write_known, ranges),
        output,
        engine,
        sources_of(compared),
        range_names(_KNOWN, ranges.count),
        _RANGE,
    )
    marks, first = [], 0
    for record in records:
        marks.append(RowMarks(output.folder, _KNOWN, ranges, first, first + record.rows_in))
        first += record.rows_in
    return marks


def leave_out(output: Output) -> None:
    """Leaves the parts of all passes out of the artifact."""
    passes = tuple(f"{name}-" for name in (_KEYS, _FOUND, _KNOWN))
    output.leave_out([name for name in output.committed if name.startswith(passes)])


def _write_keys(names: Callable[[Any], Names], part: Part, payload: Any) -> None:
    ids, urls = names(payload)
    table = np.empty(2 * len(ids), _ROW_KEY)
    table["key"] = np.concatenate([keys_of(ID, ids), keys_of(URL, map(page_term, urls))])
    table["row"] = np.tile(np.arange(len(ids)), 2)
    part.count_in(len(ids))
    part.write(marks_path(_KEYS, part.name), table[np.argsort(table["key"])].tobytes(), rows=len(table))


def _read_keys(folder: ArtifactFolder, source: Source) -> NDArray[np.void]:
    keys = np.frombuffer(folder.read(source.path), _ROW_KEY).copy()
    keys["row"] += np.uint64(source.number)
    return keys


def _write_matches(earlier: MergedKeys, ranges: RowRanges, count: int, part: Part, keys: NDArray[np.void]) -> None:
    number = range_number(part.name)
    old = earlier.between(range_begin(number, count), range_begin(number + 1, count)) if len(keys) else np.empty(0, KEY)
    first, end = (np.searchsorted(old["key"], keys["key"], side) for side in ("left", "right"))
    several = end - first
    at = np.arange(several.sum()) + np.repeat(first - np.cumsum(several) + several, several)
    matches = np.empty(len(at), _MATCH)
    matches["key"] = ranges.keys(np.repeat(keys["row"], several))
    matches["place"] = old["part"][at].astype(np.uint64) << np.uint64(32) | old["row"][at]
    part.write(marks_path(_FOUND, part.name), matches.tobytes(), rows=len(matches))


def _read_matches(folder: ArtifactFolder, source: Source) -> NDArray[np.void]:
    return np.frombuffer(folder.read(source.path), _MATCH)


def _write_known(ranges: RowRanges, part: Part, matches: NDArray[np.void]) -> None:
    matches = matches[np.lexsort((matches["place"], matches["key"]))]
    both = np.flatnonzero(matches[1:] == matches[:-1])
    marks = np.ones(len(both), MARK)
    marks["key"] = matches["key"][both]
    write_marks(_KNOWN, ranges, part, marks)
