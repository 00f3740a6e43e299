"""Parts of documents that come back (`tasks.formats.dedup.dedup_index`).

Reads the dedup index of the version before, the documents of earlier versions, and the ids of those of this one. Writes
`documents/returned-<n>.parquet` as extract does, and an empty `rejected/returned-<n>.parquet`.
"""

from collections.abc import Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from tasks.core.artifact import ArtifactFolder, PartRecord
from tasks.core.engine import Engine
from tasks.core.stage import Output, Part, PartSpec
from tasks.formats.dedup.dedup_index import (
    DedupIndex,
    forgotten,
    id_array,
    returned_documents,
    returned_part_name,
    returning,
)
from tasks.formats.documents.document import DOCUMENT, REJECTED
from tasks.formats.documents.tombstones import Tombstones


def returned_parts(
    index: DedupIndex, takedowns: Tombstones, names: Sequence[str], output: Output, engine: Engine
) -> list[PartRecord]:
    """Writes a part for each part of the index with documents that come back.

    Args:
        index: of the version before.
        takedowns: what is taken down.
        names: the parts of documents that this version has read: what is among them is there already.
        output: the artifact being written.
        engine: executor of the parts.
    """
    numbers = range(index.count)
    gone = [found for _, found in sorted(engine.map(partial(forgotten, index, takedowns), numbers))]
    found = sorted(engine.map(partial(returning, index, pa.concat_arrays([id_array([]), *gone]), takedowns), numbers))
    back = {number: copies for number, copies in found if copies.num_rows}
    if back:
        own = ArtifactFolder(output.store, output.address, output.address.path)
        every = pa.concat_arrays([copies.column("id").combine_chunks() for copies in back.values()])
        there = pa.concat_arrays(
            [id_array([]), *(found for _, found in engine.map(partial(read_again, own, every), names))]
        )
        back = {
            number: copies.filter(pc.invert(pc.is_in(copies.column("id"), there))) for number, copies in back.items()
        }
    specs = [PartSpec(returned_part_name(number), copies) for number, copies in back.items() if copies.num_rows]
    return output.map_parts(engine, partial(returned_part, index), specs)


def read_again(own: ArtifactFolder, wanted: pa.Array, name: str) -> pa.Array:
    """Returns those of some ids that are of documents in one part."""
    there = own.table(f"documents/{name}.parquet", columns=["id"]).column("id").combine_chunks()
    return wanted.filter(pc.is_in(wanted, value_set=there))


def returned_part(index: DedupIndex, part: Part, copies: pa.Table) -> None:
    """Writes the documents of some copies; runs on a worker."""
    part.count_in(copies.num_rows)
    found = returned_documents(index, copies).cast(DOCUMENT)
    part.metric("text_bytes", sum(len(text.encode()) for text in found.column("text").to_pylist()))
    part.table("documents", found)
    part.table("rejected", REJECTED.empty_table(), out=False)
