"""Documents that earlier versions have published and that this one replaces.

Reads what was resolved of one part of the dedup index. Writes `replaced/<part>.parquet` (schema REPLACED), which the
next index leaves out.
"""

from functools import partial

import pyarrow as pa

from tasks.core.engine import Engine
from tasks.core.part import Part, PartSpec
from tasks.core.stage import Output
from tasks.stages.consolidate.aligned_inputs import AlignedInputs, AlignedParts, Numbered
from tasks.stages.consolidate.resolve import rows_resolved
from tasks.stages.consolidate.verdicts import COPY

FOLDER = "replaced"
REPLACED = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),  # duplicate_page: its page was captured again
        pa.field("replaced_by", pa.string(), nullable=False),  # id of a document of this version
        pa.field("row", pa.int64(), nullable=False),  # its row in the part of the index
    ]
)


def write_replaced(
    aligned: AlignedParts, inputs: AlignedInputs, runs: list[str], output: Output, engine: Engine
) -> int:
    """Writes the documents that leave, part by part of the index; returns their number."""
    specs = [PartSpec(part.name, part) for part in inputs.numbered() if part.earlier]
    records = output.map_parts(engine, partial(replaced_part, aligned, runs), specs, conserved=False)
    return int(sum(record.metrics[FOLDER] for record in records))


def replaced_part(aligned: AlignedParts, runs: list[str], part: Part, numbered: Numbered) -> None:
    """Writes those of one part; runs on a worker."""
    rows, gone = rows_resolved(aligned, runs, numbered.number)
    reasons = pa.array([f"{COPY}{kind}" for kind in gone.column("kind").to_pylist()], pa.string())
    columns = [gone.column("id"), reasons, gone.column("duplicate_of"), pa.array(rows)]
    part.table(FOLDER, pa.table(columns, schema=REPLACED), out=False)
    part.metric(FOLDER, len(rows))
