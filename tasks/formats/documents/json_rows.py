"""Rows of JSON files: one value per line, or the values of an array or of values written one after the other.

Reads local files, compressed or not (`external_files`), in UTF-8, UTF-16 or UTF-32, in bounded memory. The form of a
file is detected from its first bytes, so its rows do not depend on its name.

Values that are not one per line are split without parsing them. An object ends where its brackets close. Any other text
between objects, except brackets, commas and white space, is a row that is not valid JSON. A line break inside a string,
which JSON does not allow, ends the object. A text that ends inside an object is an error, because the number of its
rows is unknown.
"""

import codecs
import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from tasks.core.errors import InputError
from tasks.formats.documents.external_files import SourceFile, open_streams, other_kind, packing_of, zip_errors

BLOCK = 1 << 20
_FIRST = 512
_HEAD = 1 << 16
_ENDINGS = re.compile(r"\.(?:jsonl?|ndjson)(?:\.(?:gz|zst|bz2))?$", re.I)
_BETWEEN = re.compile(rb"[^\s,\[\]]")
_WORD = re.compile(rb"[^\s,\[\]{]++")
_STRUCTURE = re.compile(rb"[\"{}\[\]]")
_STRING = re.compile(rb'[^"\\\n]*+(?:\\[^\n][^"\\\n]*+)*+')
_QUOTE, _ESCAPE, _OBJECT, _LINE = b'"\\{\n'


class Readable(Protocol):
    """A source of bytes."""

    def read(self, size: int, /) -> bytes:
        """Returns the next bytes, at most `size`; b"" at the end."""


@dataclass(frozen=True)
class Form:
    """How a file stores its rows.

    Attributes:
        packing: see `tasks.formats.documents.external_files.packing_of`.
        lines: whether each line is a row; otherwise each value is one.
        plain: whether the file is read without decompressing or decoding, so that reading can start at any byte.
    """

    packing: str | None
    lines: bool
    plain: bool


def detect_form(path: str, name: str) -> Form:
    """Returns the form of a local file from its first bytes.

    Raises:
        OSError: the file cannot be unpacked.
        InputError: the file is of another format.
    """
    packing = packing_of(path, name)
    lines = plain = True
    with open_streams(path, packing, _ENDINGS) as streams:
        for stream in streams:
            text = JsonText(iter([stream]))
            head = text.head()
            if other := other_kind(text.begins):
                raise InputError(f"{path} holds no JSON: it is {other[0]}", other[1])
            lines = lines and _are_lines(head.decode("utf-8", "replace"))
            plain = plain and text.plain
    return Form(packing, lines, packing is None and plain)


def _are_lines(head: str) -> bool:
    """Returns whether the first value, complete or cut off at the end of `head`, is alone on its line."""
    head = head.lstrip()
    try:
        value, end = json.JSONDecoder().raw_decode(head)
    except json.JSONDecodeError as error:
        cut_off = error.pos >= len(head.rstrip()) or error.msg.startswith("Unterminated string")
        return not cut_off or not head.startswith(("{", "[")) or (head[0] == "{" and "\n" not in head[: error.pos])
    except (ValueError, RecursionError):
        return True
    rest = head[end:].lstrip(" \t\r")
    return not isinstance(value, list) and "\n" not in head[:end] and (not rest or rest[0] == "\n")


@contextlib.contextmanager
def open_text(path: str, form: Form) -> Iterator["JsonText"]:
    """Opens a local file and yields its text; a damaged file raises OSError here or while it is read."""
    with open_streams(path, form.packing, _ENDINGS) as streams:
        yield JsonText(streams)


class JsonText:
    """Sequential reader of a file's text in UTF-8: its streams one after another, separated by line breaks.

    Attributes:
        begins: the first bytes of the current stream, not decoded.
        plain: whether the current stream is returned without decoding.
    """

    def __init__(self, streams: Iterator[Any]) -> None:
        self._streams = streams
        self._stream: Any = None
        self._decoder: codecs.IncrementalDecoder | None = None
        self._held = b""
        self._ends_line = True
        self.begins = b""
        self.plain = True

    def head(self) -> bytes:
        """Returns the beginning of the text without consuming it."""
        head = b""
        while len(head) < _HEAD and (data := self.read(_HEAD)):
            head += data
        self._held = head + self._held
        return head[:_HEAD]

    def seek(self, offset: int) -> None:
        """Moves to a byte offset of a plain file."""
        if offset:
            self._stream, self._held = next(self._streams), b""
            self._stream.seek(offset)

    def read(self, size: int) -> bytes:
        """Returns the next bytes, at most `size`; b"" at the end."""
        while not self._held:
            if self._stream is not None:
                self._fill(max(size, _HEAD))
            elif not self._next():
                return b""
        data, self._held = self._held[:size], self._held[size:]
        return data

    def _next(self) -> bool:
        """Opens the next stream; returns whether there is one."""
        with zip_errors():
            self._stream = next(self._streams, None)
            if self._stream is None:
                return False
            head = self._stream.read(_FIRST)
        self.begins = head
        encoding = json.detect_encoding(head[:4])
        self.plain = encoding in ("utf-8", "utf-8-sig")
        self._decoder = None if self.plain else codecs.getincrementaldecoder(encoding)("replace")
        between = b"" if self._ends_line else b"\n"
        # Spaces replace a byte order mark, so that byte offsets do not change.
        self._hold(between + self._decoded(head.removeprefix(codecs.BOM_UTF8).rjust(len(head))))
        return True

    def _fill(self, size: int) -> None:
        with zip_errors():
            data = self._stream.read(size)
        self._hold(self._decoded(data))
        if not data:
            self._stream = None

    def _hold(self, data: bytes) -> None:
        self._held = data
        self._ends_line = data.endswith(b"\n") if data else self._ends_line

    def _decoded(self, data: bytes) -> bytes:
        if self._decoder is None:
            return data
        return self._decoder.decode(data, final=not data).encode("utf-8", "replace")


