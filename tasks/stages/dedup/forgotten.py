"""Documents of the index that are taken down: they are compared with nothing.

Reads ids and URLs of one part of the index. Writes `forgotten/<part>.bin`, a run of ROW_ID.
"""

import numpy as np

from tasks.core.part import Part
from tasks.formats import sorted_runs
from tasks.formats.row_ids import row_ids_of
from tasks.stages.dedup.records import ROW_ID, packed
from tasks.stages.dedup.workspace import Workspace, forgotten_path


def forgotten_part(work: Workspace, part: Part, number: int) -> None:
    """Writes those of one part; runs on a worker."""
    rows = np.flatnonzero(work.takedowns.mask(work.index.names(number)))
    sorted_runs.write(part, forgotten_path(number), [packed(ROW_ID, key=row_ids_of(number, rows))])
