"""Rows without a document because of other rows: copies, and captures of pages that a browser has rendered.

Reads rows, or of our own crawl the CDXJ index beside each WARC file (`tasks.stages.crawl.storage`), which saves a pass
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
"""Of one row: a hash of its URL and its digest ("" where there is no other like it), its source and URL, and whether it
is a page as a browser has rendered it."""

Identity = tuple[bytes, int, bool]
NO_IDENTITY: Identity = (b"", 0, False)

_PAGE_STATUSES = frozenset(map(str, PAGE_STATUSES))


@dataclass(frozen=True)
class ExcludedRows:
    """Numbers of the rows of one part that give no document, by reason."""

    copies: frozenset[int] = frozenset()
    rendered: frozenset[int] = frozenset()

    def reason(self, number: int) -> str:
        """Returns the reason why the row with that number gives no document, or ""."""
        if number in self.rendered:
            return "rendered"
        return "duplicate_capture" if number in self.copies else ""


def unit_identities(unit: InputUnit, rows: Iterable[InputRow]) -> Iterator[Identity]:
    """Yields the identity of every row of a unit; `rows` are read only if it can have several."""
    if unit.source is not None and unit.source.kind not in SEVERAL_ROWS:
        yield NO_IDENTITY  # its URL is its path, which is unique
        return
    for row in rows:
        yield NO_IDENTITY if row.refused else _of_row(row)


def _of_row(row: InputRow) -> Identity:
    captured = row.record_id or row.warc_file
    return identity(row.url, row.payload_digest, row.source if captured else "", rendered=row.rendered)


def identity(url: str, digest: str, source: str, *, rendered: bool = False) -> Identity:
    """Returns the identity of a row; `source` is "" if it is not a capture.

    Digests are all of one kind. A forged body with the same XXH3 digest can replace only a page of the same URL,
    because the URL is hashed with BLAKE2b.
    """
    page = hash64(f"{source}\n{url}") if source else 0
    return document_id(url, digest).encode(), page, rendered


def identities(units: Iterable[Iterable[Identity]]) -> NDArray[np.void]:
    """Returns the identities of one part as an array of IDENTITY."""
    return np.array([identity for unit in units for identity in unit], dtype=IDENTITY)


def excluded_rows(parts: Sequence[NDArray[np.void]]) -> list[ExcludedRows]:
    """Returns for each part the rows that give no document; `parts` are identities in input order."""
    rows = np.concatenate(parts)
    rendered = np.unique(rows["page"][rows["rendered"]])
    replaced = np.isin(rows["page"], rendered) & ~rows["rendered"] & (rows["page"] != 0)
    # A replaced capture must not count as the original of the rendered page.
    counts = np.flatnonzero(~replaced & (rows["id"] != b""))
    first = counts[np.unique(rows["id"][counts], return_index=True)[1]]
    copies = np.zeros(len(rows), dtype=bool)
    copies[counts] = True
    copies[first] = False
    ends = np.cumsum([len(part) for part in parts])
    return [
        ExcludedRows(_numbers(copies[end - len(part) : end]), _numbers(replaced[end - len(part) : end]))
        for part, end in zip(parts, ends, strict=True)
    ]


def _numbers(marks: NDArray[np.bool_]) -> frozenset[int]:
    return frozenset(np.flatnonzero(marks).tolist())


def indexed_identities(file: BinaryIO, records: int) -> list[Identity] | None:
    """Returns the identities of all captures in the order of the WARC file, equal to those of a quick pass over it.

    One exception: a body too large for extraction has an identity here. It is rejected for its size all the same.

    Returns:
        the identities; None if the index does not suffice: it is damaged, it does not list as many `records` as were
        published, or it lists conversions, which replace other captures only if they are small enough.
    """
    try:
        entries = [index_entry(line) for line in io.TextIOWrapper(file, "utf-8")]
        entries.sort(key=lambda entry: int(entry["offset"]))
        found = [_identity(entry) for entry in entries]
    except (ValueError, LookupError, TypeError):
        return None
    return None if len(found) != records or None in found else [one for one in found if one is not None]


def _identity(entry: dict[str, str]) -> Identity | None:
    if entry["status"] == "-":
        return NO_IDENTITY if entry["mime"] == "warc/revisit" else None
    url = capture_url(entry["url"])
    is_page = entry["status"] in _PAGE_STATUSES and not url_refusal(url)
    return identity(url, f"sha1:{entry['digest']}", WEB) if is_page else NO_IDENTITY
