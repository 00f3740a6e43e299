"""The passes over the paragraphs: scan each part, count each range of hashes, mark each part.

    places/<part>.parquet    scan   every paragraph (PLACES), in the order of the documents and texts
    runs/<number>.bin        scan   distinct paragraphs of each document that are long enough (RUN), by hash
    counts/<range>.parquet   count  the repeated paragraphs (COUNTS), by hash
    top/<range>.parquet      count  the most repeated ones, in the order of `most_repeated`
    paragraphs/ repeats/     mark   repeated paragraphs of the part (`tasks.formats.documents.document`)
    examples/<part>.parquet  mark   beginnings of the most repeated paragraphs whose first document is in the part
                                    (EXAMPLE)

Only `scan` reads all texts; `mark` reads only those of the examples.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core.artifact import ArtifactFolder
from tasks.core.stage import Part
from tasks.filters.recognisers.scan import without_personal_data
from tasks.formats.dedup import document_ids, sorted_runs
from tasks.formats.dedup.document_ids import HALVES
from tasks.formats.dedup.sorted_runs import Buckets
from tasks.formats.documents.document import PARAGRAPHS, REPEAT, REPEATED, REPEATED_SPANS, REPEATS, with_ids_digest
from tasks.formats.documents.text import hash64, normal_words
from tasks.formats.web.domain import domain_of
from tasks.stages.paragraphs import ParagraphsConfig

PLACES = pa.schema(
    [
        pa.field("row", pa.int32(), nullable=False),  # of the document in its part
        pa.field("begin", pa.int32(), nullable=False),
        pa.field("end", pa.int32(), nullable=False),
        pa.field("words", pa.int32(), nullable=False),
        pa.field("hash", pa.uint64(), nullable=False),  # XXH3 of the normalized paragraph
        pa.field("text", pa.uint64(), nullable=False),  # XXH3 of the document's normalized text
    ]
)

RUN = np.dtype([("key", "<u8"), ("text", "<u8"), ("domain", "<u8"), ("fetched", "<i8"), ("id", HALVES)])
"""A paragraph of a document: its hash, the hash of the document's text, XXH3 of the domain's name, the time in
milliseconds, and the id of the document. A document without a time comes last."""

_LATEST = np.iinfo(np.int64).max

COUNTS = pa.schema(
    [
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("documents", pa.int64(), nullable=False),  # number of distinct documents with the paragraph
        pa.field("texts", pa.int64(), nullable=False),  # number of their distinct normalized texts
        pa.field("domains", pa.int64(), nullable=False),  # number of their registered domains
        pa.field("text", pa.uint64(), nullable=False),  # the first text by (fetched_at, id), which keeps the paragraph
        pa.field("id", pa.string(), nullable=False),  # the first document
    ]
)

FOLDER, TOP = "counts", "top"

MOST = 100
"""Maximum number of paragraphs in the report."""

TOP_FILE = "top.parquet"

EXAMPLE = pa.schema(
    [
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("url", pa.string(), nullable=False),  # of the first document with the paragraph
        pa.field("example", pa.string(), nullable=False),  # its beginning in that document, masked
    ]
)

_BEGINNING = 500


class Paragraph(NamedTuple):
    """A paragraph of a text: its start and end in characters, and its normalized words."""

    begin: int
    end: int
    normal: str


def paragraphs(text: str) -> Iterator[Paragraph]:
    r"""Yields the paragraphs of a text: its lines with words, without surrounding white space.

    >>> [tuple(paragraph) for paragraph in paragraphs("  A line.\n\n--\nAnother")]
    [(2, 9, 'a line'), (14, 21, 'another')]
    """
    at = 0
    for line in text.split("\n"):
        if normal := " ".join(normal_words(line)):
            begin = at + len(line) - len(line.lstrip())
            yield Paragraph(begin, begin + len(line.strip()), normal)
        at += len(line) + 1


def scan_part(min_words: int, extracted: ArtifactFolder, part: Part, job: tuple[str, str]) -> None:
    """Writes the paragraphs of one part, given by its name and the path of its run; runs on a worker."""
    name, path = job
    documents = extracted.table(f"documents/{name}.parquet", ["id", "host", "source", "fetched_at", "text"])
    columns: tuple[list[int], ...] = tuple([] for _ in PLACES)
    domains = []
    for row, (host, source, text) in enumerate(
        zip(*(documents.column(column).to_pylist() for column in ("host", "source", "text")), strict=True)
    ):
        paragraphs_of_text = list(paragraphs(text))
        text_hash = hash64(" ".join(paragraph.normal for paragraph in paragraphs_of_text))
        domains.append(hash64(domain_of(host) if host else source))
        for paragraph in paragraphs_of_text:
            values = (
                row,
                paragraph.begin,
                paragraph.end,
                paragraph.normal.count(" ") + 1,
                hash64(paragraph.normal),
                text_hash,
            )
            for column, value in zip(columns, values, strict=True):
                column.append(value)
    places = pa.table([pa.array(column, field.type) for column, field in zip(columns, PLACES, strict=True)], PLACES)
    part.write_table(f"places/{name}.parquet", places)
    run = _run(documents, np.array(domains, np.uint64), places.filter(pc.greater_equal(places["words"], min_words)))
    sorted_runs.write(part, path, [run])
    part.metric("paragraphs", places.num_rows)
    part.metric("counted", len(run))


def _run(documents: pa.Table, domains: NDArray[np.uint64], long_paragraphs: pa.Table) -> NDArray[np.void]:
    distinct = long_paragraphs.group_by(["row", "hash", "text"]).aggregate([])
    rows = distinct.column("row").to_numpy()
    fetched = pc.fill_null(documents.column("fetched_at").cast(pa.int64()), _LATEST).to_numpy()
    records = np.empty(len(rows), RUN)
    records["key"], records["text"] = distinct["hash"].to_numpy(), distinct["text"].to_numpy()
    records["domain"], records["fetched"] = domains[rows], fetched[rows]
    records["id"] = document_ids.pack(documents["id"])[rows]
    return records[np.lexsort((records["id"][:, 1], records["id"][:, 0], records["key"]))]


def count_part(
    config: ParagraphsConfig, own: ArtifactFolder, runs: Buckets, ranges: Buckets, part: Part, number: int
) -> None:
    """Writes the counts of one range of hashes; runs on a worker.

    Args:
        config: the stage's settings.
        own: the stage's own artifact.
        runs: paths of the runs.
        ranges: paths of the counts.
        part: the part to write.
        number: number of the range.
    """
    distinct, repeated_counts = count_paragraphs(
        config, sorted_runs.read_bucket(own, runs.paths(), RUN, number, ranges.count)
    )
    for table, paths in ((repeated_counts, ranges), (most_repeated([repeated_counts]), ranges.sibling(TOP))):
        part.write_table(paths.path(number, "parquet"), table)
    part.metric("distinct", distinct)
    part.metric("repeated", repeated_counts.num_rows)


def count_paragraphs(config: ParagraphsConfig, runs: NDArray[np.void]) -> tuple[int, pa.Table]:
    """Counts paragraphs.

    Args:
        config: the stage's settings.
        runs: dtype RUN: each paragraph once for each document with it, in any order.

    Returns:
        number of distinct paragraphs, and COUNTS of the repeated ones, sorted by hash.
    """
    runs = runs[np.lexsort((runs["id"][:, 1], runs["id"][:, 0], runs["fetched"], runs["key"]))]
    distinct_hashes, first, sizes = np.unique(runs["key"], return_index=True, return_counts=True)
    group = np.repeat(np.arange(len(distinct_hashes)), sizes)
    texts, domains = (_distinct(group, runs[name], len(distinct_hashes)) for name in ("text", "domain"))
    is_repeat = is_repeated(config, texts, domains)
    firsts = runs[first[is_repeat]]
    numbers = (values[is_repeat] for values in (distinct_hashes, sizes, texts, domains))
    return len(distinct_hashes), pa.table([*numbers, firsts["text"], document_ids.unpack(firsts["id"])], schema=COUNTS)


def _distinct(group: NDArray[np.int64], values: NDArray[np.uint64], groups: int) -> NDArray[np.int64]:
    """Returns the number of distinct values of each group, shape (groups,)."""
    order = np.lexsort((values, group))
    group, values = group[order], values[order]
    is_new = np.ones(len(group), np.bool_)
    is_new[1:] = (np.diff(group) != 0) | (values[1:] != values[:-1])
    counts: NDArray[np.int64] = np.bincount(group[is_new], minlength=groups)
    return counts


def is_repeated(config: ParagraphsConfig, texts: NDArray[np.int64], domains: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Returns which paragraphs are repeated, given the numbers of texts and domains; shapes (n_paragraphs,)."""
    mask: NDArray[np.bool_] = (texts >= config.min_documents) & (domains >= config.min_domains)
    return mask & (domains <= config.max_domains) if config.max_domains else mask


