"""The WARC files in a WACZ file, and in WACZ files within one (Web Archive Collection Zipped, Webrecorder).

A WACZ file is a zip file with WARC files in the folder `archive/`, mostly stored as they are, so that records can be
read at their places. A member that is deflated is unpacked into a temporary file. Nothing is written under the name of
a member.
"""

import contextlib
import io
import os
import re
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Iterator
from typing import BinaryIO, cast

from tasks.formats.documents.external_files import zip_errors, zip_files

_WARC = re.compile(r"\.w?arc(?:\.gz|\.zst)?\Z", re.I)
_WACZ = re.compile(r"\.wacz\Z", re.I)
_DEEPEST = 3
# A WARC file is packed already, or text that shrinks to a tenth; deflate expands data a thousandfold at most.
_MOST_TIMES, _FREE = 50, 64 << 20
_LOCAL = 30  # bytes of a local header before the name
_SIGNATURE = b"PK\x03\x04"


def warc_members(file: BinaryIO) -> Iterator[tuple[str, BinaryIO]]:
    """Yields name and content of each WARC file in a zip file, in the order of its directory.

    Args:
        file: the zip file, seekable; each content must be read before the next one is taken.

    Raises:
        OSError: the zip file is damaged, encrypted or a zip bomb, or has no WARC file.
    """
    found = False
    for member in _members(file, 0):
        found = True
        yield member
    if not found:
        raise OSError("the zip file has no WARC file (.warc, .warc.gz)")


def _members(file: BinaryIO, depth: int) -> Iterator[tuple[str, BinaryIO]]:
    with zip_errors():
        archive = zipfile.ZipFile(file)
        entries = zip_files(archive, file.seek(0, os.SEEK_END))
    for entry in entries:
        is_inner = _WACZ.search(entry.filename) is not None
        if not is_inner and not _WARC.search(entry.filename):
            continue
        if is_inner and depth == _DEEPEST:
            raise OSError(f"{entry.filename} is in more than {_DEEPEST} zip files: unpack it")
        with _opened(archive, entry, file) as content:
            if is_inner:
                yield from ((f"{entry.filename}/{name}", inner) for name, inner in _members(content, depth + 1))
            else:
                yield entry.filename, content


@contextlib.contextmanager
def _opened(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, file: BinaryIO) -> Iterator[BinaryIO]:
    """Opens a member as a seekable file."""
    if entry.compress_type == zipfile.ZIP_STORED and not entry.flag_bits & 1:
        yield cast(BinaryIO, io.BufferedReader(_Slice(file, _begin(file, entry), entry.compress_size), 1 << 16))
        return
    most = _FREE + _MOST_TIMES * entry.compress_size
    if entry.file_size > most:
        raise OSError(f"{entry.filename} of the zip file expands to {entry.file_size:,} bytes: it is a zip bomb")
    with tempfile.TemporaryFile() as unpacked:
        # No more is unpacked than the directory states.
        with zip_errors(), archive.open(entry) as packed:
            shutil.copyfileobj(packed, unpacked, 1 << 20)
        yield cast(BinaryIO, unpacked)


def _begin(file: BinaryIO, entry: zipfile.ZipInfo) -> int:
    """Returns the offset of the content of a member."""
    file.seek(entry.header_offset)
    head = file.read(_LOCAL)
    if len(head) < _LOCAL or not head.startswith(_SIGNATURE):
        raise OSError(f"{entry.filename} is not where the directory of the zip file says")
    name, extra = struct.unpack_from("<HH", head, 26)
    return entry.header_offset + _LOCAL + int(name) + int(extra)


class _Slice(io.RawIOBase):
    """A part of a file as a file of its own."""

    def __init__(self, file: BinaryIO, begin: int, size: int) -> None:
        self._file = file
        self._begin = begin
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        """Returns True."""
        return True

    def seekable(self) -> bool:
        """Returns True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves to an offset in the slice."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # the stub of RawIOBase has any buffer
        """Fills `buffer` with the next bytes; returns their number."""
        self._file.seek(self._begin + self._at)
        data = self._file.read(max(0, min(len(buffer), self._size - self._at)))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
