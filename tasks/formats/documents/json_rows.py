"""Rows of JSON files: one value per line, or the values of an array or of values written one after the other.

Reads local files, however packed (`external_files`), in UTF-8, UTF-16 or UTF-32, in bounded memory. What a file is, its
first bytes say, so the same file has the same rows whatever it is called.

Values that are not one per line are split without parsing them: an object ends where its brackets are closed, and what
stands between objects, brackets, commas and white space left out, is a row that is no JSON. A string with a line break,
which no string of JSON may have, ends the object in it. A text that ends inside an object is an error: nobody knows how
many rows it would have had.
"""

import codecs
import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from tasks.core.errors import InputError
from tasks.formats.documents.external_files import SourceFile, explained, other_kind, packing_of, unpacked

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
    """What rows are read from."""

    def read(self, size: int, /) -> bytes:
        """Returns the next bytes, at most `size`; b"" at the end."""


@dataclass(frozen=True)
class Form:
    """How the rows of a file stand in it.

    Attributes:
        packing: see `tasks.formats.documents.external_files.packing_of`.
        lines: whether each line is a row; else rows are the objects of its values.
        plain: whether its bytes are those that are read, so that reading can begin anywhere.
    """

    packing: str | None
    lines: bool
    plain: bool


def form_of(path: str, name: str) -> Form:
    """Returns the form of a local file by its beginning.

    Raises:
        OSError: it cannot be unpacked.
        InputError: it holds something else.
    """
    packing = packing_of(path, name)
    lines = plain = True
    with unpacked(path, packing, _ENDINGS) as streams:
        for stream in streams:
            text = Text(iter([stream]))
            head = text.head()
            if found := other_kind(text.begins):
                raise InputError(f"{path} holds no JSON: it is {found[0]}", found[1])
            lines = lines and _are_lines(head.decode("utf-8", "replace"))
            plain = plain and text.plain
    return Form(packing, lines, packing is None and plain)


def _are_lines(head: str) -> bool:
    """Returns whether the first value, whole or cut off at the end of `head`, has a line for itself."""
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
def text_of(path: str, form: Form) -> Iterator["Text"]:
    """Opens a local file; yields its text in UTF-8. Raises OSError, also while it is read, where it is damaged."""
    with unpacked(path, form.packing, _ENDINGS) as streams:
        yield Text(streams)


