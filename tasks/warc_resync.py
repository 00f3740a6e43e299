"""Where records of a WARC file begin, and whether the file ends where a record does.

Used by `warc_reader`, mostly at damaged places: a search there may read the rest of the file, byte by byte.
"""

import contextlib
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, cast

import fastwarc
from isal import isal_zlib

_GZIP = b"\x1f\x8b\x08"
_ZSTD = b"\x28\xb5\x2f\xfd"
_PLAIN = b"WARC/"
# Of a plain record the version line and the beginning of the next: text about WARC is full of the first word.
_MAGIC = re.compile(re.escape(_GZIP) + b"|" + re.escape(_ZSTD) + rb"|WARC/\d\.\d{1,2}\r?\n(?=[A-Za-z-]{1,40}:)")
_LONGEST_MAGIC = 64
# A skippable frame at the very beginning that holds the dictionary of all others (the warc-zstd proposal of the IIPC).
_DICTIONARY = b"\x5d\x2a\x4d\x18"
_MAX_DICTIONARY = 16 << 20
_ARC = b"filedesc:"
_LENGTH = re.compile(rb"^Content-Length:[ \t]*(\d{1,18})[ \t]*\r?$", re.I | re.M)
_HEAD = 1 << 16
_BLOCK = 1 << 20


class Opening:
    """One seekable file, to be read from any of its records on."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self._dictionary = _dictionary(file)

        self.sought = not _runs_on(file)
        """Whether reading can begin at any record: not in a file that is one gzip member."""

    def records(self, start: int) -> Iterator[tuple[int, fastwarc.WarcRecord]]:
        """Yields the records from a place on, each with the place where it begins; raises what FastWARC raises.

        Where reading cannot begin at a record, its place is meaningless.
        """
        self.file.seek(start)
        source, base = self.file, 0
        if start and self._dictionary:
            # FastWARC looks for the dictionary where it begins to read.
            source = cast(BinaryIO, _Spliced(self._dictionary, self.file))
            base = start - len(self._dictionary)
        for record in fastwarc.ArchiveIterator(source, parse_http=False):
            yield base + record.stream_pos, record

    def holds(self, offset: int) -> bool:
        """Tells whether the record at a place is as its block digest says; one without a digest is believed."""
        for _, record in self.records(offset):
            return "WARC-Block-Digest" not in record.headers or bool(record.verify_block_digest())
        return False


class _Spliced:
    """A file that begins with other bytes."""

    def __init__(self, head: bytes, file: BinaryIO) -> None:
        self._head = head
        self._file = file
        self._at = 0

    def read(self, size: int = -1) -> bytes:
        inside = self._at < len(self._head)
        block = self._head[self._at : self._at + size] if inside else self._file.read(size)
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
    """Tells whether the first gzip member of a file goes on behind the first record."""
    file.seek(0)
    stream = zlib.decompressobj(31)
    try:
        data = stream.decompress(file.read(_HEAD), _HEAD)
        head, _, rest = data.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if length is None:
            return False
        left = int(length[1]) + len(b"\r\n\r\n") - len(rest)
        while left >= 0 and not stream.eof:
            block = stream.unconsumed_tail or file.read(_BLOCK)
            if not block:
                return False
            left -= len(stream.decompress(block, min(_BLOCK, left + 1)))
    except zlib.error:
        return False
    return left < 0


def is_arc(file: BinaryIO) -> bool:
    """Tells whether a file is an ARC file, the format before WARC, compressed or not."""
    file.seek(0)
    head = file.read(512)
    if head.startswith(_GZIP):
        try:
            head = zlib.decompressobj(31).decompress(head, len(_ARC))
        except zlib.error:
            return False
    return head.startswith(_ARC)


def ends_whole(file: BinaryIO, offset: int) -> bool:
    """Tells whether a file ends where a gzip member does, if it is made of gzip members; FastWARC does not.

    Args:
        file: a seekable file.
        offset: where its last record begins, as far as is known.
    """
    # In a file that is one member the offset of a record is no place at which anything can be read.
    for start in (offset, 0):
        # isal takes a fifth of the time, but stumbles over other damage than zlib: it is believed where it finds none.
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


def next_start(file: BinaryIO, start: int) -> int | None:
    """Returns the first offset from `start` on at which a record seems to begin, or None."""
    offset, tail = start, b""
    file.seek(start)
    while block := file.read(_BLOCK):
        window = tail + block
        base = offset - len(tail)
        for magic in _MAGIC.finditer(window):
            at = base + magic.start()
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
    # A zstd frame may need the file's dictionary; whether it holds a record shows when it is read.
    return head.startswith((_ZSTD, _PLAIN))
