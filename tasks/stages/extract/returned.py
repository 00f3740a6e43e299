"""Parts of documents that come back (`tasks.formats.returned`).

Reads the dedup index of the version before, and the documents of earlier versions. Writes
`documents/returned-<n>.parquet` as extract does, and an empty `rejected/returned-<n>.parquet`.
"""

from functools import partial

import pyarrow as pa

from tasks.core.artifact import PartRecord
from tasks.core.engine import Engine
from tasks.core.part import Part, PartSpec
from tasks.core.stage import Output
from tasks.formats.dedup_index import DedupIndex
from tasks.formats.documents import DOCUMENT, REJECTED
from tasks.formats.returned import documents, forgotten, ids, part_name, returning
from tasks.formats.tombstones import Tombstones


def returned_parts(index: DedupIndex, takedowns: Tombstones, output: Output, engine: Engine) -> list[PartRecord]:
    """Writes a part for each part of the index with documents that come back."""
    numbers = range(index.count)
    gone = [found for _, found in sorted(engine.map(partial(forgotten, index, takedowns), numbers))]
    back = sorted(engine.map(partial(returning, index, pa.concat_arrays([ids([]), *gone]), takedowns), numbers))
    specs = [PartSpec(part_name(number), copies) for number, copies in back if copies.num_rows]
    return output.map_parts(engine, partial(returned_part, index), specs)


def returned_part(index: DedupIndex, part: Part, copies: pa.Table) -> None:
    """Writes the documents of some copies; runs on a worker."""
    part.count_in(copies.num_rows)
    found = documents(index, copies).cast(DOCUMENT)
    part.metric("text_bytes", sum(len(text.encode()) for text in found.column("text").to_pylist()))
    part.table("documents", found)
    part.table("rejected", REJECTED.empty_table(), out=False)