class Text:
    """The text of a file in UTF-8, read forward: its streams one after the other, each ended by a line break.

    Attributes:
        begins: the first bytes of the stream that is read, as they are.
        plain: whether its bytes are given as they are.
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
        """Returns the beginning of the text, which is read again."""
        found = b""
        while len(found) < _HEAD and (data := self.read(_HEAD)):
            found += data
        self._held = found + self._held
        return found[:_HEAD]

    def seek(self, place: int) -> None:
        """Goes to a byte of a file that is plain."""
        if place:
            self._stream, self._held = next(self._streams), b""
            self._stream.seek(place)

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
        with explained():
            self._stream = next(self._streams, None)
            if self._stream is None:
                return False
            head = self._stream.read(_FIRST)
        self.begins = head
        encoding = json.detect_encoding(head[:4])
        self.plain = encoding in ("utf-8", "utf-8-sig")
        self._decoder = None if self.plain else codecs.getincrementaldecoder(encoding)("replace")
        between = b"" if self._ends_line else b"\n"
        # Spaces in the place of a byte order mark, so that all bytes stay where they are.
        self._hold(between + self._decoded(head.removeprefix(codecs.BOM_UTF8).rjust(len(head))))
        return True

    def _fill(self, size: int) -> None:
        with explained():
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
    """Yields number (from 1) and content of each non-blank line of a file, or of each value where lines are not values.

    Raises:
        InputError: it cannot be read, holds something else, or a row of it is no JSON.
    """
    with file.readable():
        form = form_of(file.local(), file.name)
        with text_of(file.local(), form) as text:
            for number, row in enumerate(rows(text, form, None), start=1):
                if row and row.strip():
                    yield number, _parsed(row, f"{file.path}, {'line' if form.lines else 'value'} {number}")


def _parsed(row: Any, place: str) -> Any:
    try:
        return json.loads(row)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: not JSON ({error})", "mend it or leave it out") from None


def rows(text: Readable, form: Form, limit: int | None) -> Iterator[bytes | None]:
    """Yields the rows of a text as they are written, blank lines too; None for one longer than `limit`, not held.

    Args:
        text: what is read.
        form: of the file that it is of.
        limit: bytes of a row at most; None for no limit.
    """
    ends = line_ends if form.lines else value_ends
    return (data for _, data in ends(text, limit))


def line_ends(text: Readable, limit: int | None) -> Iterator[tuple[int, bytes | None]]:
    """Yields for each line the byte behind its end and, if it is not longer than `limit`, itself without its end."""
    held = _Held(limit)
    at = 0
    while block := text.read(BLOCK):
        begin = 0
        while (end := block.find(b"\n", begin)) >= 0:
            yield at + end + 1, held.with_end(block[begin:end])
            begin = end + 1
        held.add(block[begin:])
        at += len(block)
    if held.size:
        yield at, held.with_end(b"")


def value_ends(text: Readable, limit: int | None) -> Iterator[tuple[int, bytes | None]]:
    """Yields as `line_ends` does, for the values of a text, see the module; raises OSError where it ends in one."""
    held, scan = _Held(limit), _Scan()
    at = begun = 0
    while block := text.read(BLOCK):
        begin = 0
        while True:
            if not scan.inside:
                if (found := _BETWEEN.search(block, begin)) is None:
                    break
                begin = found.start()
                begun = at + begin
            end = scan.end(block, begin)
            if end < 0:
                held.add(block[begin:])
                break
            yield at + end, held.with_end(block[begin:end])
            begin = end
        at += len(block)
    if scan.inside_object:
        raise OSError(f"it ends inside the object that begins at byte {begun}, unpacked")
    if held.size:
        yield at, held.with_end(b"")


class _Held:
    """The beginning of a row that goes on in the next block."""

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
        """Returns the whole row, None if it is too long, and forgets it."""
        parts, size = self._parts, self.size + len(data)
        self._parts, self.size = [], 0
        return b"".join([*parts, data]) if self._limit is None or size <= self._limit else None


class _Scan:
    """Finds the ends of values; `inside` is whether the last block ended in one, `inside_object` in an object."""

    def __init__(self) -> None:
        self.inside = self.inside_object = self._text = self._escaped = False
        self._depth = 0

    def end(self, block: bytes, begin: int) -> int:
        """Returns where the value ends that begins or goes on at `begin`, or -1 if it goes on behind the block."""
        if not self.inside:
            self.inside_object = block[begin] == _OBJECT
        end = self._object_end(block, begin) if self.inside_object else self._word_end(block, begin)
        self.inside = end < 0
        self.inside_object &= self.inside
        return end

    def _word_end(self, block: bytes, place: int) -> int:
        found = _WORD.match(block, place)
        end = found.end() if found else place
        return end if end < len(block) else -1

    def _object_end(self, block: bytes, place: int) -> int:
        while place < len(block):
            if self._escaped:
                place, self._escaped = place + (block[place] != _LINE), False
            elif self._text:
                place = self._behind_string(block, place)
                if self._depth == 0:
                    return place
            elif (found := _STRUCTURE.search(block, place)) is None:
                return -1
            else:
                place, char = found.end(), found[0]
                self._text = char == b'"'
                self._depth += (char in b"{[") - (char in b"}]")
                if self._depth == 0:
                    return place
        return -1

    def _behind_string(self, block: bytes, place: int) -> int:
        """Returns the place behind a string, or behind an escape at the end of the block; ends the value if need be."""
        found = _STRING.match(block, place)
        place = found.end() if found else place
        if place < len(block):
            if block[place] == _ESCAPE and place + 1 == len(block):
                self._escaped = True
            elif block[place] == _QUOTE:
                self._text = False
            else:  # a line break: the string is none, and where its object ends nobody knows
                self._text, self._depth = False, 0
                return place
            place += 1
        return place
