"""One record of a web archive: headers, payload without transfer coding up to a size limit, and digest.

Reads a record opened by FastWARC.
"""

import hashlib
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, Protocol

import fastwarc
import xxhash
from fastwarc import WarcRecordType

Digest = Literal["computed", "quick", "declared"]

_BLOCK = 1 << 20
# Two Base32 letters for every ten bits of a SHA-1 digest.
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_BASE32 = [first + second for first in _LETTERS for second in _LETTERS]
_SHIFTS = range(150, -1, -10)
# Transfer coding in small chunks makes a body several times longer.
_CHUNKING = 4
_CHUNK_SIZE = re.compile(rb"[ \t]*([0-9a-fA-F]{1,15})[ \t]*(?:;[^\n]*)?\r?\Z")
_MAX_CHUNK_LINE = 4096
# Minimum mean size of a chunk after the first `_FEW_CHUNKS`.
_MEAN_CHUNK = 16
_FEW_CHUNKS = 10_000

Reason = Literal["warc_damaged", "warc_truncated"]

CAPTURES = WarcRecordType.response | WarcRecordType.revisit | WarcRecordType.conversion
"""The record types with captured content; the others describe captures."""

PAGE_STATUSES = frozenset((200, 203))
"""HTTP statuses whose body is the page itself; with 203 a proxy has changed it."""

_WITH_HTTP = WarcRecordType.response | WarcRecordType.revisit
# FastWARC's limit of 32 KiB is lower than that of clients; long headers must not make a page unreadable.
_MAX_HTTP_HEAD = 1 << 20
# Nothing was captured before the first web page, and dates in the last year of the calendar overflow.
_FIRST_PAGE = datetime(1991, 8, 6, tzinfo=UTC)
_LAST = datetime(9998, 12, 31, tzinfo=UTC)


