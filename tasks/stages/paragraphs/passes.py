"""The passes over the paragraphs: scan each part, count each range of hashes, mark each part.

    places/<part>.parquet    scan   every paragraph (PLACES), in the order of the documents and texts
    runs/<number>.bin        scan   every distinct paragraph of each document that is long enough (RUN), by hash
    counts/<range>.parquet   count  the repeated paragraphs (COUNTS), by hash
    top/<range>.parquet      count  the most repeated ones, sorted by `most`
    paragraphs/ repeats/     mark   the findings of a part (`tasks.formats.documents.document`)
    examples/<part>.parquet  mark   beginnings of the most repeated paragraphs whose first document is in this part
                                    (EXAMPLE)

Only `scan` reads all texts; `mark` reads those that the report shows.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.core.artifact import ArtifactFolder
from tasks.core.stage import Part
from tasks.filters.recognisers.scan import without_personal_data
from tasks.formats.dedup import document_ids, sorted_runs
from tasks.formats.dedup.document_ids import HALVES
from tasks.formats.dedup.sorted_runs import Buckets
from tasks.formats.documents.document import PARAGRAPHS, REPEAT, REPEATED, REPEATED_SPANS, REPEATS, with_ids_digest
from tasks.formats.documents.text import hash64, normalise
from tasks.formats.web.domain import domain_of
from tasks.stages.paragraphs import ParagraphsConfig

PLACES = pa.schema(
    [
        pa.field("row", pa.int32(), nullable=False),  # of the document in its part
        pa.field("begin", pa.int32(), nullable=False),
        pa.field("end", pa.int32(), nullable=False),
        pa.field("words", pa.int32(), nullable=False),
        pa.field("hash", pa.uint64(), nullable=False),  # XXH3 of the normalised paragraph
        pa.field("text", pa.uint64(), nullable=False),  # XXH3 of the document's normalised text
    ]
)

RUN = np.dtype([("key", "<u8"), ("text", "<u8"), ("domain", "<u8"), ("fetched", "<i8"), ("id", HALVES)])
"""A paragraph of a document: its hash, that of the document's text, XXH3 of the domain's name, milliseconds, the id. A
document without a time is the latest."""

_LATEST = np.iinfo(np.int64).max

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

TOP_FILE = "top.parquet"

EXAMPLE = pa.schema(
    [
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("url", pa.string(), nullable=False),  # of the first document with the paragraph
        pa.field("example", pa.string(), nullable=False),  # its beginning there, with personal data masked
    ]
)

_BEGINNING = 500


class Paragraph(NamedTuple):
    """A paragraph of a text: its characters, and its normalised words."""

    begin: int
    end: int
    normal: str


def paragraphs(text: str) -> Iterator[Paragraph]:
    r"""Yields the paragraphs of a text: its lines, without the white space around them and those without words.

    >>> [(one.begin, one.end, one.normal) for one in paragraphs("  A line.\n\n--\nAnother")]
    [(2, 9, 'a line'), (14, 21, 'another')]
    """
    at = 0
    for line in text.split("\n"):
        if normal := normalise(line):
            begin = at + len(line) - len(line.lstrip())
            yield Paragraph(begin, begin + len(line.strip()), normal)
        at += len(line) + 1


def scan_part(min_words: int, extracted: ArtifactFolder, part: Part, job: tuple[str, str]) -> None:
    """Writes one part, given by its name and the path of its run; runs on a worker."""
    name, path = job
    documents = extracted.table(f"documents/{name}.parquet", ["id", "host", "source", "fetched_at", "text"])
    columns: tuple[list[int], ...] = tuple([] for _ in PLACES)
    domains = []
    for row, (host, source, text) in enumerate(
        zip(*(documents.column(column).to_pylist() for column in ("host", "source", "text")), strict=True)
    ):
        found = list(paragraphs(text))
        whole = hash64(" ".join(one.normal for one in found))
        domains.append(hash64(domain_of(host) if host else source))
        for one in found:
            values = row, one.begin, one.end, one.normal.count(" ") + 1, hash64(one.normal), whole
            for column, value in zip(columns, values, strict=True):
                column.append(value)
    places = pa.table([pa.array(column, field.type) for column, field in zip(columns, PLACES, strict=True)], PLACES)
    with part.file(f"places/{name}.parquet", rows=places.num_rows) as file:
        pq.write_table(places, file, compression="zstd", compression_level=3, store_schema=True)
    run = _run(documents, np.array(domains, np.uint64), places.filter(pc.greater_equal(places["words"], min_words)))
    sorted_runs.write(part, path, [run])
    part.metric("paragraphs", places.num_rows)
    part.metric("counted", len(run))


def _run(documents: pa.Table, domains: NDArray[np.uint64], long: pa.Table) -> NDArray[np.void]:
    distinct = long.group_by(["row", "hash", "text"]).aggregate([])
    rows = distinct.column("row").to_numpy()
    fetched = pc.fill_null(documents.column("fetched_at").cast(pa.int64()), _LATEST).to_numpy()
    found = np.empty(len(rows), RUN)
    found["key"], found["text"] = distinct["hash"].to_numpy(), distinct["text"].to_numpy()
    found["domain"], found["fetched"] = domains[rows], fetched[rows]
    found["id"] = document_ids.pack(documents["id"])[rows]
    return found[np.lexsort((found["id"][:, 1], found["id"][:, 0], found["key"]))]


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
    part.table(PARAGRAPHS, with_ids_digest(pa.table({REPEATED: _found(places, again, len(ids))}), ids))
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
    """Returns the column REPEATED_SPANS of `documents` documents."""
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
    return pa.array(values, REPEATED_SPANS)


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
