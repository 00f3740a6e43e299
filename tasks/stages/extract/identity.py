"""The first pass: rows that give no document because of other rows, and files that do not match their settings.

Rows excluded by others are copies, and captures of pages rendered by a browser. The pass reads rows, or for our own
crawl the CDXJ index of each WARC file (`tasks.stages.crawl.storage`), which saves a pass over the captures. The result
depends only on the input, not on its division into parts.

It also counts the rows of JSON and Parquet files that are rejected because they are not objects, or have no text. If
these are most rows of a file, the settings or the file are wrong, and the stage fails before it extracts anything. Such
a file is read again only for the error message.
"""

import io
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from tasks.core import parquet
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.stage import PartSpec, group_by_run
from tasks.formats.documents.document import document_id
from tasks.formats.documents.json_rows import rows as json_rows
from tasks.formats.documents.text import hash64
from tasks.formats.lakes.table import TableFile
from tasks.formats.warc.archive import index_entry
from tasks.formats.warc.record import PAGE_STATUSES
from tasks.stages.extract.captures import capture_url, url_refusal
from tasks.stages.extract.config import WARC, WEB, ExtractConfig
from tasks.stages.extract.files import read_unit
from tasks.stages.extract.partitioning import explain_read_errors, open_piece
from tasks.stages.extract.row import InputRow
from tasks.stages.extract.sources import ROW_KINDS, InputUnit

SEVERAL_ROWS = (*ROW_KINDS, WARC)
"""Kinds of sources whose files have several rows; a file of another kind is a single row."""

IDENTITY = np.dtype([("id", "S32"), ("page", np.uint64), ("rendered", np.bool_)])
"""Identity of one row. `id`: hash of URL and digest, "" for a row that cannot have copies. `page`: hash of source and
URL, 0 if the row is not a capture. `rendered`: whether it is a page as rendered by a browser."""

EXCLUDED = ("", "duplicate_capture", "rendered")
"""Reasons why a row gives no document because of other rows; "" for none."""

Identity = tuple[bytes, int, bool]
NO_IDENTITY: Identity = (b"", 0, False)

RowCounts = Counter[tuple[str, str, str]]
"""Numbers of rows by source, path of the file, and reason for rejection ("" for rows with text)."""

_EXCERPT = 40
_LONGEST = 1 << 20
_HEAD = 1 << 16
# A JSON object with a member that is a list of objects, after members that are neither lists nor objects.
_WRAPPED = re.compile(rb'\s*\{(?:[^\[\]{}]{0,2000},)?\s*"([^"\\]{1,200})"\s*:\s*\[\s*\{')

_PAGE_STATUSES = frozenset(map(str, PAGE_STATUSES))


@dataclass(frozen=True)
class PartInput:
    """Input of one part.

    Attributes:
        config: settings of the stage.
        units: input units of the part.
        excluded: numbers of the rows that give no document because of other rows, with the reasons.
    """

    config: ExtractConfig
    units: tuple[InputUnit, ...]
    excluded: Mapping[int, str] = field(default_factory=dict)


def exclude_rows(specs: Sequence[PartSpec], units: Sequence[InputUnit], engine: Engine) -> list[PartSpec]:
    """Reads the identities of all rows; returns the parts (payload `PartInput`) with the rows that they exclude.

    Raises:
        InputError: a file of rows does not match its settings; see `check_row_counts`.
    """
    runs, tally = group_by_run(specs), RowCounts()
    # Quick digests are not comparable with those of an index, which are SHA-1.
    quick = not any(unit.crawl and unit.crawl.index for unit in units)
    by_part: dict[str, NDArray[np.void]] = {}
    for number, (arrays, counts) in engine.map(partial(run_identities, quick), runs):
        tally.update(counts)
        by_part |= {spec.name: rows for spec, rows in zip(runs[number], arrays, strict=True)}
    check_row_counts(tally, units)
    excluded = excluded_rows([by_part[spec.name] for spec in specs])
    return [
        replace(spec, payload=replace(spec.payload, excluded=rows)) for spec, rows in zip(specs, excluded, strict=True)
    ]


