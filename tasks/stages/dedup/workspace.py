"""What each pass of the stage reads: the settings, the inputs, and what the passes before it have written.

Reads `parts.json`, the names of the parts of this version's documents in order. The number of a part is its position
behind the parts of the index: documents of both have row ids (`tasks.formats.row_ids`) that do not collide.
"""

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.core.artifact import ArtifactFolder
from tasks.formats import sorted_runs
from tasks.formats.dedup_index import RUNS, DedupIndex
from tasks.formats.row_ids import range_of
from tasks.formats.sorted_runs import Buckets
from tasks.formats.tombstones import NOTHING, Tombstones
from tasks.stages.dedup.config import DedupConfig
from tasks.stages.dedup.records import ROW_ID

PARTS_FILE = "parts.json"


@dataclass(frozen=True)
class Workspace:
    """Settings, inputs and this stage's own folder. Picklable; its size does not depend on this version's parts."""

    config: DedupConfig
    extracted: ArtifactFolder
    scores: ArtifactFolder
    own: ArtifactFolder
    index: DedupIndex = field(default_factory=DedupIndex)
    takedowns: Tombstones = NOTHING

    def names(self) -> list[str]:
        """Returns the names of the parts of this version's documents."""
        names: list[str] = json.loads(self.own.read(PARTS_FILE))
        return names

    def part_names(self) -> list[str]:
        """Returns the names of all parts by number: those of the index as `earlier_name` gives them."""
        return [*map(earlier_name, range(self.index.count)), *self.names()]

    @property
    def first_row_id(self) -> int:
        """The least row id of this version's documents; smaller ones are of the index."""
        return range_of(self.index.count)[0]

    def bucket(self, runs: Buckets, dtype: np.dtype[Any], number: int, count: int) -> NDArray[np.void]:
        """Returns the records of bucket `number` of `count` from the runs of a pass over buckets."""
        return sorted_runs.read_bucket(self.own, runs.paths(), dtype, number, count)

    def bucket_of_documents(self, folder: str, number: int, count: int) -> NDArray[np.void]:
        """Returns the records of bucket `number` of `count`: this version's, and those of the index with their keys.

        What is taken down is left out of those of the index.
        """
        paths = [f"{folder}/{name}.bin" for name in self.names()]
        new = sorted_runs.read_bucket(self.own, paths, RUNS[folder], number, count)
        if not self.index.count:
            return new
        earlier = self.index.bucket(folder, number, count)
        stays = np.isin(earlier["key"], new["key"])
        if self.takedowns:
            runs = [forgotten_path(part) for part in range(self.index.count)]
            gone = sorted_runs.read_range(self.own, runs, ROW_ID, 0, 1 << 64)
            stays &= ~np.isin(earlier["row_id"], gone["key"])
        return np.concatenate([earlier[stays], new])


def forgotten_path(number: int) -> str:
    """Returns the run (dtype ROW_ID) with the documents of a part of the index that are taken down."""
    return f"forgotten/{earlier_name(number)}.bin"


def earlier_name(number: int) -> str:
    """Returns the name under which this stage knows a part of the index."""
    return f"earlier-{number:05d}"
