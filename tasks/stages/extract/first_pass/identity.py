"""Identities of rows: which rows have the same URL and bytes, and which are captures of one page.

Read from the rows, or for our own crawl from the CDXJ index of each WARC file (`tasks.stages.crawl.storage`), which
saves a pass over the captures.
"""

import io
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import numpy as np

from tasks.formats.documents.document import document_id
from tasks.formats.documents.text import hash64
from tasks.formats.warc.archive import index_entry
from tasks.formats.warc.record import PAGE_STATUSES
from tasks.stages.extract.captures import capture_url, url_refusal
from tasks.stages.extract.config import WARC, WEB, ExtractConfig
from tasks.stages.extract.files import read_unit
from tasks.stages.extract.row import InputRow
from tasks.stages.extract.sources import ROW_KINDS, InputUnit

SEVERAL_ROWS = (*ROW_KINDS, WARC)
"""Kinds of sources whose files have several rows; a file of another kind is a single row."""

IDENTITY = np.dtype([("key", "<u8"), ("id", "S16"), ("page", "<u8"), ("rendered", np.bool_), ("row", "<u8")])
"""Identity of one row, with its number. `key`: hash of the URL, so rows with the same `id` or the same `page` have the
same key. `id`: hash of URL and digest. `page`: hash of source and URL, 0 if the row is not a capture. `rendered`:
whether it is a page as rendered by a browser."""

Identity = tuple[int, bytes, int, bool]
NO_IDENTITY: Identity = (0, b"", 0, False)
"""Of a row that neither excludes others nor is excluded."""

_PAGE_STATUSES = frozenset(map(str, PAGE_STATUSES))


def unit_identities(unit: InputUnit, config: ExtractConfig, quick: bool, counts: Counter[str]) -> Iterable[Identity]:
    """Returns the identities of all rows of a unit, from the index of its WARC file if it has one.

    Args:
        unit: the unit.
        config: settings of the extraction.
        quick: whether rows are read with quick digests, which are not comparable with those of an index.
        counts: see `row_identities`.

    Raises:
        InputError: the file cannot be read.
    """
    if unit.crawl and unit.crawl.index:
        with unit.crawl.store.open(unit.crawl.index) as file:
            listed = indexed_identities(file, unit.crawl.records)
        if listed is not None:
            return listed
    if unit.source.kind not in SEVERAL_ROWS:
        return [NO_IDENTITY]  # the URL of the row is the path of the file, which is unique
    return row_identities(unit, read_unit(unit, config, quick=quick), counts)


def row_identities(unit: InputUnit, rows: Iterable[InputRow], counts: Counter[str]) -> Iterator[Identity]:
    """Yields the identities of the rows of a unit; counts those of JSON and Parquet files in `counts`, by `refused`."""
    for row in rows:
        if unit.source.kind in ROW_KINDS:
            counts[row.refused] += 1
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
    return hash64(url), bytes.fromhex(document_id(url, digest)), page, rendered


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
