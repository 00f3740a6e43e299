"""What each pass of the stage reads: the settings, the inputs, and what the passes before it have written.

Reads `parts.json`, the names of the parts of the corpus in order; a part's number is its index there.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.core.artifact import ArtifactFolder
from tasks.formats import sorted_runs
from tasks.formats.sorted_runs import Buckets
from tasks.stages.dedup.config import DedupConfig

PARTS_FILE = "parts.json"


@dataclass(frozen=True)
class Workspace:
    """Settings, inputs and this stage's own folder. Picklable; its size does not depend on the parts."""

    config: DedupConfig
    extracted: ArtifactFolder
    scores: ArtifactFolder
    own: ArtifactFolder

    def names(self) -> list[str]:
        """Returns the names of the parts of the corpus."""
        names: list[str] = json.loads(self.own.read(PARTS_FILE))
        return names

    def bucket(self, runs: Buckets, dtype: np.dtype[Any], number: int, count: int) -> NDArray[np.void]:
        """Returns the records of bucket `number` of `count` from the runs of a pass over buckets."""
        return sorted_runs.read_bucket(self.own, runs.paths(), dtype, number, count)

    def bucket_of_parts(self, folder: str, dtype: np.dtype[Any], number: int, count: int) -> NDArray[np.void]:
        """Returns the records of bucket `number` of `count` from the runs of the parts of the corpus."""
        paths = [f"{folder}/{name}.bin" for name in self.names()]
        return sorted_runs.read_bucket(self.own, paths, dtype, number, count)
