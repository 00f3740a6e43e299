"""First step, per part: the paragraphs of the documents, and which of them are to be counted.

Reads one part of `extracted`. Writes

    places/<part>.parquet  every paragraph (PLACES), in the order of the documents and texts
    runs/<part>.parquet    every distinct paragraph of each document that is long enough (RUN), sorted by hash and id
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.core.artifact import ArtifactFolder
from tasks.core.stage import Part
from tasks.formats.domain import domain_of
from tasks.formats.text import hash64, normalise

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
RUN = pa.schema(
    [
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("text", pa.uint64(), nullable=False),
        pa.field("domain", pa.uint64(), nullable=False),  # XXH3 of its name
        pa.field("fetched", pa.int64(), nullable=False),  # milliseconds; a document without a time is the latest
        pa.field("id", pa.string(), nullable=False),
    ]
)
_ROWS_PER_GROUP = 1 << 16
_LATEST = np.iinfo(np.int64).max


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


def scan_part(min_words: int, extracted: ArtifactFolder, part: Part, name: str) -> None:
    """Writes one part; runs on a worker."""
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
    run = _run(documents, pa.array(domains, pa.uint64()), places.filter(pc.greater_equal(places["words"], min_words)))
    for folder, table in (("places", places), ("runs", run)):
        with part.file(f"{folder}/{name}.parquet", rows=table.num_rows) as file:
            pq.write_table(
                table, file, compression="zstd", compression_level=3, row_group_size=_ROWS_PER_GROUP, store_schema=True
            )
    part.metric("paragraphs", places.num_rows)
    part.metric("counted", run.num_rows)


def _run(documents: pa.Table, domains: pa.Array, long: pa.Table) -> pa.Table:
    distinct = long.group_by(["row", "hash", "text"]).aggregate([])
    rows = distinct.column("row")
    fetched = pc.fill_null(documents.column("fetched_at").cast(pa.int64()), _LATEST)
    columns = [distinct["hash"], distinct["text"], domains.take(rows), fetched.take(rows), documents["id"].take(rows)]
    return pa.table(columns, schema=RUN).sort_by([("hash", "ascending"), ("id", "ascending")]).combine_chunks()
