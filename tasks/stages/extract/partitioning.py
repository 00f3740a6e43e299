"""Partitioning of the input into parts, and reading of pieces of large files.

Reads sizes and bytes of the units of `sources`. The parts are a function of the inputs and the settings, not of the
workers. A file of rows that is too large for one part is split into pieces. Parts are sequences of consecutive units
with about equal weights.

Parquet files are split between row groups, JSON files at the ends of lines or values. Plain UTF-8 can be read from any
offset. Compressed files and files in UTF-16 can only be read from the beginning, so a process keeps the stream of its
last piece open: the next piece continues there, and any other piece skips the bytes before it.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from tasks.core import parquet
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.formats.documents.external_files import SourceFile, other_kind
from tasks.formats.documents.json_rows import BLOCK, Form, JsonText, detect_form, open_text, value_ends
from tasks.stages.extract.config import ExtractConfig
from tasks.stages.extract.sources import PARQUET_KINDS, ROW_KINDS, FilePiece, InputUnit

_HEAD = 512
MIN_PARTS = 8
PIECES = 4
"""Pieces per part of a large file, so that parts can be filled evenly."""
RUNS = 20
"""Maximum number of runs (groups of parts) of a compressed file. A run first skips the bytes before it, half the file
on average. Reading rows takes about ten times as long as skipping them, so the total time at most doubles."""


def divide(units: Sequence[InputUnit], config: ExtractConfig, engine: Engine) -> list[InputUnit]:
    """Returns the units with each file of rows that is larger than a part split into several units.

    Raises:
        InputError: such a file cannot be read.
    """
    share = max(1, sum(unit.weight for unit in units) // _part_count(units, config))
    large = [number for number, unit in enumerate(units) if unit.source.kind in ROW_KINDS and unit.weight > share]
    results = engine.map(partial(_split, max(1, share // PIECES)), [units[number] for number in large])
    pieces = {large[index]: split for index, split in results}
    return [piece for number, unit in enumerate(units) for piece in pieces.get(number, [unit])]


def _split(size: int, unit: InputUnit) -> list[InputUnit]:
    """Splits a file of rows into pieces of about `size` bytes; an empty file is returned unchanged."""
    with explain_read_errors(unit):
        return [replace(unit, piece=piece) for piece in cut(unit.file, unit.source.kind, size)] or [unit]


def _part_count(units: Sequence[InputUnit], config: ExtractConfig) -> int:
    total = sum(unit.weight for unit in units)
    return config.parts or max(-(-total // config.part_bytes), min(len(units), MIN_PARTS))


def arrange(units: Sequence[InputUnit], config: ExtractConfig) -> list[list[InputUnit]]:
    """Groups consecutive units into parts, none of which is empty.

    The middle of a unit determines its part, so a unit larger than a part has one to itself.
    """
    total, count = sum(unit.weight for unit in units), _part_count(units, config)
    groups: dict[int, list[InputUnit]] = {}
    before = 0
    for unit in units:
        middle = before + unit.weight / 2
        groups.setdefault(min(count - 1, int(middle * count / total)), []).append(unit)
        before += unit.weight
    return [_joined(groups[index]) for index in sorted(groups)]


def _joined(units: Sequence[InputUnit]) -> list[InputUnit]:
    """Returns units, with adjacent pieces of one file joined."""
    joined: list[InputUnit] = []
    for unit in units:
        last = joined[-1] if joined else None
        if last and last.piece and unit.piece and (last.file.path, last.source) == (unit.file.path, unit.source):
            weight = last.piece.weight + unit.piece.weight
            joined[-1] = replace(last, piece=replace(last.piece, end=unit.piece.end, weight=weight))
        else:
            joined.append(unit)
    return joined


def run_names(parts: Sequence[Sequence[InputUnit]]) -> list[str]:
    """Returns for each part the name of its run, or "" for a part that does not depend on others.

    The parts of one run are processed in order, so that their compressed file is decompressed once for all of them.
    """
    streams = [next(filter(None, (unit.stream for unit in units)), "") for units in parts]
    names, counts = [], dict.fromkeys(streams, 0)
    for stream in streams:
        parts_per_run = -(-streams.count(stream) // RUNS)
        names.append(f"{stream} {counts[stream] // parts_per_run}" if stream else "")
        counts[stream] += 1
    return names


def cut(file: SourceFile, kind: str, size: int) -> list[FilePiece]:
    """Returns the pieces of a file, none of which is empty.

    Args:
        file: a file of a source.
        kind: kind of the file, one of ROW_KINDS.
        size: uncompressed bytes of a piece; it ends with the first row group or JSON row that reaches this size.

    Raises:
        OSError, pa.ArrowException: the file cannot be read.
        InputError: the file is of another kind.
    """
    if kind in PARQUET_KINDS:
        return list(_row_groups(file, size))
    form = detect_form(file.local(), file.name)
    with open_text(file.local(), form) as text:
        return list((_lines if form.lines else _values)(text, size, not form.plain))


def _row_groups(file: SourceFile, size: int) -> Iterator[FilePiece]:
    metadata = parquet.metadata(file.local())
    first = start = rows = weight = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        rows, weight = rows + group.num_rows, weight + group.total_byte_size
        if weight >= size or number == metadata.num_row_groups - 1:
            yield FilePiece(first, start, number + 1, weight)
            first, start, weight = rows, number + 1, 0


def _lines(text: JsonText, size: int, streamed: bool) -> Iterator[FilePiece]:
    first = start = lines = at = 0
    while block := text.read(BLOCK):
        consumed = 0
        while (end := block.find(b"\n", max(consumed, start + size - at - 1)) + 1) > 0:
            lines += block.count(b"\n", consumed, end)
            yield FilePiece(first, start, at + end, at + end - start, streamed)
            first, start, consumed = lines, at + end, end
        lines += block.count(b"\n", consumed)
        at += len(block)
    if at > start:
        yield FilePiece(first, start, at, at - start, streamed)


def _values(text: JsonText, size: int, streamed: bool) -> Iterator[FilePiece]:
    first = start = end = 0
    number = 0
    for number, (end, _) in enumerate(value_ends(text, 0), start=1):
        if end - start >= size:
            yield FilePiece(first, start, end, end - start, streamed)
            first, start = number, end
    if end > start:
        yield FilePiece(first, start, end, end - start, streamed)


@contextlib.contextmanager
def explain_read_errors(unit: InputUnit) -> Iterator[None]:
    """Converts errors while a file is read to an InputError with file and source."""
    file, source = unit.file, unit.source
    try:
        yield
    except FileNotFoundError as error:
        cause = f'{file.path} of the file source "{source.name}" is gone'
        what = "name a version of the table that was not vacuumed" if source.table() else "bring it back"
        raise InputError(cause, what) from error
    except (OSError, EOFError, pa.ArrowException) as error:
        detected, remedy = _other_kind(file) or ("", "repair it, or exclude it")
        cause = f"{error}; it is {detected}" if detected else str(error)
        raise InputError(f'{file.path} of the file source "{source.name}" cannot be read ({cause})', remedy) from error


def _other_kind(file: SourceFile) -> tuple[str, str] | None:
    with contextlib.suppress(OSError), open(file.local(), "rb") as raw:
        return other_kind(raw.read(_HEAD))
    return None


class PieceReader:
    """Reads the bytes of a piece sequentially.

    Attributes:
        form: encoding and layout of the file.
        remaining: number of bytes that are not read yet; None if the piece is the whole file.
    """

    def __init__(self, text: JsonText, form: Form, path: str, remaining: int | None) -> None:
        self._text = text
        self._path = path
        self.form = form
        self.remaining = remaining

    def read(self, size: int) -> bytes:
        """Returns the next bytes, at most `size`; b"" at the end."""
        count = size if self.remaining is None else min(size, self.remaining)
        data = self._text.read(count) if count else b""
        if self.remaining is not None:
            if count and not data:
                raise _truncated(self._path)
            self.remaining -= len(data)
        return data


@contextlib.contextmanager
def open_piece(unit: InputUnit) -> Iterator[PieceReader]:
    """Yields a reader of a JSON file, or of a piece of one; the text is UTF-8.

    Raises:
        OSError: the file cannot be read.
        InputError: the file has changed since it was split, or is of another kind.
    """
    file, piece = unit.file, unit.piece
    if piece is not None and piece.streamed:
        yield from _resume_stream(file, piece)
        return
    form = detect_form(file.local(), file.name)
    with open_text(file.local(), form) as text:
        if piece is not None:
            text.seek(piece.start)
        yield PieceReader(text, form, file.path, None if piece is None else piece.end - piece.start)


class _OpenStream(NamedTuple):
    position: int
    text: JsonText
    form: Form
    files: contextlib.ExitStack


_OPEN_STREAMS: dict[str, _OpenStream] = {}
"""The open stream of the compressed file from which this process has last read a piece; at most one entry."""


def _resume_stream(file: SourceFile, piece: FilePiece) -> Iterator[PieceReader]:
    stream = _OPEN_STREAMS.pop(file.path, None)
    if stream and stream.position > piece.start:
        stream.files.close()
        stream = None
    position, text, form, files = stream or _open_stream(file)
    try:
        while position < piece.start:
            if not (skipped := text.read(min(BLOCK, piece.start - position))):
                raise _truncated(file.path)
            position += len(skipped)
        reader = PieceReader(text, form, file.path, piece.end - piece.start)
        yield reader
    except BaseException:
        files.close()
        raise
    if reader.remaining:
        files.close()
        return
    while _OPEN_STREAMS:
        _OPEN_STREAMS.popitem()[1].files.close()
    _OPEN_STREAMS[file.path] = _OpenStream(piece.end, text, form, files)


def _open_stream(file: SourceFile) -> _OpenStream:
    form, files = detect_form(file.local(), file.name), contextlib.ExitStack()
    return _OpenStream(0, files.enter_context(open_text(file.local(), form)), form, files)


def _truncated(path: str) -> InputError:
    return InputError(f"{path} became shorter while it was read", "run again when no other process writes to it")
