"""Reader of WARC and ARC files that continues after damage.

Reads one file: gzip or zstd (a member per record, with or without dictionary, or one for all), or plain. FastWARC reads
857 MB/s but stops at the first damaged record. This reader continues at the next record, so one bad sector costs one
record instead of the rest of the file.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, BinaryIO

import fastwarc
from fastwarc import WarcRecordType

from tasks.formats.warc.arc import is_arc, read_arc
from tasks.formats.warc.record import CAPTURES, Damage, Digest, Reason, Record, header_only_record, read_record
from tasks.formats.warc.seek import BOUNDARY, UNKNOWN, RecordBounds, SeekableWarc

_HEADER_ERROR = "Invalid WARC header"
_RECORD_MARK, _SEAM = b"\nWARC/", 64
_BLOCK = 1 << 20
# The first read of a record of uncertain length: small, so that a wrong length costs little.
_FIRST = 4 << 10
# Limits on bytes read because of wrong lengths, in total and as a multiple of the file size; a file above them is
# malicious.
_MAX_WASTED, _FREE_WASTED, _WASTED_TIMES = 32 << 30, 1 << 30, 32
_CUT_ERRORS = ("incomplete frame", "unexpected end")


def read_records(
    file: BinaryIO, limit: int, kinds: WarcRecordType = CAPTURES, *, start: int = 0, digest: Digest = "computed"
) -> Iterator[Record | Damage]:
    """Yields the records of the given kinds and the damaged places of a file, in file order.

    Args:
        file: a seekable file.
        limit: maximum bytes of a body to keep.
        kinds: record types to return; damage in other records is reported as well.
        start: offset of the first record to read.
        digest: kind of `payload_digest`: "quick" is `record.quick_digest`, sufficient to compare the bodies of one URL
            with each other; "declared" is the digest in the record's header, for files of our own crawler.

    Raises:
        OSError: the file cannot be read. Damage in it raises nothing.
    """
    if is_arc(file):
        yield from read_arc(file, limit, kinds, start, digest)
        return
    most = min(_MAX_WASTED, _FREE_WASTED + _WASTED_TIMES * file.seek(0, os.SEEK_END))
    warc = SeekableWarc(file)
    at: int | None = start
    reported, wasted = False, 0
    while at is not None:
        run = _IntactRun(warc, at, limit, kinds, digest)
        yield from run
        reported = run.reported or (reported and not run.records)
        if run.damage is not None and not reported:
            yield run.damage
        reported = True
        wasted += run.wasted
        if wasted > most:
            yield Damage("warc_damaged", at, f"wrong lengths add up to more than {most} bytes; the rest is skipped")
            return
        at = None if run.search_from is None else warc.next_record_start(max(at + 1, run.search_from))


class _LengthError(ValueError):
    """The length of a record differs from the declared one."""


class _BlockReader:
    """Reads the content of a record; calls `on_suspicion` once if part of it looks like another record.

    Attributes:
        certain: the content is not searched, or no longer.
    """

    def __init__(self, record: fastwarc.WarcRecord, on_suspicion: Callable[[], None]) -> None:
        self._reader = record.reader
        self._on_suspicion = on_suspicion
        self.certain = False
        self._seam = b""
        self._step = _FIRST

    def read(self, size: int) -> bytes:
        """Returns the next bytes, or b"" at the end; raises the errors of `on_suspicion`."""
        if not self.certain:
            size, self._step = min(size, self._step), 2 * self._step
        data: bytes = self._reader.read(size)
        if data and not self.certain:
            if _RECORD_MARK in data or self._seam:
                self._search_boundary(data)
            self._seam = data[-_SEAM:]
        return data

    def drain(self) -> int:
        """Reads to the end and returns the number of bytes."""
        count = 0
        while data := self.read(_BLOCK):
            count += len(data)
        return count

    def _search_boundary(self, data: bytes) -> None:
        if BOUNDARY.search(data) or BOUNDARY.search(self._seam + data[:_SEAM]):
            self.certain = True
            self._on_suspicion()


class _IntactRun:
    """Iterates over the records from an offset to the next damage or the end of the file.

    Attributes (final after iteration):
        records: number of records.
        damage: the damage that ended the run; None at the end of the file.
        reported: the damage is reported by a record marked as short.
        search_from: where to search for the next record; None at the end of the file.
        wasted: bytes read because a record declared a wrong length.
    """

    def __init__(self, warc: SeekableWarc, start: int, limit: int, kinds: WarcRecordType, digest: Digest) -> None:
        self._warc = warc
        self._start = start
        self._limit = limit
        self._kinds = kinds
        self._digest = digest
        self.records = self.wasted = 0
        self.damage: Damage | None = None
        self.reported = False
        self.search_from: int | None = None
        self._position = start
        self._record: Any = None
        self._pending: Record | None = None
        self._inside = False

    def __iter__(self) -> Iterator[Record]:
        try:
            for position, record in self._warc.records(self._start):
                if self._pending is not None:
                    yield self._pending
                self._position, self._record, self._pending, self._inside = position, record, None, True
                _check_length(record)
                self.records += 1
                short = self._read(record)
                self._inside = False
        except _LengthError as error:
            self._set_wrong_length(str(error))
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # from the file system or the network; FastWARC's own errors have no errno
            self._set_damage(error)
        else:
            if self.records:
                self._set_end(short)
        if self._pending is not None:
            yield self._pending

    @property
    def _certain_offset(self) -> int:
        """Offset of the last record that is certain."""
        return self._position if self._warc.random_access else 0

    def _read(self, record: fastwarc.WarcRecord) -> bool:
        """Reads a record to its end; holds it back if requested, because the next bytes may show a wrong length.

        Returns:
            Whether the file ends before the record does.
        """
        declared = record.content_length
        block = _BlockReader(record, self._check_suspicion)
        if not record.record_type & self._kinds:
            return block.drain() < declared
        self._pending = read_record(record, block, self._offset, self._limit, self._digest)
        return self._pending.short

    @property
    def _offset(self) -> int | None:
        return self._position if self._warc.random_access else None

    def _check_suspicion(self) -> None:
        """Raises _LengthError if the current record ends before the bytes in it that look like another record."""
        with self._warc.preserved_position():
            bounds = self._bounds()
            if bounds.ends is None:
                return
            if not bounds.ends:
                self.search_from = bounds.search_from
                raise _LengthError("the record contains another one, and its declared length is wrong")
            # In uncompressed content a wrong length may coincide with the end of another record. Without a digest the
            # length is trusted, because a page may contain text that looks like a record.
            intact = self._warc.digest_matches(self._position)
        if intact is False:
            self.wasted += self._record.content_length
            raise _LengthError("the record contains another one, and its digest does not match")

    def _set_wrong_length(self, why: str) -> None:
        """Records that the current record declares a wrong length."""
        self.damage = Damage("warc_damaged", self._certain_offset, why)
        self.search_from = self.search_from or self._position + 1
        if self._record.record_type & self._kinds:
            self._pending = header_only_record(self._record, self._offset)
        self._mark_short()

    def _bounds(self) -> RecordBounds:
        return self._warc.bounds(self._position, self._record.record_id)

    def _mark_short(self) -> None:
        if self._pending is not None:
            self._pending = replace(self._pending, short=True)
            self.reported = True

    def _set_damage(self, error: Exception) -> None:
        """Records that the next bytes are damaged or not a record."""
        reason: Reason = "warc_truncated" if any(cut in str(error) for cut in _CUT_ERRORS) else "warc_damaged"
        self.damage = Damage(reason, self._certain_offset, str(error))
        self.search_from = self._position + 1
        if self._inside or not self.records:
            self._pending = None
            return
        bounds = self._bounds()
        self.search_from = bounds.search_from or self.search_from
        # No record follows, so the length of the previous record may be wrong.
        if _HEADER_ERROR in str(error) and not bounds.ends:
            intact = self._warc.digest_matches(self._position)
            if intact is False or (intact is None and bounds.ends is False):
                self._mark_short()

    def _set_end(self, short: bool) -> None:
        """Records the end of the file; it may be inside a record, or inside one whose length covers later records."""
        bounds = self._bounds() if short else UNKNOWN
        if short:
            self.damage = Damage("warc_truncated", self._certain_offset, "the file ends inside a record")
            self.reported = self._pending is not None
            # Nothing can be read after a truncated gzip member.
            self.search_from = bounds.search_from if self._warc.in_members else self._position + 1
        elif not self._warc.ends_at_boundary(self._certain_offset):
            self.damage = Damage("warc_truncated", self._certain_offset, "the file ends inside a record")


def _check_length(record: fastwarc.WarcRecord) -> None:
    declared = record.headers.get("Content-Length") or ""
    if not declared.strip().isdecimal() or int(declared) != record.content_length:
        raise ValueError(f"a record with the Content-Length {declared!r}")
