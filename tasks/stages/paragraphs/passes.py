"""Third step, per part: the repeated paragraphs of each document, and examples for the report.

Reads `places/` of the part, `counts/` of all ranges one after the other, ids of the documents, and the texts of those
that the report shows. Writes the two tables of `tasks.formats.documents.document`, and

    examples/<part>.parquet  beginnings of the most repeated paragraphs whose first document is in this part (EXAMPLE)
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core.artifact import ArtifactFolder
from tasks.core.stage import Part
from tasks.filters.recognisers.scan import without_personal_data
from tasks.formats.dedup.sorted_runs import Buckets
from tasks.formats.documents.document import PARAGRAPHS, REPEAT, REPEATED, REPEATS, REPEATS_FOUND, marked
from tasks.stages.paragraphs.count import COUNTS

TOP_FILE = "top.parquet"
EXAMPLE = pa.schema(
    [
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("url", pa.string(), nullable=False),  # of the first document with the paragraph
        pa.field("example", pa.string(), nullable=False),  # its beginning there, with personal data masked
    ]
)
_BEGINNING = 500


def mark_part(extracted: ArtifactFolder, own: ArtifactFolder, ranges: Buckets, part: Part, name: str) -> None:
    """Writes one part; runs on a worker.

    Args:
        extracted: the documents.
        own: the stage's own artifact.
        ranges: names of its counts.
        part: receives the files.
        name: of the part of `extracted`.
    """
    ids = extracted.table(f"documents/{name}.parquet", columns=["id"]).column("id")
    places = own.table(f"places/{name}.parquet")
    counts = _known(places, own, ranges)
    # A row of `counts` for each place, null where its paragraph is not repeated or stands in its first text.
    at = pc.index_in(places.column("hash"), value_set=counts.column("hash"))
    kept = pc.equal(counts.column("text").take(at.combine_chunks()), places.column("text"))
    again = pc.invert(pc.fill_null(kept, True)).to_numpy()
    part.count_in(len(ids))
    part.table(PARAGRAPHS, marked(pa.table({REPEATED: _found(places, again, len(ids))}), ids))
    mine = places.filter(pa.array(again))
    whose = counts.take(at.filter(pa.array(again)).combine_chunks())
    columns = [ids.take(mine["row"]), mine["begin"], mine["end"], whose["documents"], whose["domains"]]
    part.table(REPEATS, pa.table(columns, schema=REPEAT).combine_chunks(), out=False)
    part.metric("documents_with_repeats", len(np.unique(mine["row"].to_numpy())))
    part.metric("characters", int(_lengths(places).sum()))
    part.metric("repeated_characters", int(_lengths(mine).sum()))
    top = own.table(TOP_FILE)
    part.table("examples", _examples(extracted, name, ids, places, top), out=False)


def _known(places: pa.Table, own: ArtifactFolder, ranges: Buckets) -> pa.Table:
    """Returns COUNTS of the repeated paragraphs that occur in the part; memory is bounded by one range."""
    hashes = pc.unique(places.column("hash"))
    found = [COUNTS.empty_table()]
    for path in ranges.paths("parquet"):
        counts = own.table(path)
        found.append(counts.filter(pc.is_in(counts.column("hash"), value_set=hashes)))
    return pa.concat_tables(found).combine_chunks()


def _lengths(places: pa.Table) -> NDArray[np.int64]:
    lengths: NDArray[np.int64] = (places["end"].to_numpy() - places["begin"].to_numpy()).astype(np.int64)
    return lengths


def _found(places: pa.Table, again: NDArray[np.bool_], documents: int) -> pa.Array:
    """Returns the column REPEATS_FOUND of `documents` documents."""
    rows, lengths = places["row"].to_numpy(), _lengths(places)
    whole, gone = (np.bincount(rows, weights=weight, minlength=documents) for weight in (lengths, lengths * again))
    left = np.bincount(rows, weights=places["words"].to_numpy() * ~again, minlength=documents)
    values: list[dict[str, Any] | None] = [None] * documents
    spans = [places[name].to_numpy()[again].tolist() for name in ("row", "begin", "end")]
    for row, begin, end in zip(*spans, strict=True):
        value = values[row]
        if value is None:
            share = float(gone[row] / whole[row])
            value = values[row] = {"share": share, "words_left": int(left[row]), "spans": []}
        value["spans"].append({"begin": begin, "end": end})
    return pa.array(values, REPEATS_FOUND)


def _examples(extracted: ArtifactFolder, name: str, ids: pa.ChunkedArray, places: pa.Table, top: pa.Table) -> pa.Table:
    """Returns EXAMPLE of those of the most repeated paragraphs whose first document is in the part."""
    firsts = pc.index_in(top.column("id"), value_set=ids).to_pylist()
    wanted = {(row, key) for row, key in zip(firsts, top.column("hash").to_pylist(), strict=True) if row is not None}
    if not wanted:
        return EXAMPLE.empty_table()
    rows = sorted({row for row, _ in wanted})
    shown = extracted.table(f"documents/{name}.parquet", columns=["url", "text"]).take(pa.array(rows))
    documents = dict(zip(rows, shown.to_pylist(), strict=True))
    examples = []
    for place in places.filter(pc.is_in(places["row"], value_set=pa.array(rows, pa.int32()))).to_pylist():
        if (place["row"], place["hash"]) in wanted:
            wanted.remove((place["row"], place["hash"]))  # the first time in this document
            document = documents[place["row"]]
            example = without_personal_data(document["text"][place["begin"] : place["end"]])[:_BEGINNING]
            examples.append({"hash": place["hash"], "url": document["url"], "example": example})
    return pa.Table.from_pylist(examples, schema=EXAMPLE)
