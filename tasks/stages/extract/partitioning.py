"""Partitioning of the input into parts, and reading of pieces of large files.

Reads names, sizes and bytes of external files. The parts are a function of the inputs and the settings, not of the
workers. A unit is one WARC file, one file of a source, or a piece of a file of rows that is too large for one part.
Parts are sequences of consecutive units with about equal weights.

Parquet files are split between row groups, JSON files at the ends of lines or values. Plain UTF-8 can be read from any
offset. Compressed files and files in UTF-16 can only be read from the beginning, so a process keeps the stream of its
last piece open: the next piece continues there, and any other piece skips the bytes before it.
"""

import contextlib
import fnmatch
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from tasks.core import parquet
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.formats.documents.external_files import SourceFile, find, other_kind
from tasks.formats.documents.json_rows import BLOCK, Form, JsonText, detect_form, open_text, value_ends
from tasks.formats.documents.text import hash64
from tasks.formats.lakes import FORMATS
from tasks.stages.extract.config import PLACEHOLDERS, ExtractConfig, FileSource

_HEAD = 512
PARQUET_KINDS = ("parquet", *FORMATS)
ROW_KINDS = ("jsonl", *PARQUET_KINDS)
"""Kinds of sources whose files hold one document per row."""

# Compressed pages decompress to about four times their size, and extraction takes longer than reading text.
PACKED_WEIGHT = 4
MIN_PARTS = 8
PIECES = 4
"""Pieces per part of a large file, so that parts can be filled evenly."""
RUNS = 20
"""Maximum number of runs (groups of parts) of a compressed file. A run first skips the bytes before it, half the file
on average. Reading rows takes about ten times as long as skipping them, so the total time at most doubles."""


def find_files(source: FileSource) -> list[SourceFile]:
    """Returns the files of a source in name order; of a table, those of its snapshot.

    Raises:
        InputError: the pattern matches no file, all files are excluded, or the table cannot be read.
        StoreError, TransientError: the object store of the pattern cannot be used, or does not respond.
    """
    return select_files(source)[0]


def select_files(source: FileSource, identity: str = "") -> tuple[list[SourceFile], list[str]]:
    """Returns the files of a source in name order, and the globs of `exclude` that match none; see `find_files`.

    Args:
        source: the source.
        identity: the snapshot of its table; "" for the one that the settings name.
    """
    if table := source.table():
        files: list[SourceFile] = [*table.snapshot(identity or table.current()).files]
    else:
        pattern = source.path
        for placeholder, name in PLACEHOLDERS.items():
            pattern = pattern.replace(placeholder, sysconfig.get_path(name))
        files = find(pattern, f'the file source "{source.name}"')
    matches = {glob: {file.name for file in files if fnmatch.fnmatch(file.name, glob)} for glob in source.exclude}
    excluded = set[str]().union(*matches.values())
    included = [file for file in files if file.name not in excluded]
    if not included:
        raise InputError(f'the file source "{source.name}" excludes all {len(files)} files', "correct its exclude")
    unmatched = [glob for glob, names in matches.items() if not names]
    return sorted(_sample(included, source), key=lambda file: file.name), unmatched


def _sample(files: list[SourceFile], source: FileSource) -> list[SourceFile]:
    if source.max_files is None and source.max_bytes is None:
        return files
    # By hash of the name: a sample of the whole tree, the same on every machine.
    ordered = sorted(files, key=lambda file: (hash64(file.name), file.name))[: source.max_files]
    sample, total = [], 0
    for file in ordered:
        total += file.bytes
        if source.max_bytes is not None and total > source.max_bytes:
            break
        sample.append(file)
    return sample or ordered[:1]


@dataclass(frozen=True)
class FilePiece:
    """A piece of a file of rows.

    Attributes:
        first: number of its first row in the file, from 0; for JSON lines the line number.
        start: first byte of the text in UTF-8, or first row group.
        end: end of the piece, exclusive, in the unit of `start`.
        weight: uncompressed size in bytes.
        streamed: whether the bytes before the piece must be read first.
    """

    first: int
    start: int
    end: int
    weight: int
    streamed: bool = False

    def joined(self, following: "FilePiece") -> "FilePiece":
        """Returns this piece and the following one as one piece."""
        return FilePiece(self.first, self.start, following.end, self.weight + following.weight, self.streamed)


@dataclass(frozen=True)
class InputUnit:
    """One input file, or a piece of it.

    Attributes:
        file: the file; a file of the crawl is in the store at `file.path`.
        source: source of the file; None for a file of the crawl.
        records: number of captures in a file of the crawl.
        index: path of its CDXJ index, or "".
        piece: the piece of the file; None for the whole file.
    """

    file: SourceFile
    source: FileSource | None = None
    records: int = 0
    index: str = ""
    piece: FilePiece | None = None

    @property
    def weight(self) -> int:
        """Input bytes as counted for `ExtractConfig.part_bytes`; at least 1."""
        if self.piece is not None:
            return max(1, self.piece.weight)
        packed = self.source is None or self.source.kind in ("warc", *PARQUET_KINDS) or self.file.is_packed
        return max(1, self.file.bytes * (PACKED_WEIGHT if packed else 1))

    @property
    def stream(self) -> str:
        """Path of the file if the unit is a piece whose preceding bytes must be read first, otherwise ""."""
        return self.file.path if self.piece is not None and self.piece.streamed else ""


def divide(units: Sequence[InputUnit], config: ExtractConfig, engine: Engine) -> list[InputUnit]:
    """Returns the units with each file of rows that is larger than a part split into several units.

    Raises:
        InputError: such a file cannot be read.
    """
    share = max(1, sum(unit.weight for unit in units) // _part_count(units, config))
    large = [number for number, unit in enumerate(units) if _is_rows(unit) and unit.weight > share]
    results = engine.map(partial(_split, max(1, share // PIECES)), [units[number] for number in large])
    pieces = {large[index]: split for index, split in results}
    return [piece for number, unit in enumerate(units) for piece in pieces.get(number, [unit])]


def _is_rows(unit: InputUnit) -> bool:
    return unit.source is not None and unit.source.kind in ROW_KINDS


def _split(size: int, unit: InputUnit) -> list[InputUnit]:
    """Splits a file of rows into pieces of about `size` bytes; an empty file is returned unchanged."""
    assert unit.source is not None
    with explain_read_errors(unit.file, unit.source):
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
    return [list(_joined(groups[index])) for index in sorted(groups)]


def _joined(units: Sequence[InputUnit]) -> Iterator[InputUnit]:
    """Yields units, with adjacent pieces of one file joined."""
    current: InputUnit | None = None
    for unit in units:
        if (
            current
            and current.piece
            and unit.piece
            and unit.file.path == current.file.path
            and unit.source == current.source
        ):
            current = replace(current, piece=current.piece.joined(unit.piece))
            continue
        if current:
            yield current
        current = unit
    if current:
        yield current


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
def explain_read_errors(file: SourceFile, source: FileSource) -> Iterator[None]:
    """Converts errors while a file is read to an InputError with file and source."""
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
def open_piece(file: SourceFile, piece: FilePiece | None) -> Iterator[PieceReader]:
    """Yields a reader of a piece of a JSON file, or of the whole file for None; the text is UTF-8.

    Raises:
        OSError: the file cannot be read.
        InputError: the file has changed since it was split, or is of another kind.
    """
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
