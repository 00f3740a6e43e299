"""Third step, per part: the repeated paragraphs of each document, and examples for the report.

Reads `places/` of the part, `counts/` of all ranges one after the other, ids of the documents, and the texts of those
that the report shows. Writes the two tables of `tasks.formats.documents.document`, and

    examples/<part>.parquet  beginnings of the most repeated paragraphs whose first document is in this part (EXAMPLE)

Second step, per range of hashes: in how many documents and domains each paragraph occurs.

Reads the range from the `runs/` of all parts (`tasks.formats.dedup.sorted_runs`). Writes

    counts/<range>.parquet  the repeated paragraphs (COUNTS), sorted by hash
    top/<range>.parquet     the most repeated ones, sorted by `most`
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.core.artifact import ArtifactFolder
from tasks.core.stage import Part
from tasks.filters.recognisers.scan import without_personal_data
from tasks.formats.dedup import document_ids, sorted_runs
from tasks.formats.dedup.sorted_runs import Buckets
from tasks.formats.documents.document import PARAGRAPHS, REPEAT, REPEATED, REPEATS, REPEATS_FOUND, marked
from tasks.stages.paragraphs.config import ParagraphsConfig
from tasks.stages.paragraphs.scan import RUN

COUNTS = pa.schema(
    [
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("documents", pa.int64(), nullable=False),  # distinct ones with the paragraph
        pa.field("texts", pa.int64(), nullable=False),  # distinct normalised texts of these
        pa.field("domains", pa.int64(), nullable=False),  # registered domains of these
        pa.field("text", pa.uint64(), nullable=False),  # the first text, by (fetched_at, id): it keeps the paragraph
        pa.field("id", pa.string(), nullable=False),  # the first document
    ]
)
FOLDER, TOP = "counts", "top"
MOST = 100
"""Paragraphs in the report."""


def count_part(
    config: ParagraphsConfig, own: ArtifactFolder, runs: Buckets, made: Buckets, part: Part, number: int
) -> None:
    """Writes one range of hashes; runs on a worker.

    Args:
        config: the stage's settings.
        own: its own artifact.
        runs: names of its runs.
        made: names of the files that are written.
        part: receives them.
        number: of the range.
    """
    distinct, found = counted(config, sorted_runs.read_bucket(own, runs.paths(), RUN, number, made.count))
    for table, paths in ((found, made), (most([found]), made.beside(TOP))):
        with part.file(paths.path(number, "parquet"), rows=table.num_rows) as file:
            pq.write_table(table, file, compression="zstd", compression_level=3, store_schema=True)
    part.metric("distinct", distinct)
    part.metric("repeated", found.num_rows)


def counted(config: ParagraphsConfig, runs: NDArray[np.void]) -> tuple[int, pa.Table]:
    """Counts paragraphs.

    Args:
        config: the stage's settings.
        runs: records of RUN: each paragraph once for each document with it.

    Returns:
        number of distinct paragraphs, and COUNTS of those that count as repeated, sorted by hash.
    """
    runs = runs[np.lexsort((runs["id"][:, 1], runs["id"][:, 0], runs["fetched"], runs["key"]))]
    known, first, sizes = np.unique(runs["key"], return_index=True, return_counts=True)
    group = np.repeat(np.arange(len(known)), sizes)
    texts, domains = (_distinct(group, runs[name], len(known)) for name in ("text", "domain"))
    again = repeated(config, texts, domains)
    firsts = runs[first[again]]
    numbers = (values[again] for values in (known, sizes, texts, domains))
    return len(known), pa.table([*numbers, firsts["text"], document_ids.unpack(firsts["id"])], schema=COUNTS)


def _distinct(group: NDArray[np.int64], values: NDArray[np.uint64], groups: int) -> NDArray[np.int64]:
    """Returns the number of distinct values of each group, shape (groups,)."""
    order = np.lexsort((values, group))
    group, values = group[order], values[order]
    new = np.ones(len(group), np.bool_)
    new[1:] = (np.diff(group) != 0) | (values[1:] != values[:-1])
    found: NDArray[np.int64] = np.bincount(group[new], minlength=groups)
    return found


def repeated(config: ParagraphsConfig, texts: NDArray[np.int64], domains: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Returns which paragraphs count as repeated, by the texts and domains with each, shape (paragraphs,)."""
    found: NDArray[np.bool_] = (texts >= config.min_documents) & (domains >= config.min_domains)
    return found & (domains <= config.max_domains) if config.max_domains else found


def most(tables: Sequence[pa.Table]) -> pa.Table:
    """Returns the MOST rows of several COUNTS with most documents; of equal numbers most domains, lowest hash."""
    order = [("documents", "descending"), ("domains", "descending"), ("hash", "ascending")]
    return pa.concat_tables(tables).sort_by(order).slice(0, MOST).combine_chunks()


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
