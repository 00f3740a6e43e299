"""Reader of WARC and ARC files; continues behind damage.

Reads one file: gzip or zstd (a member per record, with or without dictionary, or one for all), or plain. FastWARC reads
857 MB/s and ends at the first damaged record; this reader continues at the next byte at which a record begins, so one
bad sector costs one record and not the rest of a gigabyte.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, BinaryIO

import fastwarc
from fastwarc import WarcRecordType

from tasks.formats.warc.arc import is_arc, read_arc
from tasks.formats.warc.record import CAPTURES, Damage, Digest, Reason, Record, read_record, unread
from tasks.formats.warc.seek import BOUNDARY, UNKNOWN, Bounds, Opening

_HEADER_ERROR = "Invalid WARC header"
_MARK, _SEAM = b"\nWARC/", 64
_BLOCK = 1 << 20
# The first read of a record whose length is not certain: small, so that a wrong length costs no more than the record.
_FIRST = 4 << 10
# A file with so many bytes of wrong lengths, or this many times its own, is constructed to be read for ever.
_MAX_WASTED, _FREE_WASTED, _WASTED_TIMES = 32 << 30, 1 << 30, 32
_CUT_ERRORS = ("incomplete frame", "unexpected end")


def read_records(
    file: BinaryIO, limit: int, kinds: WarcRecordType = CAPTURES, *, start: int = 0, digest: Digest = "computed"
) -> Iterator[Record | Damage]:
    """Yields the records of the given kinds and the damaged places of a file, in file order.

    Args:
        file: a seekable file.
        limit: most bytes of a body to keep.
        kinds: which records are returned; damage in the others is reported as well.
        start: offset to begin at; a record begins there.
        digest: kind of `payload_digest`: "quick" means `record.quick_digest`, sufficient to compare the bodies of one
            URL with each other; "declared" the one in the record's header, for files of our own crawler.

    Raises:
        OSError: the file cannot be read; damage inside it raises nothing.
    """
    if is_arc(file):
        yield from read_arc(file, limit, kinds, start, digest)
        return
    most = min(_MAX_WASTED, _FREE_WASTED + _WASTED_TIMES * file.seek(0, os.SEEK_END))
    opening = Opening(file)
    at: int | None = start
    # A stretch ends at damage or at the end of the file.
    reported, wasted = False, 0
    while at is not None:
        stretch = _Stretch(opening, at, limit, kinds, digest)
        yield from stretch
        reported = stretch.reported or (reported and not stretch.records)
        if stretch.damage is not None and not reported:
            yield stretch.damage
        reported = True
        wasted += stretch.wasted
        if wasted > most:
            yield Damage("warc_damaged", at, f"wrong lengths that add up to more than {most} bytes; the rest is left")
            return
        at = None if stretch.behind is None else opening.next_start(max(at + 1, stretch.behind))


class _LengthError(ValueError):
    """A record has another length than it declares."""


class _Block:
    """The content of a record, while it is read; calls `doubt` once where something in it looks like another record.

    Attributes:
        certain: the content is not searched (any more).
    """

    def __init__(self, record: fastwarc.WarcRecord, doubt: Callable[[], None]) -> None:
        self._reader = record.reader
        self._doubt = doubt
        self.certain = False
        self._seam = b""
        self._step = _FIRST

    def read(self, size: int) -> bytes:
        """Returns the next bytes, and b"" at the end; raises what `doubt` raises."""
        if not self.certain:
            size, self._step = min(size, self._step), 2 * self._step
        data: bytes = self._reader.read(size)
        if data and not self.certain:
            if _MARK in data or self._seam:
                self._look(data)
            self._seam = data[-_SEAM:]
        return data

    def drain(self) -> int:
        """Reads to the end; returns the number of bytes."""
        count = 0
        while data := self.read(_BLOCK):
            count += len(data)
        return count

    def _look(self, data: bytes) -> None:
        if BOUNDARY.search(data) or BOUNDARY.search(self._seam + data[:_SEAM]):
            self.certain = True
            self._doubt()


class _Stretch:
    """The records from one offset to the next damage; after iteration, the damage.

    Attributes:
        records: number of records.
        damage: the damage that ended them; None at the end of the file.
        reported: the damage is reported by a record marked as short.
        behind: where to search for the next record; None at the end of the file.
        wasted: bytes that were read in vain because a record declared a wrong length.
    """

    def __init__(self, opening: Opening, start: int, limit: int, kinds: WarcRecordType, digest: Digest) -> None:
        self._opening = opening
        self._start = start
        self._limit = limit
        self._kinds = kinds
        self._digest = digest
        self.records = self.wasted = 0
        self.damage: Damage | None = None
        self.reported = False
        self.behind: int | None = None
        self._place = start
        self._record: Any = None
        self._pending: Record | None = None
        self._inside = False

    def __iter__(self) -> Iterator[Record]:
        try:
            for place, record in self._opening.records(self._start):
                if self._pending is not None:
                    yield self._pending
                self._place, self._record, self._pending, self._inside = place, record, None, True
                _check_length(record)
                self.records += 1
                short = self._read(record)
                self._inside = False
        except _LengthError as error:
            self._wrong(str(error))
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # from the file system or the network; FastWARC's own errors have no errno
            self._broken(error)
        else:
            if self.records:
                self._ended(short)
        if self._pending is not None:
            yield self._pending

    @property
    def _reached(self) -> int:
        """The last offset that is certain."""
        return self._place if self._opening.random_access else 0

    def _read(self, record: fastwarc.WarcRecord) -> bool:
        """Reads a record to its end, and keeps it if requested: what follows may show that its length is wrong.

        Returns:
            Whether the file ends before the record does.
        """
        declared = record.content_length
        block = _Block(record, self._doubt)
        if not record.record_type & self._kinds:
            return block.drain() < declared
        self._pending = read_record(record, block, self._offset, self._limit, self._digest)
        return self._pending.short

    @property
    def _offset(self) -> int | None:
        return self._place if self._opening.random_access else None

    def _doubt(self) -> None:
        """Raises _LengthError if the current record ends before the place in it that looks like another record."""
        with self._opening.aside():
            bounds = self._bounds()
            if bounds.ends is None:
                return
            if not bounds.ends:
                self.behind = bounds.behind
                raise _LengthError("the record holds another one, and ends elsewhere than it declares")
            # In uncompressed content a wrong length may end at the end of another record. Without a digest the length
            # is taken as right: a page may contain text that looks like a record.
            intact = self._opening.digest_matches(self._place)
        if intact is False:
            self.wasted += self._record.content_length
            raise _LengthError("the record holds another one, and is not as its digest says")

    def _wrong(self, why: str) -> None:
        """Records that the current record declares a wrong length."""
        self.damage = Damage("warc_damaged", self._reached, why)
        self.behind = self.behind or self._place + 1
        if self._record.record_type & self._kinds:
            self._pending = unread(self._record, self._offset)
        self._mark()

    def _bounds(self) -> Bounds:
        return self._opening.bounds(self._place, self._record.record_id)

    def _mark(self) -> None:
        if self._pending is not None:
            self._pending = replace(self._pending, short=True)
            self.reported = True

    def _broken(self, error: Exception) -> None:
        """Records that reading has reached damage or something that is not a record."""
        reason: Reason = "warc_truncated" if any(cut in str(error) for cut in _CUT_ERRORS) else "warc_damaged"
        self.damage = Damage(reason, self._reached, str(error))
        self.behind = self._place + 1
        if self._inside or not self.records:
            self._pending = None
            return
        bounds = self._bounds()
        self.behind = bounds.behind or self.behind
        # No record follows: the length of the one before may have been wrong.
        if _HEADER_ERROR in str(error) and not bounds.ends:
            intact = self._opening.digest_matches(self._place)
            if intact is False or (intact is None and bounds.ends is False):
                self._mark()

    def _ended(self, short: bool) -> None:
        """Records the end of the file, perhaps within a record or in one whose length covers the following ones."""
        bounds = self._bounds() if short else UNKNOWN
        if short:
            self.damage = Damage("warc_truncated", self._reached, "the file ends inside a record")
            self.reported = self._pending is not None
            # Behind a truncated gzip member there is nothing to search.
            self.behind = bounds.behind if self._opening.in_members else self._place + 1
        elif not self._opening.ends_whole(self._reached):
            self.damage = Damage("warc_truncated", self._reached, "the file ends inside a record")


def _check_length(record: fastwarc.WarcRecord) -> None:
    declared = record.headers.get("Content-Length") or ""
    if not declared.strip().isdecimal() or int(declared) != record.content_length:
        raise ValueError(f"a record with the Content-Length {declared!r}")
