"""Search for the records of a damaged WARC file: their beginnings and ends, and whether the file ends at a record."""

import contextlib
import re
import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, BinaryIO, cast

import fastwarc
from isal import isal_zlib

from tasks.formats.warc.bounds import FIRST, HEAD, UNKNOWN, Bounds, in_gzip, in_text, in_zstd, parsed
from tasks.formats.warc.inflated import Inflated

_GZIP = b"\x1f\x8b\x08"
_ZSTD = b"\x28\xb5\x2f\xfd"
_PLAIN = b"WARC/"
# Of a plain record the version line and the beginning of the next line: text about WARC often contains "WARC/".
_RECORD = rb"WARC/\d\.\d{1,2}\r?\n(?=[A-Za-z-]{1,40}:)"
_MAGIC = {kind: re.compile(re.escape(kind)) for kind in (_GZIP, _ZSTD)} | {_PLAIN: re.compile(_RECORD)}
_ANY_MAGIC = re.compile(b"|".join(pattern.pattern for pattern in _MAGIC.values()))
BOUNDARY = re.compile(b"\n" + _RECORD)
"""The boundary between two records, searched for within one: the block of a record may contain records itself."""
_LONGEST_MAGIC = 64
# A skippable frame at the beginning of the file, with the dictionary of all others (the warc-zstd proposal of the
# IIPC).
_DICTIONARY = b"\x5d\x2a\x4d\x18"
_MAX_DICTIONARY = 16 << 20
_BLOCK = 1 << 20


