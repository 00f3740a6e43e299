"""One record of a web archive: what it says of itself, and what it holds.

Reads and writes nothing.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

import fastwarc
from fastwarc import WarcRecordType

from tasks.formats.warc.payload import Digest, read_body

Reason = Literal["warc_damaged", "warc_truncated"]

CAPTURES = WarcRecordType.response | WarcRecordType.revisit | WarcRecordType.conversion
"""The records that are rows of a crawl; the others describe them."""

_WITH_HTTP = WarcRecordType.response | WarcRecordType.revisit
# FastWARC stops at 32 KiB, which is less than clients take: a page must not become unreadable by its headers.
_MAX_HTTP_HEAD = 1 << 20
# Nothing was captured before the web was; and from the last year of the calendar nobody can count on.
_FIRST_PAGE = datetime(1991, 8, 6, tzinfo=UTC)
_LAST = datetime(9998, 12, 31, tzinfo=UTC)


@dataclass(frozen=True)
class Record:
    """One record.

    Attributes:
        kind: WARC-Type.
        record_id: WARC-Record-ID without angle brackets ("urn:uuid:...").
        url: WARC-Target-URI, without the angle brackets that some writers add.
        date: WARC-Date in UTC; None where it is missing, no date, or none at which anything can have been captured.
        refers_to: WARC-Refers-To without angle brackets, or "".
        headers: the headers of the record (FastWARC's map; `get` takes names in any case).
        status: HTTP status of a response or revisit; None where there is none that can be read.
        http: the HTTP headers as sent; None for a record that holds no HTTP response.
        payload: the body without transfer coding; of a larger one than asked for, the beginning.
        payload_digest: "sha1:" and Base32 over the whole body, as WARC writers spell it. Computed, unless asked
            otherwise: a header can be forged or stale, and identity hangs on it.
        size: bytes of the whole body.
        short: bytes are missing: the file ends inside the record, or the record declares too small a length.
        offset: where the record begins in the file, compressed; None in a file that is one gzip member, which can
            only be read from its beginning.
    """

    kind: WarcRecordType
    record_id: str
    url: str
    date: datetime | None
    refers_to: str
    headers: Any
    status: int | None
    http: tuple[tuple[str, str], ...] | None
    payload: bytes
    payload_digest: str
    size: int
    short: bool
    offset: int | None


@dataclass(frozen=True)
class Damage:
    """Bytes that give no record.

    Attributes:
        reason: machine word.
        offset: the last place known for sure: the record that begins here, or what stands behind it, is unreadable. 0
            in a file that is one gzip member.
        detail: for people.
    """

    reason: Reason
    offset: int
    detail: str


class Block(Protocol):
    """Reads what a record holds.

    Attributes:
        certain: where the record ends is beyond doubt.
    """

    certain: bool

    def read(self, size: int) -> bytes:
        """Returns the next bytes, and b"" at the end."""


def unread(record: fastwarc.WarcRecord, offset: int | None) -> Record:
    """Returns a record as its own headers tell of it."""
    return Record(
        kind=record.record_type,
        record_id=(record.record_id or "").strip("<> "),
        url=(record.headers.get("WARC-Target-URI") or "").strip("<> "),
        date=_moment(record.record_date),
        refers_to=(record.headers.get("WARC-Refers-To") or "").strip("<> "),
        headers=record.headers,
        status=None,
        http=None,
        payload=b"",
        payload_digest="",
        size=0,
        short=False,
        offset=offset,
    )


def read_record(record: fastwarc.WarcRecord, block: Block, offset: int | None, limit: int, digest: Digest) -> Record:
    """Reads a record to its end.

    Args:
        record: as FastWARC finds it.
        block: what it holds, read by nobody yet.
        offset: where it begins.
        limit: most bytes of the body to keep.
        digest: what `payload_digest` holds, see `warc_reader.read_records`.

    Raises:
        OSError: the file is damaged here, or cannot be read.
    """
    with_http = bool(record.record_type & _WITH_HTTP) and record.is_http
    http = _http(record) if with_http else None
    chunked = http is not None and "chunked" in (http.get("Transfer-Encoding") or "").lower()
    declared = record.content_length
    # Two who agree on a length need no third: looking through a page takes as long as to inflate half of it.
    block.certain = http is not None and http.get("Content-Length") == str(declared)
    body = read_body(block, limit, digest, chunked=chunked)
    return replace(
        unread(record, offset),
        status=http.status_code if http is not None else None,
        http=http.to_tuples() if http is not None else None,
        payload=body.data,
        payload_digest=body.digest or record.headers.get("WARC-Payload-Digest") or "",
        size=body.size,
        # Headers too long to be read are consumed in part: nobody can say how much of the record is left.
        short=body.taken < declared and (http is not None or not with_http),
    )


def _moment(date: datetime | None) -> datetime | None:
    try:
        found = date.astimezone(UTC) if date else None
    except OverflowError:
        return None  # in the first or the last hours that a calendar has
    return found if found and _FIRST_PAGE <= found <= _LAST else None


def _http(record: fastwarc.WarcRecord) -> Any:
    try:
        record.parse_http(max_header_len=_MAX_HTTP_HEAD)
    except OSError as error:
        if "header length" not in str(error):
            raise  # the file is damaged here
        return None  # a record like another, whose block begins with no HTTP header that anybody would read
    return record.http_headers
