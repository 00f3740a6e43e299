"""Returned documents: copies of documents that have left the dedup index, so that they are no longer duplicates.

Reads the index of the previous version (`tasks.formats.dedup.dedup_index`), the documents of earlier versions, and the
ids of the documents of this version. Writes `documents/returned-<n>.parquet`, and an empty
`rejected/returned-<n>.parquet`.
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
    id_array,
    returned_copies,
    returned_documents,
    returned_part_name,
    taken_down_ids,
)
from tasks.formats.documents.document import DOCUMENT, REJECTED
from tasks.formats.documents.tombstones import Tombstones


def returned_parts(
    index: DedupIndex, takedowns: Tombstones, names: Sequence[str], output: Output, engine: Engine
) -> list[PartRecord]:
    """Writes one part for each part of the index with returned documents.

    Args:
        index: dedup index of the previous version.
        takedowns: tombstones of documents and pages that are taken down.
        names: names of the parts that this version has extracted; documents in them are not written again.
        output: the artifact being written.
        engine: executor of the parts.
    """
    numbers = range(index.count)
    ids = [part_ids for _, part_ids in sorted(engine.map(partial(taken_down_ids, index, takedowns), numbers))]
    taken_down = pa.concat_arrays([id_array([]), *ids])
    results = sorted(engine.map(partial(returned_copies, index, taken_down, takedowns), numbers))
    returned = {number: copies for number, copies in results if copies.num_rows}
    if returned:
        own = output.folder
        candidates = pa.concat_arrays([copies.column("id").combine_chunks() for copies in returned.values()])
        ids = [part_ids for _, part_ids in engine.map(partial(_already_written, own, candidates), names)]
        written = pa.concat_arrays([id_array([]), *ids])
        returned = {
            number: copies.filter(pc.invert(pc.is_in(copies.column("id"), written)))
            for number, copies in returned.items()
        }
    specs = [PartSpec(returned_part_name(number), copies) for number, copies in returned.items() if copies.num_rows]
    return output.map_parts(engine, partial(_returned_part, index), specs)


def _already_written(own: ArtifactFolder, candidates: pa.Array, name: str) -> pa.Array:
    """Returns the ids in `candidates` of documents in the part `name`; runs on a worker."""
    ids = own.table(f"documents/{name}.parquet", columns=["id"]).column("id").combine_chunks()
    return candidates.filter(pc.is_in(candidates, value_set=ids))


def _returned_part(index: DedupIndex, part: Part, copies: pa.Table) -> None:
    """Writes the documents of the rows `copies` of the index; runs on a worker."""
    part.count_in(copies.num_rows)
    documents = returned_documents(index, copies).cast(DOCUMENT)
    part.metric("text_bytes", sum(len(text.encode()) for text in documents.column("text").to_pylist()))
    part.table("documents", documents)
    part.table("rejected", REJECTED.empty_table(), out=False)