def parsed_rows(file: SourceFile) -> Iterator[tuple[int, Any]]:
    """Yields the 1-based number and the content of each non-blank line of a file, or of each value if rows span lines.

    Raises:
        InputError: the file cannot be read or is of another format, or a row is not JSON.
    """
    with file.readable():
        form = detect_form(file.local(), file.name)
        with open_text(file.local(), form) as text:
            for number, row in enumerate(rows(text, form, None), start=1):
                if row and row.strip():
                    yield number, _parsed(row, f"{file.path}, {'line' if form.lines else 'value'} {number}")


def _parsed(row: bytes, where: str) -> Any:
    try:
        return json.loads(row)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not JSON ({error})", "fix it or remove it") from None


def rows(text: Readable, form: Form, limit: int | None) -> Iterator[bytes | None]:
    """Yields the rows of a text unparsed, including blank lines; None for a row that exceeds the limit.

    Args:
        text: the text to split.
        form: the form of its file.
        limit: maximum bytes per row, None for no limit. Longer rows are not held in memory.
    """
    ends = line_ends if form.lines else value_ends
    return (data for _, data in ends(text, limit))


def line_ends(text: Readable, limit: int | None) -> Iterator[tuple[int, bytes | None]]:
    """Yields for each line the offset after it, and the line without its line break, or None if it exceeds `limit`."""
    row = _RowBuffer(limit)
    at = 0
    while block := text.read(BLOCK):
        begin = 0
        while (end := block.find(b"\n", begin)) >= 0:
            yield at + end + 1, row.with_end(block[begin:end])
            begin = end + 1
        row.add(block[begin:])
        at += len(block)
    if row.size:
        yield at, row.with_end(b"")


def value_ends(text: Readable, limit: int | None) -> Iterator[tuple[int, bytes | None]]:
    """Like `line_ends`, for the values of a text; raises OSError if the text ends inside an object."""
    row, scanner = _RowBuffer(limit), _ValueScanner()
    at = begun = 0
    while block := text.read(BLOCK):
        begin = 0
        while True:
            if not scanner.inside:
                if (start := _BETWEEN.search(block, begin)) is None:
                    break
                begin = start.start()
                begun = at + begin
            end = scanner.end(block, begin)
            if end < 0:
                row.add(block[begin:])
                break
            yield at + end, row.with_end(block[begin:end])
            begin = end
        at += len(block)
    if scanner.inside_object:
        raise OSError(f"it ends inside the object that begins at byte {begun}, unpacked")
    if row.size:
        yield at, row.with_end(b"")


class _RowBuffer:
    """Buffer for a row that continues in the next block."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self.size = 0

    def add(self, data: bytes) -> None:
        self.size += len(data)
        if self._limit is None or self.size <= self._limit:
            self._parts.append(data)
        else:
            self._parts.clear()

    def with_end(self, data: bytes) -> bytes | None:
        """Returns the whole row, or None if it exceeds the limit, and clears the buffer."""
        parts, size = self._parts, self.size + len(data)
        self._parts, self.size = [], 0
        return b"".join([*parts, data]) if self._limit is None or size <= self._limit else None


class _ValueScanner:
    """Finds the ends of values.

    Attributes:
        inside: whether the last block ended inside a value.
        inside_object: whether that value is an object.
    """

    def __init__(self) -> None:
        self.inside = self.inside_object = self._in_string = self._escaped = False
        self._depth = 0

    def end(self, block: bytes, begin: int) -> int:
        """Returns the end of the value that starts or continues at `begin`, or -1 if it continues after the block."""
        if not self.inside:
            self.inside_object = block[begin] == _OBJECT
        end = self._object_end(block, begin) if self.inside_object else self._word_end(block, begin)
        self.inside = end < 0
        self.inside_object &= self.inside
        return end

    def _word_end(self, block: bytes, offset: int) -> int:
        word = _WORD.match(block, offset)
        end = word.end() if word else offset
        return end if end < len(block) else -1

    def _object_end(self, block: bytes, offset: int) -> int:
        while offset < len(block):
            if self._escaped:
                offset, self._escaped = offset + (block[offset] != _LINE), False
            elif self._in_string:
                offset = self._string_end(block, offset)
                if self._depth == 0:
                    return offset
            elif (match := _STRUCTURE.search(block, offset)) is None:
                return -1
            else:
                offset, char = match.end(), match[0]
                self._in_string = char == b'"'
                self._depth += (char in b"{[") - (char in b"}]")
                if self._depth == 0:
                    return offset
        return -1

    def _string_end(self, block: bytes, offset: int) -> int:
        """Returns the offset after a string, or after an escape at the end of the block.

        A line break in the string ends the value.
        """
        string = _STRING.match(block, offset)
        offset = string.end() if string else offset
        if offset < len(block):
            if block[offset] == _ESCAPE and offset + 1 == len(block):
                self._escaped = True
            elif block[offset] == _QUOTE:
                self._in_string = False
            else:  # a line break: the string is invalid, and the end of its object is unknown
                self._in_string, self._depth = False, 0
                return offset
            offset += 1
        return offset
