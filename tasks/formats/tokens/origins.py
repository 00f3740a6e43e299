"""Origins of token shards that accumulate versions: from which documents each part was made.

Reads and writes `origins.json` of an encoding: part -> {documents, part}, the artifact and the part of it. Only shards
with `[encode] accumulate` have it. The names of their parts begin with the number of the version that made them, from 1
on, so that no two versions have a part of the same name.
"""

import json
from collections.abc import Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tasks.core.artifact import Artifact, ArtifactFolder
from tasks.core.config import Config
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.merges.range_merge import RangeMerge, Source, merge_ranges, range_count
from tasks.core.merges.row_marks import (
    RowMarks,
    RowRanges,
    marks_path,
    merge_marks,
    range_names,
    sources_of,
    write_found,
)
from tasks.core.part import Part, PartSpec
from tasks.core.stage import Output
from tasks.formats.documents.text import hashes64
from tasks.formats.tokens.index import indexed_rows, read_urls, table_path

FILE = "origins.json"
_PREFIX = "v"

_PAGES, _FOUND, _MARKS = "superseded.pages", "superseded.found", "superseded.rows"  # no source has a dot in its name
_PAGE = np.dtype([("key", "<u8"), ("version", "<u4"), ("row", "<u8")])
"""A document: the hash of its URL, the version that encoded it, and its number among all documents of the shards."""
_RANGE_ROWS = 1 << 22
"""About the most documents that a task compares: 84 MB."""


class Origin(Config):
    """The documents of one part: the address of their artifact, and the name of its part."""

    documents: str
    part: str


Origins = Mapping[str, Origin]
"""Origin of each part of documents, by the name of the part of the shards."""


def part_name(version: int, name: str) -> str:
    """Returns the name of a part of the shards.

    >>> part_name(2, "part-00000-of-00004")
    'v00002-part-00000-of-00004'
    """
    return f"{_PREFIX}{version:05d}-{name}"


def version_of(part: str) -> int:
    """Returns the number of the version that made a part; 1 for parts of shards that do not accumulate.

    >>> version_of("v00002-part-00000-of-00004"), version_of("part-00000-of-00004")
    (2, 1)
    """
    return int(part.removeprefix(_PREFIX).partition("-")[0]) if part.startswith(_PREFIX) else 1


def versions_in(origins: Origins) -> int:
    """Returns the number of versions in accumulated shards; 0 without parts."""
    return max(map(version_of, origins), default=0)


def write_origins(part: Part, origins: Origins) -> None:
    """Writes FILE."""
    content = {name: origin.model_dump() for name, origin in origins.items()}
    part.write(FILE, json.dumps(content, indent=1, sort_keys=True).encode() + b"\n")


def accumulates(shards: Artifact) -> bool:
    """Returns whether shards have the documents of several versions."""
    return FILE in shards.files(FILE)


def read_origins(shards: Artifact) -> dict[str, Origin]:
    """Returns the origins of accumulated shards.

    Raises:
        InputError: the shards do not accumulate.
    """
    if not accumulates(shards):
        raise InputError(
            f"{shards.address} was made without [encode] accumulate, so that its parts cannot be taken over",
            "begin with a version that accumulates under another recipe name, or remove the setting",
        )
    return {name: Origin.model_validate(origin) for name, origin in json.loads(shards.read(FILE)).items()}


def superseded_marks(shards: Artifact, output: Output, engine: Engine) -> dict[str, RowMarks]:
    """Returns the marks of the rows of each shard whose URL a later version has encoded again; {} for one version.

    A page that has changed is a new document; the earlier one is no longer trained on. Workers compare hashes of URLs
    range by range (`tasks.core.merges.row_marks`), in parts for `leave_out` when all marks are read.

    Args:
        shards: artifact of the stage encode.
        output: the artifact being written.
        engine: runs the tasks.
    """
    if not accumulates(shards):
        return {}
    parts = [part for part in shards.parts if any(file.path == table_path(part.name) for file in part.files)]
    specs = [
        PartSpec(name, shards.limited_to([part]))
        for name, part in zip(range_names(_PAGES, len(parts)), parts, strict=True)
    ]
    records = output.map_parts(engine, _write_pages, specs, conserved=False)
    total = sum(record.rows_in for record in records)
    ranges = RowRanges(total, range_count(total, _RANGE_ROWS))
    names = range_names(_FOUND, ranges.count)
    compare = RangeMerge(f"{_PAGES}-merge", _PAGE, _read_pages)
    found = merge_ranges(
        compare, partial(_write_superseded, ranges), output, engine, sources_of(records), names, _RANGE_ROWS
    )
    merge_marks(_MARKS, ranges, output, engine, found, _RANGE_ROWS)
    begins, before = dict[str, int](), 0
    for part, record in zip(parts, records, strict=True):
        begins[part.name] = before
        before += record.rows_in
    marks, folder = {}, output.folder
    for name, shard in indexed_rows(shards).items():
        first = begins[shard.part] + shard.first
        marks[name] = RowMarks(folder, _MARKS, ranges, first, first + shard.rows)
    return marks


def leave_out(output: Output) -> None:
    """Leaves the parts of all passes out of the artifact."""
    passes = tuple(f"{name}-" for name in (_PAGES, _FOUND, _MARKS))
    output.leave_out([name for name in output.committed if name.startswith(passes)])


def _write_pages(part: Part, shards: Artifact) -> None:
    (record,) = shards.parts
    urls = read_urls(shards, record.name)
    pages = np.empty(len(urls), _PAGE)
    pages["key"] = hashes64("url:", urls)
    pages["version"], pages["row"] = version_of(record.name), np.arange(len(urls))
    part.count_in(len(urls))
    part.write(marks_path(_PAGES, part.name), pages[np.argsort(pages["key"])].tobytes(), rows=len(pages))


def _read_pages(folder: ArtifactFolder, source: Source) -> NDArray[np.void]:
    pages = np.frombuffer(folder.read(source.path), _PAGE).copy()
    pages["row"] += np.uint64(source.number)
    return pages


def _write_superseded(ranges: RowRanges, part: Part, pages: NDArray[np.void]) -> None:
    write_found(_FOUND, ranges, part, pages["row"][_is_superseded(pages["key"], pages["version"])])


def _is_superseded(keys: NDArray[np.uint64], versions: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Returns which keys a later version has, too; all of shape (rows,).

    >>> _is_superseded(np.array([7, 8, 7], np.uint64), np.array([1, 1, 2], np.uint32)).tolist()
    [True, False, False]
    """
    order = np.lexsort((versions, keys))
    is_last = np.append(keys[order][1:] != keys[order][:-1], True)[: len(keys)]
    newest = versions[order][is_last][np.cumsum(is_last) - is_last]
    old = np.empty(len(keys), bool)
    old[order] = versions[order] < newest
    return old