def run_identities(quick: bool, specs: Sequence[PartSpec]) -> tuple[list[NDArray[np.void]], RowCounts]:
    """Returns the identities (IDENTITY) of the parts of a run, and the counts of their rows; runs on a worker."""
    tally, parts = RowCounts(), []
    for part_input in (spec.payload for spec in specs):
        units = (_unit_identities(unit, part_input.config, quick, tally) for unit in part_input.units)
        parts.append(np.array([*chain.from_iterable(units)], IDENTITY))
    return parts, tally


def _unit_identities(unit: InputUnit, config: ExtractConfig, quick: bool, tally: RowCounts) -> Iterable[Identity]:
    if unit.crawl and unit.crawl.index:
        with unit.crawl.store.open(unit.crawl.index) as file:
            listed = indexed_identities(file, unit.crawl.records)
        if listed is not None:
            return listed
    if unit.source.kind not in SEVERAL_ROWS:
        return [NO_IDENTITY]  # the URL of the row is the path of the file, which is unique
    return row_identities(unit, read_unit(unit, config, quick=quick), tally)


def row_identities(unit: InputUnit, rows: Iterable[InputRow], tally: RowCounts) -> Iterator[Identity]:
    """Yields the identities of the rows of a unit; counts those of JSON and Parquet files in `tally`."""
    for row in rows:
        if unit.source.kind in ROW_KINDS:
            tally[unit.source.name, unit.file.path, row.refused] += 1
        if row.refused:
            yield NO_IDENTITY
        else:
            source = row.source if row.record_id or row.warc_file else ""
            yield identity(row.url, row.payload_digest, source, rendered=row.rendered)


def identity(url: str, digest: str, source: str, *, rendered: bool = False) -> Identity:
    """Returns the identity of a row; `source` is "" if it is not a capture.

    All digests must be of one kind. A forged body with the same XXH3 digest can replace only a page of the same URL,
    because the URL is hashed with BLAKE2b.
    """
    page = hash64(f"{source}\n{url}") if source else 0
    return document_id(url, digest).encode(), page, rendered


def excluded_rows(parts: Sequence[NDArray[np.void]]) -> list[dict[int, str]]:
    """Returns the excluded rows of each part, with the reasons; `parts` are arrays of IDENTITY in input order."""
    rows = np.concatenate(parts)
    rendered = np.unique(rows["page"][rows["rendered"]])
    replaced = np.isin(rows["page"], rendered) & ~rows["rendered"] & (rows["page"] != 0)
    # A replaced capture must not count as the original of its rendered page, which would then be a copy.
    candidates = np.flatnonzero(~replaced & (rows["id"] != b""))
    originals = candidates[np.unique(rows["id"][candidates], return_index=True)[1]]
    reasons = np.zeros(len(rows), np.uint8)
    reasons[candidates] = EXCLUDED.index("duplicate_capture")
    reasons[originals] = EXCLUDED.index("")
    reasons[replaced] = EXCLUDED.index("rendered")
    by_part = np.split(reasons, np.cumsum([len(part) for part in parts])[:-1])
    return [{row: EXCLUDED[of_part[row]] for row in np.flatnonzero(of_part).tolist()} for of_part in by_part]


def indexed_identities(file: BinaryIO, records: int) -> list[Identity] | None:
    """Returns the identities of all captures by the index, in the order of the WARC file.

    They are equal to those of a quick pass over the WARC file, except that a body too large for extraction has an
    identity. Such a body is still rejected for its size.

    Args:
        file: the CDXJ index.
        records: number of records that were published.

    Returns:
        the identities; None if the index does not suffice: it is damaged, it does not list `records` captures, or it
        lists conversions, which replace other captures only if they are small enough.
    """
    try:
        entries = [index_entry(line) for line in io.TextIOWrapper(file, "utf-8")]
        entries.sort(key=lambda entry: int(entry["offset"]))
        listed = [_identity(entry) for entry in entries]
    except (ValueError, LookupError, TypeError):
        return None
    complete = [row for row in listed if row is not None]
    return complete if len(complete) == len(listed) == records else None