@dataclass(frozen=True)
class Record:
    """One record.

    Attributes:
        kind: WARC-Type.
        record_id: WARC-Record-ID without angle brackets ("urn:uuid:...").
        url: WARC-Target-URI, without the angle brackets that some writers add.
        date: WARC-Date in UTC; None if it is missing, invalid, or outside the possible range.
        refers_to: WARC-Refers-To without angle brackets, or "".
        headers: the headers of the record (FastWARC's map; `get` is case-insensitive).
        status: HTTP status of a response or revisit; None if it cannot be parsed.
        http: the HTTP headers as sent; None for a record without an HTTP response.
        payload: the body without transfer coding, cut at the limit.
        payload_digest: "sha1:" and Base32 over the whole body, as WARC writers spell it. It is computed unless the
            reader's `digest` argument differs, because a header can be forged or stale, and document ids depend on it.
        size: bytes of the whole body.
        short: bytes are missing: the file ends inside the record, or the declared length is too small.
        offset: offset of the record in the compressed file; None in a file that is one gzip member, which can only be
            read from its beginning.
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
    """Bytes from which no record can be read.

    Attributes:
        reason: identifier of the kind of damage.
        offset: the last certain offset: the record at this offset, or the bytes after it, are unreadable. 0 in a file
            that is one gzip member.
        detail: text for messages.
    """

    reason: Reason
    offset: int
    detail: str


class BlockReader(Protocol):
    """Reader of the block (content) of a record.

    Attributes:
        certain: whether the end of the record is certain.
    """

    certain: bool

    def read(self, size: int) -> bytes:
        """Returns the next bytes, or b"" at the end."""


def header_only_record(record: fastwarc.WarcRecord, offset: int | None) -> Record:
    """Returns a record from its own headers, without payload."""
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


def read_record(
    record: fastwarc.WarcRecord, block: BlockReader, offset: int | None, limit: int, digest: Digest
) -> Record:
    """Reads a record to its end.

    Args:
        record: a record yielded by FastWARC.
        block: reader of its content, at its beginning.
        offset: its offset in the file.
        limit: maximum bytes of the body to keep.
        digest: kind of `payload_digest`, see `reader.read_records`.

    Raises:
        OSError: the file is damaged here, or cannot be read.
    """
    with_http = bool(record.record_type & _WITH_HTTP) and record.is_http
    http = _http(record) if with_http else None
    chunked = http is not None and "chunked" in (http.get("Transfer-Encoding") or "").lower()
    declared = record.content_length
    # If both declared lengths are equal, the content is not searched, which would cost half as much as inflating it.
    block.certain = http is not None and http.get("Content-Length") == str(declared)
    body = read_body(block, limit, digest, chunked=chunked)
    return replace(
        header_only_record(record, offset),
        status=http.status_code if http is not None else None,
        http=http.to_tuples() if http is not None else None,
        payload=body.data,
        payload_digest=body.digest or record.headers.get("WARC-Payload-Digest") or "",
        size=body.size,
        # HTTP headers above the limit are consumed in part, so the length of the rest is unknown.
        short=body.taken < declared and (http is not None or not with_http),
    )


def _moment(date: datetime | None) -> datetime | None:
    try:
        moment = date.astimezone(UTC) if date else None
    except OverflowError:
        return None  # in the first or last hours of the calendar
    return moment if moment and _FIRST_PAGE <= moment <= _LAST else None


def _http(record: fastwarc.WarcRecord) -> Any:
    try:
        record.parse_http(max_header_len=_MAX_HTTP_HEAD)
    except OSError as error:
        if "header length" not in str(error):
            raise  # the file is damaged here
        return None  # the record is intact, but its HTTP header exceeds the limit
    return record.http_headers


@dataclass(frozen=True)
class RecordBody:
    """A body that was read to its end.

    Attributes:
        data: the body without transfer coding, cut at the limit.
        digest: digest of the whole body; "" if none was computed.
        size: bytes of the whole body without transfer coding.
        taken: bytes read, including transfer coding.
    """

    data: bytes
    digest: str
    size: int
    taken: int


def read_body(reader: Any, limit: int, digest: Digest, *, chunked: bool) -> RecordBody:
    """Reads a body to its end and keeps its first `limit` bytes. No digest is computed if `digest` is "declared"."""
    keep = _CHUNKING * limit if chunked else limit
    whole, label = _HASHES[digest][0](), _HASHES[digest][1]
    blocks: list[bytes] = []
    taken = 0
    while block := reader.read(_BLOCK):
        if not chunked:
            whole.update(block)
        if taken < keep:
            blocks.append(block[: keep - taken])
        taken += len(block)
    data = b"".join(blocks)
    if not chunked:
        return RecordBody(data, label(whole.digest()), taken, taken)
    body, ended = dechunk(data, limit)
    size = len(body) if ended and taken <= keep else max(taken, limit + 1)
    whole.update(body)
    return RecordBody(body[:limit], label(whole.digest()), size, taken)


def dechunk(body: bytes, limit: int = sys.maxsize) -> tuple[bytes, bool]:
    """Decodes chunked transfer coding (RFC 9112, section 7.1), up to the first invalid chunk.

    A body that does not begin with a chunk is returned unchanged, because many archives store decoded bodies under
    headers that still name the coding.

    Returns:
        The body, cut if it exceeds the limit, and whether it is within the limit. A body of very many small chunks
        counts as too large, because each chunk has a fixed cost.
    """
    whole, view = bytearray(), memoryview(body)
    offset = chunks = 0
    while offset < len(body):
        end = body.find(b"\n", offset, offset + _MAX_CHUNK_LINE)
        size = _CHUNK_SIZE.match(body, offset, end) if end >= 0 else None
        if size is None:
            return (bytes(whole) if chunks else body), True
        length = int(size[1], 16)
        if not length:
            break
        if len(whole) > limit or chunks > limit // _MEAN_CHUNK + _FEW_CHUNKS:
            return bytes(whole), False
        offset = end + 1 + length
        whole += view[end + 1 : offset]
        chunks += 1
        offset += 2 if body.startswith(b"\r\n", offset) else body.startswith(b"\n", offset)
    return bytes(whole), True


def payload_digest(payload: bytes) -> str:
    """Returns the SHA-1 digest of a payload as WARC and CDX spell it: "sha1:" and Base32."""
    return sha1_label(hashlib.sha1(payload, usedforsecurity=False).digest())


def quick_digest(payload: bytes) -> str:
    """Returns "xxh3:" and the hex XXH3 digest of a payload: 20 times faster than SHA-1, but not collision-resistant."""
    return _quick_label(xxhash.xxh3_128_digest(payload))


def _quick_label(digest: bytes) -> str:
    return "xxh3:" + digest.hex()


def sha1_label(digest: bytes) -> str:
    """Returns a SHA-1 digest as WARC headers spell it."""
    # Twice as fast as `base64.b32encode`.
    number = int.from_bytes(digest)
    return "sha1:" + "".join([_BASE32[number >> shift & 0x3FF] for shift in _SHIFTS])


class _Unhashed:
    """Null object with a hash's interface, for a digest that is not computed."""

    def update(self, block: bytes) -> None:
        """Ignores a block of the body."""

    def digest(self) -> bytes:
        return b""


_HASHES: dict[Digest, tuple[Callable[[], Any], Callable[[bytes], str]]] = {
    "computed": (partial(hashlib.sha1, usedforsecurity=False), sha1_label),
    "quick": (xxhash.xxh3_128, _quick_label),
    "declared": (_Unhashed, bytes.decode),
}
