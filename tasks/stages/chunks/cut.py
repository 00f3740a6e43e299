"""First step, per part: the chunks of its documents, which of them are garbage, and what the others have as text.

Reads one part of `documents` (kept/) and, where `extracted` has a layout for it, that and the texts that it is of.
Writes

    cut/<part>.parquet  every chunk (CUT), in the order of documents and texts
    runs/<number>.bin   every chunk that is no garbage (RUN), sorted by its text's hash
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.core.artifact import ArtifactFolder
from tasks.core.stage import Part
from tasks.formats import packed_ids, sorted_runs
from tasks.formats.chunks import CHUNK, CODE, TEXT, chunk_id
from tasks.formats.packed_ids import HALVES
from tasks.formats.row_ids import row_ids_of
from tasks.formats.text import digest128, normalise
from tasks.formats.tombstones import TAKEDOWN, Tombstones
from tasks.stages.chunks.config import ChunksConfig
from tasks.stages.chunks.garbage import garbage
from tasks.stages.chunks.packing import Packer
from tasks.stages.chunks.pages import Pages
from tasks.stages.chunks.structure import Block, blocks
from tasks.stages.chunks.tokenizer import FILE, counter
from tasks.stages.chunks.units import Count, units

CUT = pa.schema([*CHUNK, pa.field("reason", pa.string(), nullable=False)])  # "" where it is no garbage
RUN = np.dtype([("key", "<u8"), ("rest", "<u8"), ("rank", "u1"), ("id", HALVES), ("row", "<u8")])
"""A chunk: the halves of its text's digest, 0 for a gold document and 1 for others, its id, its row in `cut/` as a row
id (`tasks.formats.row_ids`)."""
KEPT = "kept/"
_GOLD = "gold"
_BATCH = 256
_NO_TEXT = {"text": "", "title": "", "headings": (), "sections": ()}
"""Of a chunk of a document that is taken down."""
_READ = ["id", "url", "source", "language", "tier", "title", "text"]

Row = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """What all parts are cut with."""

    config: ChunksConfig
    documents: ArtifactFolder
    extracted: ArtifactFolder
    tokenizer: ArtifactFolder
    takedowns: tuple[ArtifactFolder, ...]


def cut_part(job: Job, part: Part, given: tuple[int, str, str, bool]) -> None:
    """Writes one part; runs on a worker.

    Args:
        job: see `Job`.
        part: receives the files.
        given: number and name of the part, the path of its run, and whether any of its documents have a layout.
    """
    number, name, path, paged = given
    documents = job.documents.table(f"{KEPT}{name}.parquet", columns=_READ)
    gone = Tombstones.read(job.takedowns).mask(documents)
    pages = _pages(job.extracted, name, documents) if paged else {}
    count = counter(job.tokenizer.read(FILE).decode())
    rows: list[Row] = []
    for batch in documents.append_column("gone", pa.array(gone)).to_batches(max_chunksize=_BATCH):
        for document in batch.to_pylist():
            rows += _chunks(job.config, document, pages.get(document["id"]), count)
    table = pa.Table.from_pylist(rows, schema=CUT)
    with part.file(f"cut/{name}.parquet", rows=table.num_rows) as file:
        pq.write_table(table, file, compression="zstd", compression_level=3, store_schema=True)
    sorted_runs.write(part, path, [_run(number, rows)])
    part.metric("documents", documents.num_rows)
    part.metric("cut", len(rows))


def _pages(extracted: ArtifactFolder, name: str, documents: pa.Table) -> dict[str, Pages]:
    """Returns the layouts of the documents of a part by their ids."""
    ids = documents.column("id")
    layouts = extracted.table(f"layout/{name}.parquet", filters=pc.field("id").isin(ids))
    wanted = pc.field("id").isin(layouts.column("id"))
    texts = extracted.table(f"documents/{name}.parquet", ["id", "text"], wanted)
    before = dict(zip(texts["id"].to_pylist(), texts["text"].to_pylist(), strict=True))
    rows = pc.index_in(layouts.column("id"), value_set=ids)
    kept = documents.column("text").take(rows).to_pylist()
    found = zip(layouts["id"].to_pylist(), kept, layouts["layout"].to_pylist(), strict=True)
    return {doc_id: Pages(before[doc_id], text, layout) for doc_id, text, layout in found}


def _chunks(config: ChunksConfig, document: Mapping[str, Any], pages: Pages | None, count: Count) -> Iterator[Row]:
    """Yields the rows of CUT of a document; those of one that is taken down have no text and no title."""
    text = document["text"]
    found = units(text, _structure(config, document, pages), config.max_tokens, count)
    for cut in Packer(text, found, config, count).chunks():
        reason = TAKEDOWN if document["gone"] else garbage(text[cut.start + cut.overlap : cut.end], cut.kind, config)
        boxes = pages.boxes(cut.start, cut.end) if pages else None
        stretch = text[cut.start : cut.end]
        yield {
            "id": chunk_id(document["id"], cut.start, stretch),
            "document": document["id"],
            **{name: document[name] for name in ("url", "source", "language", "tier", "title")},
            **cut._asdict(),
            **(_NO_TEXT if document["gone"] else {"text": stretch}),
            "pages": None if boxes is None else sorted({one["page"] for one in boxes}),
            "boxes": boxes,
            "reason": reason,
        }


def _structure(config: ChunksConfig, document: Mapping[str, Any], pages: Pages | None) -> list[Block]:
    if pages:
        return pages.blocks()
    if document["source"] in config.code_sources:
        return [Block(0, len(document["text"].rstrip()), CODE)]
    return blocks(document["text"])


def _run(part: int, rows: list[Row]) -> NDArray[np.void]:
    """Returns RUN of the chunks of a part that are no garbage, sorted by key."""
    good = [number for number, row in enumerate(rows) if not row["reason"]]
    digests = packed_ids.pack(pa.array([digest128(_same(rows[number])) for number in good], pa.string()))
    found = np.empty(len(good), RUN)
    found["key"], found["rest"] = digests[:, 0], digests[:, 1]
    found["rank"] = [rows[number]["tier"] != _GOLD for number in good]
    found["id"] = packed_ids.pack(pa.array([rows[number]["id"] for number in good], pa.string()))
    found["row"] = row_ids_of(part, np.array(good, np.int64))
    return sorted_runs.by_key(found)


def _same(row: Row) -> str:
    """Returns what two chunks have in common that count as equal.

    Of text the normalised words; of code and tables, where signs mean something, all characters.
    """
    own = row["text"][row["overlap"] :]
    return f"{TEXT}\n{normalise(own)}" if row["kind"] == TEXT else f"{row['kind']}\n{own}"
