"""Documents of a version that the version before has encoded, for shards that accumulate.

No table of the earlier version is read, but the index of its keys (`key_index`), twice at most, whatever the number of
its parts:

    known.ids-<n>     per new part: the keys of the ids and of the pages of its documents
    known.by_id-<n>   per range of keys of ids: the earlier documents with the id of a new one
    known.by_page-<n> per range of keys of pages: those of them that have its page, too
    known-<n>         per range of documents: a byte each, 1 if an earlier document has both its id and its page

A key has 64 bits, with which one of a billion documents could be taken for another; both keys have 128, like an id.
Few documents have the same id, but all rows of a source may have the same page: so pages are only compared for equal
ids, and the work is linear. These parts are left out of the artifact; a killed stage resumes with them. No source has a
dot in its name.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.core.artifact import ArtifactFolder
from tasks.core.engine import Engine
from tasks.core.merges.range_merge import RangeMerge, Source, merge_ranges, range_begin, range_count
from tasks.core.merges.row_marks import (
    RowMarks,
    RowRanges,
    marks_path,
    merge_marks,
    range_names,
    range_number,
    sources_of,
    write_found,
)
from tasks.core.stage import Output, Part, PartSpec
from tasks.formats.documents.key_index import ID, KEY, URL, MergedKeys, keys_of
from tasks.formats.documents.tombstones import page_term

_IDS, _BY_ID, _BY_PAGE, _KNOWN = "known.ids", "known.by_id", "known.by_page", "known"
_NEW = np.dtype([("key", "<u8"), ("page", "<u8"), ("row", "<u8")])
"""A new document: the keys of its id and of its page, and its number."""
_CANDIDATE = np.dtype([("key", "<u8"), ("place", "<u8"), ("row", "<u8")])
"""A new document by the key of its page, and an earlier one with its id: part and row in the index."""

_RANGE = 1 << 22
"""About the most keys of the index, and new documents, that a task compares: 64 MB and 96 MB."""

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
    specs = list(map(PartSpec, range_names(_IDS, len(payloads)), payloads))
    records = output.map_parts(engine, partial(_write_keys, names), specs, conserved=False)
    total, indexed = sum(record.rows_in for record in records), sum(earlier.rows)
    ranges = RowRanges(total, range_count(total, _RANGE))

    by_id = range_names(_BY_ID, range_count(total + indexed, _RANGE))
    merge = RangeMerge(f"{_IDS}-merge", _NEW, _read_keys)
    write = partial(_write_candidates, earlier, len(by_id))
    candidates = sources_of(merge_ranges(merge, write, output, engine, sources_of(records), by_id, _RANGE))

    by_page = range_names(_BY_PAGE, range_count(sum(one.records for one in candidates) + indexed, _RANGE))
    merge = RangeMerge(f"{_BY_ID}-merge", _CANDIDATE, _read_candidates)
    write = partial(_write_found, earlier, ranges, len(by_page))
    found = merge_ranges(merge, write, output, engine, candidates, by_page, _RANGE)

    merge_marks(_KNOWN, ranges, output, engine, found, _RANGE)
    marks, first = [], 0
    for record in records:
        marks.append(RowMarks(output.folder, _KNOWN, ranges, first, first + record.rows_in))
        first += record.rows_in
    return marks


def leave_out(output: Output) -> None:
    """Leaves the parts of all passes out of the artifact."""
    output.leave_out([name for name in output.committed if name.startswith((f"{_KNOWN}.", f"{_KNOWN}-"))])


def _write_keys(names: Callable[[Any], Names], part: Part, payload: Any) -> None:
    ids, urls = names(payload)
    table = np.empty(len(ids), _NEW)
    table["key"], table["page"] = keys_of(ID, ids), keys_of(URL, map(page_term, urls))
    table["row"] = np.arange(len(ids))
    part.count_in(len(ids))
    part.write(marks_path(_IDS, part.name), table[np.argsort(table["key"])].tobytes(), rows=len(table))


def _read_keys(folder: ArtifactFolder, source: Source) -> NDArray[np.void]:
    keys = np.frombuffer(folder.read(source.path), _NEW).copy()
    keys["row"] += np.uint64(source.number)
    return keys


def _write_candidates(earlier: MergedKeys, count: int, part: Part, new: NDArray[np.void]) -> None:
    """Writes the pairs of a new document and an earlier one with the same id; runs on a worker."""
    old = _of_range(earlier, count, part, new)
    first, end = (np.searchsorted(old["key"], new["key"], side) for side in ("left", "right"))
    several = end - first
    at = np.arange(several.sum()) + np.repeat(first - np.cumsum(several) + several, several)
    candidates = np.empty(len(at), _CANDIDATE)
    candidates["key"], candidates["row"] = np.repeat(new["page"], several), np.repeat(new["row"], several)
    candidates["place"] = _places(old[at])
    part.write(marks_path(_BY_ID, part.name), candidates.tobytes(), rows=len(candidates))


def _read_candidates(folder: ArtifactFolder, source: Source) -> NDArray[np.void]:
    return np.frombuffer(folder.read(source.path), _CANDIDATE)


def _write_found(earlier: MergedKeys, ranges: RowRanges, count: int, part: Part, new: NDArray[np.void]) -> None:
    """Writes a mark for each new document whose page an earlier one with its id has; runs on a worker."""
    old = _of_range(earlier, count, part, new)
    keys, places = np.concatenate([old["key"], new["key"]]), np.concatenate([_places(old), new["place"]])
    order = np.lexsort((places, keys))  # stable: of equal ones, those of the index are first
    keys, places = keys[order], places[order]
    is_first = np.append(True, (keys[1:] != keys[:-1]) | (places[1:] != places[:-1]))[: len(keys)]
    is_known = (order < len(old))[is_first][np.cumsum(is_first) - 1] & (order >= len(old))
    write_found(_BY_PAGE, ranges, part, np.unique(new["row"][order[is_known] - len(old)]))


def _of_range(earlier: MergedKeys, count: int, part: Part, new: NDArray[np.void]) -> NDArray[np.void]:
    """Returns the keys (KEY) of the index in the range of a part; none if there is no new document to compare."""
    number = range_number(part.name)
    return earlier.between(range_begin(number, count), range_begin(number + 1, count)) if len(new) else np.empty(0, KEY)


def _places(old: NDArray[np.void]) -> NDArray[np.uint64]:
    places: NDArray[np.uint64] = old["part"].astype(np.uint64) << np.uint64(32) | old["row"]
    return places
