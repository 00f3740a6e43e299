"""Published archives: manifest, index, captures, their decoded bodies, and where archived captures come from.

Reads the `warc` and `archived` artifacts and intact WARC files. For damaged files use `tasks.formats.warc.reader`.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
from fastwarc import WarcRecordType

from tasks.core import parquet
from tasks.core.artifact import Artifact
from tasks.core.store import Store
from tasks.formats.warc.reader import read_records
from tasks.formats.warc.record import Damage, Record
from tasks.formats.web.content_encoding import decode

MANIFEST = "manifest.parquet"
INDEX = "index.cdxj"

# One row per WARC file of a crawl. `path` is relative to the store, so that a file can be opened without its artifact.
MANIFEST_SCHEMA = pa.schema(
    [
        pa.field("segment", pa.string(), nullable=False),  # id of the artifact that contains the file
        pa.field("path", pa.string(), nullable=False),
        pa.field("sha256", pa.string(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("records", pa.int64(), nullable=False),  # response, revisit and conversion records
        pa.field("index", pa.string()),  # path of its CDXJ index, relative to the store; null if there is none
    ]
)

CAPTURES, PROVENANCE_FOLDER = "captures/", "provenance/"
"""Folders of an artifact of archived captures: its WARC files, and a table of `PROVENANCE` for each."""

INDEXED = {
    "url": pa.string(),
    "fetched_at": pa.timestamp("ms", tz="UTC"),
    "status": pa.int16(),
    "mime": pa.string(),  # detected from the content
    "languages": pa.string(),  # ISO 639-3, the most frequent first: "fra,eng"
    "digest": pa.string(),  # SHA-1 of the body, Base32
}
"""What the index of Common Crawl states about a capture."""

# One row per record of a WARC file with captures of Common Crawl, in the order of the file.
PROVENANCE = pa.schema(
    [
        *(pa.field(name, kind) for name, kind in INDEXED.items()),
        pa.field("offset", pa.int64(), nullable=False),  # of the record here
        pa.field("crawl", pa.string(), nullable=False),  # "CC-MAIN-2026-43"
        pa.field("file", pa.string(), nullable=False),  # WARC file of Common Crawl, below its root
        pa.field("file_offset", pa.int64(), nullable=False),  # of the record there
        pa.field("length", pa.int64(), nullable=False),  # bytes of the record as stored, here and there
    ]
)


@dataclass(frozen=True)
class Provenance:
    """Where Common Crawl has a capture; see `PROVENANCE`."""

    crawl: str
    file: str
    file_offset: int
    length: int


@dataclass(frozen=True)
class WarcFile:
    """One file of a crawl; `path` and `index` ("" for none) are relative to the store."""

    path: str
    bytes: int
    records: int
    index: str


def warc_files(warc: Artifact) -> list[WarcFile]:
    """Returns the files of a `warc` artifact in manifest order; open one with `warc.store.open(file.path)`."""
    rows = warc.table(MANIFEST).to_pylist()
    return [WarcFile(row["path"], row["bytes"], row["records"], row["index"] or "") for row in rows]


def captures(file: BinaryIO, start: int = 0) -> Iterator[Record]:
    """Yields the HTTP response records of a WARC file (gzip, zstd or plain) in file order, from an offset on.

    Raises:
        ValueError: the file is damaged; captures before the damage have been yielded.
    """
    for record in read_records(file, sys.maxsize, WarcRecordType.response, start=start):
        if isinstance(record, Damage):
            raise ValueError(f"unreadable at byte {record.offset} or after it ({record.reason}: {record.detail})")
        if record.short:
            raise ValueError(f"the record at byte {record.offset} is cut off")
        if record.http is not None:
            yield record


def capture_at(file: BinaryIO, offset: int) -> Record:
    """Returns the capture at `offset` of a seekable WARC file; raises ValueError if there is none."""
    capture = next(captures(file, offset), None)
    if capture is None or capture.offset != offset:
        raise ValueError(f"no response record at byte {offset}")
    return capture


def body_of(capture: Record, limit: int) -> bytes:
    """Returns the payload of a capture without content coding, at most `limit` bytes."""
    codings = ",".join(value for name, value in capture.http or () if name.lower() == "content-encoding")
    return decode(capture.payload, codings, limit).data


def provenance_of(store: Store, warc_file: str, offset: int | None) -> Provenance | None:
    """Returns where Common Crawl has the capture at an offset of a WARC file; None for a capture from elsewhere.

    Args:
        store: the store of the file.
        warc_file: its path in the store, or the name of a file outside the store.
        offset: offset of the record.
    """
    folder, is_archived, name = warc_file.partition(f"/{CAPTURES}")
    if not is_archived or offset is None:
        return None
    try:
        path = store.local(f"{folder}/{PROVENANCE_FOLDER}{name.removesuffix('.warc.gz')}.parquet")
        rows = parquet.read(path, list(Provenance.__dataclass_fields__), pc.field("offset") == offset).to_pylist()
    except FileNotFoundError:
        return None
    return Provenance(**rows[0]) if rows else None


def index_entry(line: str) -> dict[str, str]:
    """Returns the fields of a CDXJ line: url, mime, status, digest, length, offset, filename (path in the store)."""
    entry: dict[str, str] = json.loads(line.split(" ", 2)[2])
    return entry
