"""Finds the rows that give no document because of other rows: copies, and captures of pages rendered by a browser.

Reads rows, or for our own crawl the CDXJ index of each WARC file (`tasks.stages.crawl.storage`), which saves a pass
over the captures. The result depends only on the input, not on its division into parts.
"""

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from tasks.formats.documents.document import document_id
from tasks.formats.documents.text import hash64
from tasks.formats.warc.archive import index_entry
from tasks.formats.warc.record import PAGE_STATUSES
from tasks.stages.extract.captures import capture_url, url_refusal
from tasks.stages.extract.config import WEB
from tasks.stages.extract.partitioning import ROW_KINDS, InputUnit
from tasks.stages.extract.row import InputRow

SEVERAL_ROWS = (*ROW_KINDS, "warc")
"""Kinds of sources whose files have several rows; a file of another kind is a single row."""

IDENTITY = np.dtype([("id", "S32"), ("page", np.uint64), ("rendered", np.bool_)])
"""Identity of one row. `id`: hash of URL and digest, "" for a row that cannot have copies. `page`: hash of source and
URL, 0 if the row is not a capture. `rendered`: whether it is a page as rendered by a browser."""

Identity = tuple[bytes, int, bool]
NO_IDENTITY: Identity = (b"", 0, False)

_PAGE_STATUSES = frozenset(map(str, PAGE_STATUSES))


@dataclass(frozen=True)
class ExcludedRows:
    """Numbers of the rows of one part that give no document because of other rows, by reason."""

    copies: frozenset[int] = frozenset()
    rendered: frozenset[int] = frozenset()

    def reason(self, number: int) -> str:
        """Returns "rendered", "duplicate_capture", or "" for a row that is not excluded."""
        if number in self.rendered:
            return "rendered"
        return "duplicate_capture" if number in self.copies else ""


def unit_identities(unit: InputUnit, rows: Iterable[InputRow]) -> Iterator[Identity]:
    """Yields the identity of every row of a unit; `rows` are read only if the unit can have several."""
    if unit.source is not None and unit.source.kind not in SEVERAL_ROWS:
        yield NO_IDENTITY  # the URL of the row is the path of the file, which is unique
        return
    for row in rows:
        yield NO_IDENTITY if row.refused else _of_row(row)


def _of_row(row: InputRow) -> Identity:
    is_capture = bool(row.record_id or row.warc_file)
    return identity(row.url, row.payload_digest, row.source if is_capture else "", rendered=row.rendered)


def identity(url: str, digest: str, source: str, *, rendered: bool = False) -> Identity:
    """Returns the identity of a row; `source` is "" if it is not a capture.

    All digests must be of one kind. A forged body with the same XXH3 digest can replace only a page of the same URL,
    because the URL is hashed with BLAKE2b.
    """
    page = hash64(f"{source}\n{url}") if source else 0
    return document_id(url, digest).encode(), page, rendered


def identities(units: Iterable[Iterable[Identity]]) -> NDArray[np.void]:
    """Returns the identities of one part as an array of IDENTITY."""
    return np.array([identity for unit in units for identity in unit], dtype=IDENTITY)


def excluded_rows(parts: Sequence[NDArray[np.void]]) -> list[ExcludedRows]:
    """Returns the excluded rows of each part; `parts` are arrays of IDENTITY in input order."""
    rows = np.concatenate(parts)
    rendered = np.unique(rows["page"][rows["rendered"]])
    replaced = np.isin(rows["page"], rendered) & ~rows["rendered"] & (rows["page"] != 0)
    # A replaced capture must not count as the original of its rendered page, which would then be a copy.
    candidates = np.flatnonzero(~replaced & (rows["id"] != b""))
    originals = candidates[np.unique(rows["id"][candidates], return_index=True)[1]]
    copies = np.zeros(len(rows), dtype=bool)
    copies[candidates] = True
    copies[originals] = False
    ends = np.cumsum([len(part) for part in parts])
    return [
        ExcludedRows(_numbers(copies[end - len(part) : end]), _numbers(replaced[end - len(part) : end]))
        for part, end in zip(parts, ends, strict=True)
    ]


def _numbers(marks: NDArray[np.bool_]) -> frozenset[int]:
    return frozenset(np.flatnonzero(marks).tolist())


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
