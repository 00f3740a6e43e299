"""The records of a WARC file, and of a damaged one those before and behind the damage.

Reads one file: gzip or zstd (a member per record, with or without dictionary, or one for all), or plain. Used by
`archive` and `extract`. FastWARC reads 857 MB/s and ends at the first damaged record; here reading goes on at the next
byte at which a record begins, so one bad sector costs one record and not the rest of a gigabyte.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, BinaryIO, Literal

import fastwarc
from fastwarc import WarcRecordType

from tasks.payload import Digest, read_body
from tasks.warc_resync import Opening, ends_whole, is_arc, next_start

CAPTURES = WarcRecordType.response | WarcRecordType.revisit | WarcRecordType.conversion
"""The records that are rows of a crawl; the others describe them."""

_WITH_HTTP = WarcRecordType.response | WarcRecordType.revisit
_HEADER_ERROR = "Invalid WARC header"
_CUT_ERRORS = ("incomplete frame", "unexpected end")
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

    reason: Literal["warc_damaged", "warc_truncated", "arc_unsupported"]
    offset: int
    detail: str


def read_records(
    file: BinaryIO, limit: int, kinds: WarcRecordType = CAPTURES, *, start: int = 0, digest: Digest = "computed"
) -> Iterator[Record | Damage]:
    """Yields the records of the given kinds and the damaged places of a file, in file order.

    Args:
        file: a seekable file.
        limit: most bytes of a body to keep.
        kinds: which records are wanted; damage in the others is reported all the same.
        start: where to begin; a place at which a record begins.
        digest: what `payload_digest` holds: "quick" means `payload.quick_digest`, good for comparing the bodies of one
            address with each other; "declared" the one that the record names, for files of our own crawler.

    Raises:
        OSError: the file cannot be read; damage inside it raises nothing.
    """
    if start == 0 and is_arc(file):
        yield Damage("arc_unsupported", 0, "an ARC file; convert it to WARC, for example with `warcio recompress`")
        return
    opening = Opening(file)
    at: int | None = start
    # A stretch ends at damage, at the end of the file, or never.
    told = False
    while at is not None:
        stretch = _Stretch(opening, at, limit, kinds, digest)
        yield from stretch
        told = stretch.told or (told and not stretch.records)
        if stretch.damage is None:
            return
        if not told:
            yield stretch.damage
        told = True
        at = next_start(file, max(at, stretch.reached) + 1)


class _Stretch:
    """The records from one place to the next damage; afterwards, what the damage is."""

    def __init__(self, opening: Opening, start: int, limit: int, kinds: WarcRecordType, digest: Digest) -> None:
        self._opening = opening
        self._start = start
        self._limit = limit
        self._kinds = kinds
        self._digest = digest
        self.records = 0
        self.reached = start
        self.damage: Damage | None = None
        self.told = False  # a record that is marked as short tells of the damage

    def __iter__(self) -> Iterator[Record]:
        held: Record | None = None
        short = False
        try:
            for place, record in self._opening.records(self._start):
                if held is not None:
                    yield held
                offset = place if self._opening.sought else None
                held, self.reached = None, offset or 0
                _check_length(record)
                self.records += 1
                if record.record_type & self._kinds:
                    held = _record(record, offset, self._limit, self._digest)
                    short = held.short
                else:
                    declared = record.content_length
                    short = record.reader.consume() < declared
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # from the file system or the network; FastWARC's own errors carry no number
            # What follows is no record: the length of the one before may have been a lie.
            if held is not None:
                followed_by_junk = _HEADER_ERROR in str(error) and held.offset is not None
                self.told = followed_by_junk and not self._opening.holds(held.offset or 0)
                yield replace(held, short=self.told)
            reason = "warc_truncated" if any(cut in str(error) for cut in _CUT_ERRORS) else "warc_damaged"
            self.damage = Damage(reason, self.reached, str(error))  # type: ignore[arg-type]
            return
        if held is not None:
            yield held
        if (short and held is None) or (not short and not ends_whole(self._opening.file, self.reached)):
            self.damage = Damage("warc_truncated", self.reached, "the file ends inside a record")


def _check_length(record: fastwarc.WarcRecord) -> None:
    declared = record.headers.get("Content-Length") or ""
    if not declared.strip().isdecimal() or int(declared) != record.content_length:
        raise ValueError(f"a record with the Content-Length {declared!r}")


def _record(record: fastwarc.WarcRecord, offset: int | None, limit: int, digest: Digest) -> Record:
    with_http = bool(record.record_type & _WITH_HTTP) and record.is_http
    http = _http(record) if with_http else None
    chunked = http is not None and "chunked" in (http.get("Transfer-Encoding") or "").lower()
    declared = record.content_length
    body = read_body(record.reader, limit, digest, chunked=chunked)
    return Record(
        kind=record.record_type,
        record_id=(record.record_id or "").strip("<> "),
        url=(record.headers.get("WARC-Target-URI") or "").strip("<> "),
        date=_moment(record.record_date),
        refers_to=(record.headers.get("WARC-Refers-To") or "").strip("<> "),
        headers=record.headers,
        status=http.status_code if http is not None else None,
        http=http.to_tuples() if http is not None else None,
        payload=body.data,
        payload_digest=body.digest or record.headers.get("WARC-Payload-Digest") or "",
        size=body.size,
        # Headers too long to be read are consumed in part: nobody can say how much of the record is left.
        short=body.taken < declared and (http is not None or not with_http),
        offset=offset,
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
