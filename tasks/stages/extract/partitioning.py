"""Division of the input into parts: a function of the inputs and the settings, not of the workers.

A unit is one WARC file, one file of a source, or a piece of a file of rows that is too large for one part. Parts are
sequences of whole consecutive units of about equal weight.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tasks.core.engine import Engine
from tasks.formats.documents.external_files import SourceFile
from tasks.stages.extract.config import ExtractConfig, FileSource
from tasks.stages.extract.spans import ROW_KINDS, Span, cut, readable

# Compressed pages unpack to about four times their size, and their extraction costs more than reading a text.
PACKED_WEIGHT = 4
MIN_PARTS = 8
PIECES = 4
"""Pieces per part of a large file, so that parts can be filled evenly."""
RUNS = 20
"""Maximum number of runs of the parts of a compressed file. A run first skips the bytes before it, half the file on
average; reading rows takes about ten times as long as skipping them, so the work at most doubles."""


@dataclass(frozen=True)
class Unit:
    """One input file, or the piece `span` of it.

    A file of the crawl has no `source`; it is in the store at `file.path` and has `records` captures, listed by the
    file `index` ("" for none).
    """

    file: SourceFile
    source: FileSource | None = None
    records: int = 0
    index: str = ""
    span: Span | None = None

    @property
    def weight(self) -> int:
        """Input bytes, as `ExtractConfig.part_bytes` counts them; at least 1."""
        if self.span is not None:
            return max(1, self.span.weight)
        packed = self.source is None or self.source.kind in ("warc", "parquet") or self.file.is_packed
        return max(1, self.file.bytes * (PACKED_WEIGHT if packed else 1))

    @property
    def stream(self) -> str:
        """Where the unit comes from, if it is a piece that can be reached only by way of what lies before it, or ""."""
        return self.file.path if self.span is not None and self.span.streamed else ""


def divide(units: Sequence[Unit], config: ExtractConfig, engine: Engine) -> list[Unit]:
    """Returns the units with each file of rows that is larger than a part's share as several.

    Raises:
        InputError: such a file cannot be read.
    """
    share = max(1, sum(unit.weight for unit in units) // _part_count(units, config))
    large = [number for number, unit in enumerate(units) if _is_rows(unit) and unit.weight > share]
    cuts = engine.map(partial(_pieces, max(1, share // PIECES)), [units[number] for number in large])
    found = {large[place]: pieces for place, pieces in cuts}
    return [piece for number, unit in enumerate(units) for piece in found.get(number, [unit])]


def _is_rows(unit: Unit) -> bool:
    return unit.source is not None and unit.source.kind in ROW_KINDS


def _pieces(size: int, unit: Unit) -> list[Unit]:
    """Cuts a file of rows; an empty one stays as it is."""
    assert unit.source is not None
    with readable(unit.file, unit.source):
        return [replace(unit, span=span) for span in cut(unit.file, unit.source.kind, size)] or [unit]


def _part_count(units: Sequence[Unit], config: ExtractConfig) -> int:
    total = sum(unit.weight for unit in units)
    return config.parts or max(-(-total // config.part_bytes), min(len(units), MIN_PARTS))


def arrange(units: Sequence[Unit], config: ExtractConfig) -> list[list[Unit]]:
    """Cuts `units` into parts, none of them empty.

    The middle of a unit decides where it goes, so a unit larger than a part fills one alone.
    """
    total, count = sum(unit.weight for unit in units), _part_count(units, config)
    groups: dict[int, list[Unit]] = {}
    before = 0
    for unit in units:
        middle = before + unit.weight / 2
        groups.setdefault(min(count - 1, int(middle * count / total)), []).append(unit)
        before += unit.weight
    return [list(_joined(groups[index])) for index in sorted(groups)]


def _joined(units: Sequence[Unit]) -> Iterator[Unit]:
    """Yields units with neighbouring pieces of one file as one."""
    current: Unit | None = None
    for unit in units:
        if (
            current
            and current.span
            and unit.span
            and unit.file.path == current.file.path
            and unit.source == current.source
        ):
            current = replace(current, span=current.span.joined(unit.span))
            continue
        if current:
            yield current
        current = unit
    if current:
        yield current


def runs(parts: Sequence[Sequence[Unit]]) -> list[str]:
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
