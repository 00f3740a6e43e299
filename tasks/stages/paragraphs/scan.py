"""First step, per part: the paragraphs of the documents, and which of them are to be counted.

Reads one part of `extracted`. Writes

    places/<part>.parquet  every paragraph (PLACES), in the order of the documents and texts
    runs/<number>.bin      every distinct paragraph of each document that is long enough (RUN), sorted by hash
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.core.artifact import ArtifactFolder
from tasks.core.stage import Part
from tasks.formats.dedup import document_ids, sorted_runs
from tasks.formats.dedup.document_ids import HALVES
from tasks.formats.documents.text import hash64, normalise
from tasks.formats.web.domain import domain_of

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
