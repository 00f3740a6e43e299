"""Pieces of files of rows, so that one file can go into several parts.

Reads external files. A Parquet file is cut between row groups, JSON lines at line ends; the cuts depend on the file and
on the requested size, not on the workers. Plain lines can be read from any offset. Compressed ones can be read only
from the beginning, so a process keeps the stream of its last piece: the next piece continues there, and any other one
skips the bytes before it.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tasks.core import parquet
from tasks.core.errors import InputError
from tasks.formats.external_files import SourceFile

ROW_KINDS = ("jsonl", "parquet")
"""Kinds of sources whose files hold one document per row."""

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Span:
    """A piece of a file of rows.

    Attributes:
        first: number of its first row in the file; of JSON lines the number of the line, from 0.
        start: where it begins: a byte of the unpacked file, or a row group.
        end: where it ends, exclusive.
        weight: its bytes, unpacked.
    """

    first: int
    start: int
    end: int
    weight: int

    def joined(self, following: "Span") -> "Span":
        """Returns this piece and the one behind it as one."""
        return Span(self.first, self.start, following.end, self.weight + following.weight)


def cut(file: SourceFile, kind: str, size: int) -> list[Span]:
    """Returns the pieces of a file, each of `size` bytes or a little more, unpacked; none is empty.

    Args:
        file: a file of a source.
        kind: what it holds, one of ROW_KINDS.
        size: a piece ends with the first row group, or line, that reaches so many bytes.

    Raises:
        OSError, pa.ArrowException: the file cannot be read.
    """
    return list(_row_groups(file, size) if kind == "parquet" else _lines(file, size))


def _row_groups(file: SourceFile, size: int) -> Iterator[Span]:
    described = parquet.metadata(file.local())
    first = start = rows = weight = 0
    for number in range(described.num_row_groups):
        group = described.row_group(number)
        rows, weight = rows + group.num_rows, weight + group.total_byte_size
        if weight >= size or number == described.num_row_groups - 1:
            yield Span(first, start, number + 1, weight)
            first, start, weight = rows, number + 1, 0


def _lines(file: SourceFile, size: int) -> Iterator[Span]:
    first = start = lines = at = 0
    with _stream(file) as stream:
        while block := stream.read(_BLOCK):
            behind = 0
            while (end := block.find(b"\n", max(behind, start + size - at - 1)) + 1) > 0:
                lines += block.count(b"\n", behind, end)
                yield Span(first, start, at + end, at + end - start)
                first, start, behind = lines, at + end, end
            lines += block.count(b"\n", behind)
            at += len(block)
    if at > start:
        yield Span(first, start, at, at - start)


class Window:
    """The bytes of a piece, to be read forward."""

    def __init__(self, stream: Any, path: str, left: int | None) -> None:
        self._stream = stream
        self._path = path
        self.left = left
        """How many bytes are left; None where the piece is the whole file."""

    def read(self, size: int) -> bytes:
        """Returns the next bytes, at most `size`; b"" at the end."""
        count = size if self.left is None else min(size, self.left)
        data: bytes = self._stream.read(count) if count else b""
        if self.left is not None:
            if count and not data:
                raise _changed(self._path)
            self.left -= len(data)
        return data


@contextlib.contextmanager
def window(file: SourceFile, span: Span | None) -> Iterator[Window]:
    """Yields the bytes of a piece of a file of lines, unpacked; None for the whole file.

    Raises:
        OSError: the file cannot be read.
        InputError: it is not as it was when it was cut.
    """
    if span is None:
        with _stream(file) as stream:
            yield Window(stream, file.path, None)
    elif file.codec is None:
        with _stream(file) as stream:
            stream.seek(span.start)
            yield Window(stream, file.path, span.end - span.start)
    else:
        yield from _packed(file, span)


_KEPT: dict[str, tuple[int, Any, contextlib.ExitStack]] = {}
"""Where this process stands in the compressed file that it has read a piece of last: place, stream, what closes it."""


def _packed(file: SourceFile, span: Span) -> Iterator[Window]:
    at, stream, opened = _KEPT.pop(file.path, (0, None, contextlib.ExitStack()))
    try:
        if stream is None or at > span.start:
            opened.close()
            at, stream = 0, opened.enter_context(_stream(file))
        while at < span.start:
            if not (skipped := stream.read(min(_BLOCK, span.start - at))):
                raise _changed(file.path)
            at += len(skipped)
        piece = Window(stream, file.path, span.end - span.start)
        yield piece
    except BaseException:
        opened.close()
        raise
    if piece.left:
        opened.close()
        return
    while _KEPT:
        _KEPT.popitem()[1][2].close()
    _KEPT[file.path] = (span.end, stream, opened)


@contextlib.contextmanager
def _stream(file: SourceFile) -> Iterator[Any]:
    with contextlib.ExitStack() as opened:
        raw = opened.enter_context(pa.OSFile(file.local()))
        yield opened.enter_context(pa.CompressedInputStream(raw, file.codec)) if file.codec else raw


def _changed(path: str) -> InputError:
    return InputError(f"{path} has become shorter while it was read", "run again once nobody writes to it any more")