class Opening:
    """One seekable file, readable from any of its records on.

    Attributes:
        random_access: reading can begin at any record: not in a file that is one gzip member.
        file: the file that offsets refer to: the file itself, or without random access its content.
        in_members: records are gzip members of their own.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._dictionary = _dictionary(file)
        self.random_access = not _runs_on(file)
        self.file = file if self.random_access else cast(BinaryIO, Inflated(file))
        self._magic = _ANY_MAGIC if self._dictionary else _magic(self.file)
        self.in_members = self._magic is _MAGIC[_GZIP]

    def records(self, start: int) -> Iterator[tuple[int, fastwarc.WarcRecord]]:
        """Yields the records from an offset on, each with its own offset; raises FastWARC's errors."""
        source, base = self._from(start)
        for record in fastwarc.ArchiveIterator(source, parse_http=False):
            yield base + record.stream_pos, record

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Context in which other places may be read during an iteration of `records`."""
        at = self.file.tell()
        yield
        self.file.seek(at)

    def bounds(self, place: int, record_id: str) -> Bounds:
        """Returns the bounds of the record at an offset; unknown if no record with this id begins there."""
        self.file.seek(place)
        magic = self.file.read(len(_ZSTD))
        if magic.startswith(_GZIP):
            found = in_gzip(self.file, place)
        elif magic == _ZSTD:
            found = in_zstd(fastwarc.ZstdReader(self._from(place)[0]))
        else:
            found = in_text(self.file, place)
        first = next(self._read_at(place), None)
        # In a gzip member with several records all have the offset of the first.
        return found if first is not None and first.record_id == record_id else UNKNOWN

    def next_start(self, start: int) -> int | None:
        """Returns the first place from `start` on at which a record seems to begin, or None."""
        return _next_start(self.file, start, self._magic)

    def ends_whole(self, place: int) -> bool:
        """Returns whether the file ends where a record may: with a gzip member, if it consists of them.

        Args:
            place: where its last record begins, as far as is known.
        """
        return self.file.whole if isinstance(self.file, Inflated) else _ends_whole(self.file, place)

    def digest_matches(self, place: int) -> bool | None:
        """Returns whether the record at an offset matches its block digest; None for one without a digest."""
        for record in self._read_at(place):
            return bool(record.verify_block_digest()) if "WARC-Block-Digest" in record.headers else None
        return None

    def _read_at(self, place: int) -> Iterator[fastwarc.WarcRecord]:
        try:
            for _, record in self.records(place):
                yield record
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise

    def _from(self, start: int) -> tuple[BinaryIO, int]:
        """Returns the file from an offset on, and the base to add to its offsets."""
        self.file.seek(start)
        if start and self._dictionary:
            # FastWARC expects the dictionary where it begins to read.
            return cast(BinaryIO, _Reading(self.file, self._dictionary)), start - len(self._dictionary)
        return cast(BinaryIO, _Reading(self.file)), 0


class _Reading:
    """A file from where it is, perhaps with other bytes in front; its first reads are small.

    FastWARC fills a buffer at once, which would cost 64 KiB for each of many small records that are read one by one.
    """

    def __init__(self, file: BinaryIO, head: bytes = b"") -> None:
        self._head = head
        self._file = file
        self._at = 0 if head else file.tell()
        self._step = FIRST

    def read(self, size: int = -1) -> bytes:
        if self._at < len(self._head):
            block = self._head[self._at : self._at + size]
        else:
            block = self._file.read(min(size, self._step) if size >= 0 else size)
            self._step *= 2
        self._at += len(block)
        return block

    def tell(self) -> int:
        return self._at


def _dictionary(file: BinaryIO) -> bytes:
    file.seek(0)
    head = file.read(8)
    size = int.from_bytes(head[4:8], "little")
    return head + file.read(size) if head.startswith(_DICTIONARY) and size <= _MAX_DICTIONARY else b""


def _runs_on(file: BinaryIO) -> bool:
    """Returns whether the first gzip member of a file continues behind the first record."""
    pieces = _first_member(file)
    start = next(pieces, b"")
    head = parsed(start)
    if head is None:
        return False
    behind, left, tail = b"", head[1], b""
    for piece in chain([start[head[0] :]], pieces):
        behind += piece[left : left + _LONGEST_MAGIC - len(behind)]
        left = max(left - len(piece), 0)
        # If the length is right a record follows it; if it is wrong, a record may begin anywhere.
        if behind.lstrip(b"\r\n").startswith(_PLAIN) or BOUNDARY.search(tail + piece):
            return True
        if len(behind) == _LONGEST_MAGIC and not behind.strip(b"\r\n"):
            return False
        tail = piece[-_LONGEST_MAGIC:]
    return False


def _first_member(file: BinaryIO) -> Iterator[bytes]:
    file.seek(0)
    stream = zlib.decompressobj(31)
    try:
        while not stream.eof and (block := stream.unconsumed_tail or file.read(HEAD)):
            yield stream.decompress(block, _BLOCK)
    except zlib.error:
        return


def _ends_whole(file: BinaryIO, place: int) -> bool:
    # The offset of the last record may be unknown: then the file is read from its beginning.
    for start in (place, 0):
        # isal takes a fifth of the time, but detects other damage than zlib: its result is used where it finds none.
        with contextlib.suppress(zlib.error, isal_zlib.error):  # type: ignore[arg-type]  # its stub errs
            if _members_end(file, start, isal_zlib.decompressobj):
                return True
        try:
            return _members_end(file, start, zlib.decompressobj)
        except zlib.error:
            continue
    return True


def _members_end(file: BinaryIO, start: int, inflating: Callable[[int], Any]) -> bool:
    file.seek(start)
    stream, whole = inflating(31), True
    if (head := file.read(len(_GZIP))) != _GZIP:
        if not head:
            raise zlib.error("nothing is here")
        return True
    block = head
    while block:
        while block:
            if whole:
                stream = inflating(31)
            stream.decompress(block, _BLOCK)
            whole = stream.eof
            block = stream.unused_data if whole else stream.unconsumed_tail
        block = file.read(_BLOCK)
    if not whole:
        stream.flush()
    return whole or stream.eof


def _magic(file: BinaryIO) -> re.Pattern[bytes]:
    """Returns the pattern of the first bytes of records: that of the first record, or any if that is damaged."""
    file.seek(0)
    head = file.read(len(_PLAIN))
    return next((pattern for kind, pattern in _MAGIC.items() if head.startswith(kind)), _ANY_MAGIC)


def _next_start(file: BinaryIO, start: int, magic: re.Pattern[bytes]) -> int | None:
    offset, tail, step = start, b"", FIRST
    file.seek(start)
    while block := file.read(step):
        step = min(2 * step, _BLOCK)
        window = tail + block
        base = offset - len(tail)
        for found in magic.finditer(window):
            at = base + found.start()
            if at >= start and _begins_record(file, at):
                return at
        file.seek(offset + len(block))
        offset += len(block)
        tail = window[-_LONGEST_MAGIC:]
    return None


def _begins_record(file: BinaryIO, offset: int) -> bool:
    file.seek(offset)
    head = file.read(512)
    if head.startswith(_GZIP):
        try:
            return zlib.decompressobj(31).decompress(head, len(_PLAIN)) == _PLAIN
        except zlib.error:
            return False
    # A zstd frame may need the file's dictionary; whether it is a record is known only when it is read.
    return head.startswith((_ZSTD, _PLAIN))
