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

from tasks.formats.warc.http_head import has_head, read_head

Digest = Literal["computed", "quick", "declared"]

_BLOCK = 1 << 20
# Two Base32 letters for every ten bits of a SHA-1 digest.
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_BASE32 = [first + second for first in _LETTERS for second in _LETTERS]
_SHIFTS = range(150, -1, -10)
# Transfer coding in small chunks makes a body several times longer.
_CHUNKING = 4
_CHUNK_SIZE = re.compile(rb"[ \t]*([0-9a-fA-F]{1,15})[ \t]*(?:;[^\n]*)?\r?\n")
# What a cut may leave of such a line, of the line end after a chunk, and what follows the last chunk.
_CHUNK_BEGIN = re.compile(rb"[ \t]*[0-9a-fA-F]{0,15}[ \t]*(?:;[^\n]*)?\r?")
_LINE_END = re.compile(rb"\r?\n|\r\Z")
_END = re.compile(rb"(?:[!-9;-~]{1,200}:[^\n]{0,65536}\n)*+(?:\r?\n|\Z)")
_MAX_CHUNK_LINE = 4096
# Minimum mean size of a chunk after the first `_FEW_CHUNKS`.
_MEAN_CHUNK = 16
_FEW_CHUNKS = 10_000

Reason = Literal["warc_damaged", "warc_truncated"]

CAPTURES = (
    WarcRecordType.response
    | WarcRecordType.revisit
    | WarcRecordType.resource
    | WarcRecordType.conversion
    | WarcRecordType.continuation
    | WarcRecordType.unknown
)
"""The record types with captured content; the others (request, metadata, warcinfo) describe captures."""

PAGE_STATUSES = frozenset((200, 203))
"""HTTP statuses whose body is the page itself; with 203 a proxy has changed it."""

_WITH_HTTP = WarcRecordType.response | WarcRecordType.revisit
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
    with_http = bool(record.record_type & _WITH_HTTP) and has_head(record)
    http, head_bytes = read_head(record.reader) if with_http else (None, 0)
    chunked = http is not None and "chunked" in http.get("transfer-encoding").lower()
    declared = record.content_length - head_bytes
    # If both declared lengths are equal, the content is not searched, which would cost half as much as inflating it.
    block.certain = http is not None and http.get("content-length") == str(declared)
    whole = declared if record.headers.get("WARC-Truncated") is None else None
    body = _read_chunks(block, limit, digest, whole) if chunked else _read_body(block, limit, digest)
    return replace(
        header_only_record(record, offset),
        status=http.status if http is not None else None,
        http=http.fields if http is not None else None,
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


def _read_body(reader: Any, limit: int, digest: Digest) -> RecordBody:
    """Reads a body without transfer coding to its end; keeps its first `limit` bytes. "declared": no digest."""
    whole, label = _HASHES[digest][0](), _HASHES[digest][1]
    blocks: list[bytes] = []
    taken = 0
    while block := reader.read(_BLOCK):
        whole.update(block)
        if taken < limit:
            blocks.append(block[: limit - taken])
        taken += len(block)
    return RecordBody(b"".join(blocks), label(whole.digest()), taken, taken)


def _read_chunks(reader: Any, limit: int, digest: Digest, declared: int | None) -> RecordBody:
    """Reads a body under the header of chunked coding; `declared` is its length, None if it was truncated."""
    coded = _read_body(reader, _CHUNKING * limit, "declared")
    kept = len(coded.data) == coded.taken
    body, ended = dechunk(coded.data, limit, cut=not kept or coded.taken != declared)
    size = len(body) if ended and kept else max(coded.taken, limit + 1)
    whole, label = _HASHES[digest][0](), _HASHES[digest][1]
    whole.update(body)
    return RecordBody(body[:limit], label(whole.digest()), size, coded.taken)


def dechunk(body: bytes, limit: int = sys.maxsize, *, cut: bool = False) -> tuple[bytes, bool]:
    """Decodes chunked transfer coding (RFC 9112, section 7.1), if the body is in it from its beginning to its end.

    Any other body is returned unchanged, because many archives store decoded bodies under headers that still name the
    coding, and a text may begin with a number. A body that ends within a chunk is in the coding if an earlier chunk is
    whole, or if it is known to be cut.

    Args:
        body: the body as stored.
        limit: maximum length of the result.
        cut: whether the end of the body is known to be missing.

    Returns:
        The body, longer than the limit if it is cut there, and whether it is within the limit. A body of very many
        small chunks counts as too large, because each chunk has a fixed cost.
    """
    whole, view = bytearray(), memoryview(body)
    offset = chunks = 0
    while offset < len(body):
        size = _CHUNK_SIZE.match(body, offset, offset + _MAX_CHUNK_LINE)
        if size is None:
            at_end = chunks and _CHUNK_BEGIN.fullmatch(body, offset)
            return (bytes(whole) if at_end else body), True
        length, offset = int(size[1], 16), size.end()
        if not length:
            ends = _END.match(body, offset)
            return (bytes(whole) if ends and (chunks or ends.end() == len(body)) else body), True
        if len(whole) > limit or chunks > limit // _MEAN_CHUNK + _FEW_CHUNKS:
            return bytes(whole), False
        data = view[offset : offset + length]
        offset += length
        if offset > len(body):
            return (bytes(whole) + data if chunks or cut else body), True
        whole += data
        chunks += 1
        if offset < len(body):
            if (end := _LINE_END.match(body, offset)) is None:
                return body, True
            offset = end.end()
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