def most_repeated(tables: Sequence[pa.Table]) -> pa.Table:
    """Returns the first MOST rows of several COUNTS by descending documents and domains, then by hash."""
    order = [("documents", "descending"), ("domains", "descending"), ("hash", "ascending")]
    return pa.concat_tables(tables).sort_by(order).slice(0, MOST).combine_chunks()


def mark_part(extracted: ArtifactFolder, own: ArtifactFolder, ranges: Buckets, part: Part, name: str) -> None:
    """Writes the repeated paragraphs and the examples of one part; runs on a worker.

    Args:
        extracted: the documents.
        own: the stage's own artifact.
        ranges: paths of the counts.
        part: the part to write.
        name: name of the part of `extracted`.
    """
    ids = extracted.table(f"documents/{name}.parquet", columns=["id"]).column("id")
    places = own.table(f"places/{name}.parquet")
    counts = _counts_in_part(places, own, ranges)
    # The row of `counts` of each paragraph; null if it is not repeated.
    count_rows = pc.index_in(places.column("hash"), value_set=counts.column("hash"))
    in_first_text = pc.equal(counts.column("text").take(count_rows.combine_chunks()), places.column("text"))
    is_repeat = pc.invert(pc.fill_null(in_first_text, True)).to_numpy()
    part.count_in(len(ids))
    part.table(PARAGRAPHS, with_ids_digest(pa.table({REPEATED: _repeats_column(places, is_repeat, len(ids))}), ids))
    repeat_places = places.filter(pa.array(is_repeat))
    repeat_counts = counts.take(count_rows.filter(pa.array(is_repeat)).combine_chunks())
    columns = [
        ids.take(repeat_places["row"]),
        repeat_places["begin"],
        repeat_places["end"],
        repeat_counts["documents"],
        repeat_counts["domains"],
    ]
    part.table(REPEATS, pa.table(columns, schema=REPEAT).combine_chunks(), out=False)
    part.metric("documents_with_repeats", len(np.unique(repeat_places["row"].to_numpy())))
    part.metric("characters", int(_lengths(places).sum()))
    part.metric("repeated_characters", int(_lengths(repeat_places).sum()))
    top = own.table(TOP_FILE)
    part.table("examples", _examples(extracted, name, ids, places, top), out=False)