def _identity(entry: dict[str, str]) -> Identity | None:
    if entry["status"] == "-":
        return NO_IDENTITY if entry["mime"] == "warc/revisit" else None
    url = capture_url(entry["url"])
    is_page = entry["status"] in _PAGE_STATUSES and not url_refusal(url)
    return identity(url, f"sha1:{entry['digest']}", WEB) if is_page else NO_IDENTITY


def check_row_counts(tally: RowCounts, units: Sequence[InputUnit]) -> None:
    """Checks the numbers of rejected rows.

    Raises:
        InputError: most rows of a file are not JSON objects, a file is a single object that contains the list of rows,
            or no row of a source has a text.
    """
    by_file, by_source = defaultdict[tuple[str, str], Counter[str]](Counter), defaultdict[str, Counter[str]](Counter)
    for (name, path, reason), count in tally.items():
        by_file[name, path][reason] += count
        by_source[name][reason] += count
    for unit in units:
        _check_file(unit, by_file[unit.source.name, unit.file.path])
    for unit in units:
        _check_source(unit, by_source[unit.source.name])


def _check_file(unit: InputUnit, counts: Counter[str]) -> None:
    file, source = unit.file, unit.source
    rows, malformed = counts.total(), counts["json_malformed"]
    if 2 * malformed > rows:
        raise InputError(
            f'{file.path} of the file source "{source.name}": {malformed} of {rows} rows are not JSON objects '
            f"({_first_malformed(unit)})",
            "write one object per line or a list of objects, in UTF-8; exclude the file; or set another kind",
        )
    if source.kind == "jsonl" and rows == counts["no_text"] + counts["too_large"] == 1:
        with explain_read_errors(unit), open_piece(unit) as text:
            wrapped = _WRAPPED.match(text.read(_HEAD))
        if wrapped:
            field = wrapped[1].decode("utf-8", "replace")
            raise InputError(
                f'{file.path} of the file source "{source.name}" is one JSON object with a list "{field}", and without '
                f'"{source.text_field}"',
                f"write the list to a file of its own, for example with jq '.[\"{field}\"]'",
            )


def _first_malformed(unit: InputUnit) -> str:
    for number, row in _json_texts(unit):
        try:
            if not isinstance(json.loads(row), Mapping):
                return f"row {number} is not an object: {row[:_EXCERPT]!r}"
        except (ValueError, RecursionError) as error:
            return f"row {number}, {row[:_EXCERPT]!r}: {error}"
    return "the first one is very long"


def _check_source(unit: InputUnit, counts: Counter[str]) -> None:
    if counts["no_text"] == counts.total() > 0:
        raise InputError(
            f'no row of the file source "{unit.source.name}" has a text in the field "{unit.source.text_field}" (the '
            f"first of {unit.file.path} has: {', '.join(_fields(unit)) or 'no field'})",
            "set its text_field",
        )


def _fields(unit: InputUnit) -> list[str]:
    if isinstance(unit.file, TableFile):
        return sorted(one.name for one in unit.file.columns)
    if unit.source.kind == "parquet":
        return sorted(parquet.schema(unit.file.local()).names)
    row = json.loads(next((row for _, row in _json_texts(unit)), b"null"))
    return sorted(row) if isinstance(row, dict) else []


def _json_texts(unit: InputUnit) -> Iterator[tuple[int, bytes]]:
    """Yields number and bytes of the rows of a JSON file; rows above 1 MiB are skipped."""
    with explain_read_errors(unit), open_piece(unit) as text:
        for number, row in enumerate(json_rows(text, text.form, _LONGEST)):
            if row and row.strip():
                yield number, row
