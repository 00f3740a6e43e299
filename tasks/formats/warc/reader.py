"""The records of a WARC or ARC file, and of a damaged one those before and behind the damage.

Reads one file: gzip or zstd (a member per record, with or without dictionary, or one for all), or plain. FastWARC reads
857 MB/s and ends at the first damaged record; here reading goes on at the next byte at which a record begins, so one
bad sector costs one record and not the rest of a gigabyte.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, BinaryIO

import fastwarc
from fastwarc import WarcRecordType

from tasks.formats.warc.arc import is_arc, read_arc
from tasks.formats.warc.bounds import UNKNOWN, Bounds
from tasks.formats.warc.payload import Digest
from tasks.formats.warc.record import CAPTURES, Damage, Reason, Record, read_record, unread
from tasks.formats.warc.resync import BOUNDARY, Opening

_HEADER_ERROR = "Invalid WARC header"
_MARK, _SEAM = b"\nWARC/", 64
_BLOCK = 1 << 20
# Whoever has lied so much about lengths wants his file to be read for ever.
_MAX_WASTED = 32 << 30
_CUT_ERRORS = ("incomplete frame", "unexpected end")


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
    if is_arc(file):
        yield from read_arc(file, limit, kinds, start, digest)
        return
    opening = Opening(file)
    at: int | None = start
    # A stretch ends at damage, at the end of the file, or never.
    told, wasted = False, 0
    while at is not None:
        stretch = _Stretch(opening, at, limit, kinds, digest)
        yield from stretch
        told = stretch.told or (told and not stretch.records)
        if stretch.damage is not None and not told:
            yield stretch.damage
        told = True
        wasted += stretch.wasted
        if wasted > _MAX_WASTED:
            yield Damage(
                "warc_damaged", at, f"wrong lengths that add up to more than {_MAX_WASTED} bytes; the rest is left"
            )
            return
        at = None if stretch.behind is None else opening.next_start(max(at + 1, stretch.behind))


class _LengthError(ValueError):
    """A record ends elsewhere than it declares."""


class _Block:
    """What a record holds, while it is read; calls `doubt` once where something in it looks like another record.

    Attributes:
        certain: nothing is looked for (any more).
    """

    def __init__(self, record: fastwarc.WarcRecord, doubt: Callable[[], None]) -> None:
        self._reader = record.reader
        self._doubt = doubt
        self.certain = False
        self._seam = b""

    def read(self, size: int) -> bytes:
        """Returns the next bytes, and b"" at the end; raises what `doubt` raises."""
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
    """The records from one place to the next damage; afterwards, what the damage is.

    Attributes:
        records: how many there were.
        damage: what ended them; None at the end of the file.
        told: a record that is marked as short tells of the damage.
        behind: where to look for the next record; None at the end of the file.
        wasted: bytes that were read in vain because a record had declared a wrong length.
    """

    def __init__(self, opening: Opening, start: int, limit: int, kinds: WarcRecordType, digest: Digest) -> None:
        self._opening = opening
        self._start = start
        self._limit = limit
        self._kinds = kinds
        self._digest = digest
        self.records = self.wasted = 0
        self.damage: Damage | None = None
        self.told = False
        self.behind: int | None = None
        self._place = start
        self._record: Any = None
        self._held: Record | None = None
        self._inside = False

    def __iter__(self) -> Iterator[Record]:
        try:
            for place, record in self._opening.records(self._start):
                if self._held is not None:
                    yield self._held
                self._place, self._record, self._held, self._inside = place, record, None, True
                _check_length(record)
                self.records += 1
                short = self._read(record)
                self._inside = False
        except _LengthError as error:
            self._wrong(str(error))
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # from the file system or the network; FastWARC's own errors carry no number
            self._broken(error)
        else:
            if self.records:
                self._ended(short)
        if self._held is not None:
            yield self._held

    @property
    def _reached(self) -> int:
        """The last place known for sure."""
        return self._place if self._opening.sought else 0

    def _read(self, record: fastwarc.WarcRecord) -> bool:
        """Reads a record to its end, and holds it if it is wanted, for what follows may show a lie.

        Returns:
            Whether the file ends before the record does.
        """
        declared = record.content_length
        block = _Block(record, self._doubt)
        if not record.record_type & self._kinds:
            return block.drain() < declared
        self._held = read_record(record, block, self._offset, self._limit, self._digest)
        return self._held.short

    @property
    def _offset(self) -> int | None:
        return self._place if self._opening.sought else None

    def _doubt(self) -> None:
        """Raises _LengthError if the record that is being read ends before what stands in it and looks like another."""
        with self._opening.aside():
            bounds = self._bounds()
            if bounds.ends is None:
                return
            if not bounds.ends:
                self.behind = bounds.behind
                raise _LengthError("the record holds another one, and ends elsewhere than it declares")
            # In a text a wrong length may meet the end of another record. Where no digest tells it is believed: a page
            # may well hold what looks like a record.
            holds = self._opening.holds(self._place)
        if holds is False:
            self.wasted += self._record.content_length
            raise _LengthError("the record holds another one, and is not as its digest says")

    def _wrong(self, why: str) -> None:
        """The record that was being read declares a wrong length."""
        self.damage = Damage("warc_damaged", self._reached, why)
        self.behind = self.behind or self._place + 1
        if self._record.record_type & self._kinds:
            self._held = unread(self._record, self._offset)
        self._mark()

    def _bounds(self) -> Bounds:
        return self._opening.bounds(self._place, self._record.record_id)

    def _mark(self) -> None:
        if self._held is not None:
            self._held = replace(self._held, short=True)
            self.told = True

    def _broken(self, error: Exception) -> None:
        """Reading has come to something that is no record, or is damaged."""
        reason: Reason = "warc_truncated" if any(cut in str(error) for cut in _CUT_ERRORS) else "warc_damaged"
        self.damage = Damage(reason, self._reached, str(error))
        self.behind = self._place + 1
        if self._inside or not self.records:
            self._held = None
            return
        bounds = self._bounds()
        self.behind = bounds.behind or self.behind
        # What follows is no record: the length of the one before may have been a lie.
        if _HEADER_ERROR in str(error) and not bounds.ends:
            holds = self._opening.holds(self._place)
            if holds is False or (holds is None and bounds.ends is False):
                self._mark()

    def _ended(self, short: bool) -> None:
        """The file has come to its end, perhaps within a record, perhaps in one that has swallowed those behind it."""
        bounds = self._bounds() if short else UNKNOWN
        if short:
            self.damage = Damage("warc_truncated", self._reached, "the file ends inside a record")
            self.told = self._held is not None
            # Of a gzip member that is cut off nothing is left to look at.
            self.behind = bounds.behind if self._opening.in_members else self._place + 1
        elif not self._opening.ends_whole(self._reached):
            self.damage = Damage("warc_truncated", self._reached, "the file ends inside a record")


def _check_length(record: fastwarc.WarcRecord) -> None:
    declared = record.headers.get("Content-Length") or ""
    if not declared.strip().isdecimal() or int(declared) != record.content_length:
        raise ValueError(f"a record with the Content-Length {declared!r}")