def _counts_in_part(places: pa.Table, own: ArtifactFolder, ranges: Buckets) -> pa.Table:
    """Returns COUNTS of the repeated paragraphs in the part; memory is bounded by one range."""
    hashes = pc.unique(places.column("hash"))
    tables = [COUNTS.empty_table()]
    for path in ranges.paths("parquet"):
        counts = own.table(path)
        tables.append(counts.filter(pc.is_in(counts.column("hash"), value_set=hashes)))
    return pa.concat_tables(tables).combine_chunks()


def _lengths(places: pa.Table) -> NDArray[np.int64]:
    lengths: NDArray[np.int64] = (places["end"].to_numpy() - places["begin"].to_numpy()).astype(np.int64)
    return lengths


def _repeats_column(places: pa.Table, is_repeat: NDArray[np.bool_], documents: int) -> pa.Array:
    """Returns the column REPEATED_SPANS of `documents` documents."""
    rows, lengths = places["row"].to_numpy(), _lengths(places)
    all_chars, repeated_chars = (
        np.bincount(rows, weights=weight, minlength=documents) for weight in (lengths, lengths * is_repeat)
    )
    words_left = np.bincount(rows, weights=places["words"].to_numpy() * ~is_repeat, minlength=documents)
    values: list[dict[str, Any] | None] = [None] * documents
    spans = [places[name].to_numpy()[is_repeat].tolist() for name in ("row", "begin", "end")]
    for row, begin, end in zip(*spans, strict=True):
        value = values[row]
        if value is None:
            share = float(repeated_chars[row] / all_chars[row])
            value = values[row] = {"share": share, "words_left": int(words_left[row]), "spans": []}
        value["spans"].append({"begin": begin, "end": end})
    return pa.array(values, REPEATED_SPANS)


def _examples(extracted: ArtifactFolder, name: str, ids: pa.ChunkedArray, places: pa.Table, top: pa.Table) -> pa.Table:
    """Returns EXAMPLE of the most repeated paragraphs whose first document is in the part."""
    firsts = pc.index_in(top.column("id"), value_set=ids).to_pylist()
    remaining = {(row, key) for row, key in zip(firsts, top.column("hash").to_pylist(), strict=True) if row is not None}
    if not remaining:
        return EXAMPLE.empty_table()
    rows = sorted({row for row, _ in remaining})
    table = extracted.table(f"documents/{name}.parquet", columns=["url", "text"]).take(pa.array(rows))
    documents = dict(zip(rows, table.to_pylist(), strict=True))
    examples = []
    for paragraph in places.filter(pc.is_in(places["row"], value_set=pa.array(rows, pa.int32()))).to_pylist():
        if (paragraph["row"], paragraph["hash"]) in remaining:
            remaining.remove((paragraph["row"], paragraph["hash"]))  # only its first occurrence in the document
            document = documents[paragraph["row"]]
            example = without_personal_data(document["text"][paragraph["begin"] : paragraph["end"]])[:_BEGINNING]
            examples.append({"hash": paragraph["hash"], "url": document["url"], "example": example})
    return pa.Table.from_pylist(examples, schema=EXAMPLE)
