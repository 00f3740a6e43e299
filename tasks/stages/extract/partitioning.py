"""Division of the input into parts, and reading of the pieces that it makes of large files.

Reads the names, sizes and bytes of external files. The parts are a function of the inputs and the settings, not of the
workers. A unit is one WARC file, one file of a source, or a piece of a file of rows that is too large for one part.
Parts are sequences of whole consecutive units of about equal weight.

A Parquet file is cut between row groups, JSON at the ends of lines or of values. Plain UTF-8 can be read from any
offset. Packed files, and those in UTF-16, can be read only from the beginning, so a process keeps the stream of its
last piece: the next piece continues there, and any other one skips the bytes before it.
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
from tasks.stages.extract.config import PLACEHOLDERS, ExtractConfig, FileSource

_HEAD = 512
ROW_KINDS = ("jsonl", "parquet")
"""Kinds of sources whose files hold one document per row."""

# Compressed pages unpack to about four times their size, and their extraction costs more than reading a text.
PACKED_WEIGHT = 4
MIN_PARTS = 8
PIECES = 4
"""Pieces per part of a large file, so that parts can be filled evenly."""
RUNS = 20
"""Maximum number of runs of the parts of a compressed file. A run first skips the bytes before it, half the file on
average; reading rows takes about ten times as long as skipping them, so the work at most doubles."""


def find_files(source: FileSource) -> list[SourceFile]:
    """Returns the files of a source in name order.

    Raises:
        InputError: the pattern matches no file, or all of them are excluded.
        StoreError, TransientError: the object store that it names cannot be used, or did not answer.
    """
    pattern = source.path
    for placeholder, name in PLACEHOLDERS.items():
        pattern = pattern.replace(placeholder, sysconfig.get_path(name))
    found = find(pattern, f'the file source "{source.name}"')
    kept = [file for file in found if not any(fnmatch.fnmatch(file.name, glob) for glob in source.exclude)]
    if not kept:
        raise InputError(f'the file source "{source.name}" excludes all {len(found)} files', "correct its exclude")
    return sorted(_sample(kept, source), key=lambda file: file.name)


def _sample(files: list[SourceFile], source: FileSource) -> list[SourceFile]:
    if source.max_files is None and source.max_bytes is None:
        return files
    # By hash of the name: a sample of the whole tree, the same on every machine.
    ordered = sorted(files, key=lambda file: (hash64(file.name), file.name))[: source.max_files]
    taken, total = [], 0
    for file in ordered:
        total += file.bytes
        if source.max_bytes is not None and total > source.max_bytes:
            break
        taken.append(file)
    return taken or ordered[:1]


@dataclass(frozen=True)
class FilePiece:
    """A piece of a file of rows.

    Attributes:
        first: number of its first row in the file; of JSON lines the number of the line, from 0.
        start: where it begins: a byte of the text in UTF-8, or a row group.
        end: where it ends, exclusive.
        weight: its bytes, unpacked.
        streamed: whether it can be reached only by way of what lies before it.
    """

    first: int
    start: int
    end: int
    weight: int
    streamed: bool = False

    def joined(self, following: "FilePiece") -> "FilePiece":
        """Returns this piece and the one behind it as one."""
        return FilePiece(self.first, self.start, following.end, self.weight + following.weight, self.streamed)


@dataclass(frozen=True)
class InputUnit:
    """One input file, or the piece `piece` of it.

    A file of the crawl has no `source`; it is in the store at `file.path` and has `records` captures, listed by the
    file `index` ("" for none).
    """

    file: SourceFile
    source: FileSource | None = None
    records: int = 0
    index: str = ""
    piece: FilePiece | None = None

    @property
    def weight(self) -> int:
        """Input bytes, as `ExtractConfig.part_bytes` counts them; at least 1."""
        if self.piece is not None:
            return max(1, self.piece.weight)
        packed = self.source is None or self.source.kind in ("warc", "parquet") or self.file.is_packed
        return max(1, self.file.bytes * (PACKED_WEIGHT if packed else 1))

    @property
    def stream(self) -> str:
        """Where the unit comes from, if it is a piece that can be reached only by way of what lies before it, or ""."""
        return self.file.path if self.piece is not None and self.piece.streamed else ""


def divide(units: Sequence[InputUnit], config: ExtractConfig, engine: Engine) -> list[InputUnit]:
    """Returns the units with each file of rows that is larger than a part's share as several.

    Raises:
        InputError: such a file cannot be read.
    """
    share = max(1, sum(unit.weight for unit in units) // _part_count(units, config))
    large = [number for number, unit in enumerate(units) if _is_rows(unit) and unit.weight > share]
    cuts = engine.map(partial(_pieces, max(1, share // PIECES)), [units[number] for number in large])
    found = {large[place]: pieces for place, pieces in cuts}
    return [piece for number, unit in enumerate(units) for piece in found.get(number, [unit])]


def _is_rows(unit: InputUnit) -> bool:
    return unit.source is not None and unit.source.kind in ROW_KINDS


def _pieces(size: int, unit: InputUnit) -> list[InputUnit]:
    """Cuts a file of rows; an empty one stays as it is."""
    assert unit.source is not None
    with explain_read_errors(unit.file, unit.source):
        return [replace(unit, piece=piece) for piece in cut(unit.file, unit.source.kind, size)] or [unit]


def _part_count(units: Sequence[InputUnit], config: ExtractConfig) -> int:
    total = sum(unit.weight for unit in units)
    return config.parts or max(-(-total // config.part_bytes), min(len(units), MIN_PARTS))


def arrange(units: Sequence[InputUnit], config: ExtractConfig) -> list[list[InputUnit]]:
    """Cuts `units` into parts, none of them empty.

    The middle of a unit decides where it goes, so a unit larger than a part fills one alone.
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
    """Yields units with neighbouring pieces of one file as one."""
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
    """Returns for each part the name of its run, or "" for one that can be made by itself.

    Parts of one run go through a compressed file one after the other, so that it is unpacked once for all of them.
    """
    streams = [next(filter(None, (unit.stream for unit in units)), "") for units in parts]
    found, seen = [], dict.fromkeys(streams, 0)
    for stream in streams:
        each = -(-streams.count(stream) // RUNS)
        found.append(f"{stream} {seen[stream] // each}" if stream else "")
        seen[stream] += 1
    return found


def cut(file: SourceFile, kind: str, size: int) -> list[FilePiece]:
    """Returns the pieces of a file, each of `size` bytes or a little more, unpacked; none is empty.

    Args:
        file: a file of a source.
        kind: what it holds, one of ROW_KINDS.
        size: a piece ends with the first row group, or row of JSON, that reaches so many bytes.

    Raises:
        OSError, pa.ArrowException: the file cannot be read.
        InputError: it holds something else.
    """
    if kind == "parquet":
        return list(_row_groups(file, size))
    form = detect_form(file.local(), file.name)
    with open_text(file.local(), form) as text:
        return list((_lines if form.lines else _values)(text, size, not form.plain))


def _row_groups(file: SourceFile, size: int) -> Iterator[FilePiece]:
    described = parquet.metadata(file.local())
    first = start = rows = weight = 0
    for number in range(described.num_row_groups):
        group = described.row_group(number)
        rows, weight = rows + group.num_rows, weight + group.total_byte_size
        if weight >= size or number == described.num_row_groups - 1:
            yield FilePiece(first, start, number + 1, weight)
            first, start, weight = rows, number + 1, 0


def _lines(text: JsonText, size: int, streamed: bool) -> Iterator[FilePiece]:
    first = start = lines = at = 0
    while block := text.read(BLOCK):
        behind = 0
        while (end := block.find(b"\n", max(behind, start + size - at - 1)) + 1) > 0:
            lines += block.count(b"\n", behind, end)
            yield FilePiece(first, start, at + end, at + end - start, streamed)
            first, start, behind = lines, at + end, end
        lines += block.count(b"\n", behind)
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
    """Raises InputError with file and source for errors while a file is read."""
    try:
        yield
    except (OSError, EOFError, pa.ArrowException) as error:
        what, remedy = _other_kind(file) or ("", "mend it, or exclude it")
        cause = f"{error}; it is {what}" if what else str(error)
        raise InputError(f'{file.path} of the file source "{source.name}" cannot be read ({cause})', remedy) from error


def _other_kind(file: SourceFile) -> tuple[str, str] | None:
    with contextlib.suppress(OSError), open(file.local(), "rb") as raw:
        return other_kind(raw.read(_HEAD))
    return None


class PieceReader:
    """The bytes of a piece, to be read forward."""

    def __init__(self, text: JsonText, form: Form, path: str, left: int | None) -> None:
        self._text = text
        self._path = path
        self.form = form
        self.left = left
        """How many bytes are left; None where the piece is the whole file."""

    def read(self, size: int) -> bytes:
        """Returns the next bytes, at most `size`; b"" at the end."""
        count = size if self.left is None else min(size, self.left)
        data = self._text.read(count) if count else b""
        if self.left is not None:
            if count and not data:
                raise _changed(self._path)
            self.left -= len(data)
        return data


@contextlib.contextmanager
def open_piece(file: SourceFile, piece: FilePiece | None) -> Iterator[PieceReader]:
    """Yields the text of a piece of a file of JSON, in UTF-8; None for the whole file.

    Raises:
        OSError: the file cannot be read.
        InputError: it is not as it was when it was cut, or holds something else.
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
    at: int
    text: JsonText
    form: Form
    opened: contextlib.ExitStack


_OPEN_STREAMS: dict[str, _OpenStream] = {}
"""Where this process stands in the packed file that it has read a piece of last."""


def _resume_stream(file: SourceFile, piece: FilePiece) -> Iterator[PieceReader]:
    kept = _OPEN_STREAMS.pop(file.path, None)
    if kept and kept.at > piece.start:
        kept.opened.close()
        kept = None
    at, text, form, opened = kept or _open_stream(file)
    try:
        while at < piece.start:
            if not (skipped := text.read(min(BLOCK, piece.start - at))):
                raise _changed(file.path)
            at += len(skipped)
        shown = PieceReader(text, form, file.path, piece.end - piece.start)
        yield shown
    except BaseException:
        opened.close()
        raise
    if shown.left:
        opened.close()
        return
    while _OPEN_STREAMS:
        _OPEN_STREAMS.popitem()[1].opened.close()
    _OPEN_STREAMS[file.path] = _OpenStream(piece.end, text, form, opened)


def _open_stream(file: SourceFile) -> _OpenStream:
    form, opened = detect_form(file.local(), file.name), contextlib.ExitStack()
    return _OpenStream(0, opened.enter_context(open_text(file.local(), form)), form, opened)


def _changed(path: str) -> InputError:
    return InputError(f"{path} has become shorter while it was read", "run again once nobody writes to it any more")
