"""Which input belongs to which part: a function of the inputs and the settings, never of the workers.

Used by `stage`. A unit is one WARC file or one file of a source; units stay whole and in order, and parts are runs of
consecutive units of about equal weight.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.extract.config import ExtractConfig, FileSource
from tasks.sources import SourceFile

# Compressed pages unpack to about four times their size, and their extraction costs more than reading a text.
WARC_WEIGHT = 4
MIN_PARTS = 8


@dataclass(frozen=True)
class Unit:
    """One input file.

    A file of the crawl has no `source`; it lies in the store at `file.path`, holds `records` captures, and `index`
    lists them ("" where nothing does).
    """

    file: SourceFile
    source: FileSource | None = None
    records: int = 0
    index: str = ""

    @property
    def weight(self) -> int:
        """Input bytes, as `ExtractConfig.part_bytes` counts them; at least 1."""
        factor = WARC_WEIGHT if self.source is None or self.source.kind == "warc" else 1
        return max(1, self.file.bytes * factor)


def arrange(units: Sequence[Unit], config: ExtractConfig) -> list[list[Unit]]:
    """Cuts `units` into parts, none of them empty.

    The middle of a unit decides where it goes, so a unit larger than a part fills one alone.
    """
    total = sum(unit.weight for unit in units)
    wanted = config.parts or max(-(-total // config.part_bytes), min(len(units), MIN_PARTS))
    groups: dict[int, list[Unit]] = {}
    before = 0
    for unit in units:
        middle = before + unit.weight / 2
        groups.setdefault(min(wanted - 1, int(middle * wanted / total)), []).append(unit)
        before += unit.weight
    return [groups[index] for index in sorted(groups)]
