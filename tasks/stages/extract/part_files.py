"""Writers of the parts of the stage: documents, JSON lines, layout and pages.

Writes `documents/<part>.parquet` in the order of ids, in bounded memory; on request `jsonl/<part>.jsonl.gz`, the same
documents for readers without Parquet; and `layout/<part>.parquet` and `pages/<part>.parquet` in parts with paged files.
The schemas are those of `tasks.formats.documents.document`.
"""

import contextlib
import dataclasses
import gzip
import io
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.stage import Part
from tasks.formats.documents.document import DOCUMENT, LAYOUT, PAGES, READ_PAGES, layout_row
from tasks.formats.documents.layout import PageScore
from tasks.stages.extract.guard import Outcome
from tasks.stages.extract.row import Content, InputRow, Poison

# Documents are read only a few times: at level 1 they take a sixth more space, and two thirds of the time. A dictionary
# does not help with the other columns, whose values are distinct.
_PARQUET: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 1,
    "use_dictionary": ["host", "language_hint", "licence", "form", "source", "warc_file"],
}

BUFFER_BYTES = 32 << 20
"""Maximum bytes of text in memory, and in one row group of the part's file."""

_FIELDS = (
    *("id", "url", "fetched_at", "title", "language_hint", "published", "canonical", "licence", "metadata", "text"),
    *("source", "record_id", "warc_file", "warc_offset"),
)
_GZIP_LEVEL = 6

_LAYOUTS_AT_ONCE = 256


@dataclass
class OrderedDocuments:
    """Collects documents in any order, and yields them as tables in the order of their ids; a context manager.

    Attributes:
        rows: number of documents.
        text_bytes: size of their texts in UTF-8.
    """

    rows: int = 0
    text_bytes: int = 0
    _buffer: list[dict[str, object]] = field(default_factory=list)
    _buffer_bytes: int = 0
    # Id, number of the batch, row in the batch, and bytes of text and metadata.
    _places: list[tuple[str, int, int, int]] = field(default_factory=list)
    _batches: int = 0
    _scratch: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _path: str = ""
    _writer: pa.ipc.RecordBatchFileWriter | None = None

    def __enter__(self) -> "OrderedDocuments":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scratch.close()

    def add(self, document: dict[str, object]) -> None:
        """Adds one row of DOCUMENT."""
        size = len(str(document["text"]).encode())
        document_bytes = size + len(str(document.get("metadata") or ""))
        self._places.append((str(document["id"]), self._batches, len(self._buffer), document_bytes))
        self._buffer.append(document)
        self.rows += 1
        self.text_bytes += size
        self._buffer_bytes += document_bytes
        if self._buffer_bytes >= BUFFER_BYTES:
            self._spill()

    def _spill(self) -> None:
        if self._writer is None:
            folder = self._scratch.enter_context(tempfile.TemporaryDirectory(prefix="sluice-extract-"))
            self._path = f"{folder}/documents.arrow"
            self._writer = pa.ipc.new_file(self._path, DOCUMENT)
        self._writer.write_batch(pa.RecordBatch.from_pylist(self._buffer, DOCUMENT))
        self._buffer, self._buffer_bytes = [], 0
        self._batches += 1

    def tables(self) -> Iterator[pa.Table]:
        """Yields the documents as tables of about `BUFFER_BYTES` of text; no document may be added afterwards."""
        self._places.sort()
        if self._writer is None:
            if self._buffer:
                yield pa.Table.from_pylist([self._buffer[row] for _, _, row, _ in self._places], DOCUMENT)
            return
        if self._buffer:
            self._spill()
        self._writer.close()
        with pa.memory_map(self._path) as file:
            reader = pa.ipc.open_file(file)
            batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
            group: list[pa.RecordBatch] = []
            size = 0
            for _, batch, row, text_bytes in self._places:
                if group and size + text_bytes > BUFFER_BYTES:
                    yield pa.Table.from_batches(group).combine_chunks()
                    group, size = [], 0
                group.append(batches[batch].slice(row, 1))
                size += text_bytes
            yield pa.Table.from_batches(group).combine_chunks()


def write_documents(part: Part, documents: OrderedDocuments, *, jsonl: bool) -> None:
    """Writes and counts the documents of a part; with `jsonl` also as JSON lines."""
    with contextlib.ExitStack() as files:
        file = files.enter_context(part.file(f"documents/{part.name}.parquet", rows=documents.rows))
        parquet = pq.ParquetWriter(file, DOCUMENT, store_schema=True, **_PARQUET)
        files.enter_context(parquet)
        lines = None
        if jsonl:
            target = files.enter_context(part.file(f"jsonl/{part.name}.jsonl.gz", rows=documents.rows))
            lines = files.enter_context(_packed(target))
        for table in documents.tables():
            parquet.write_table(table)
            if lines is not None:
                lines.writelines(map(_json_line, table.to_pylist()))
    part.count_out(documents.rows)
    part.metric("text_bytes", documents.text_bytes)


@contextlib.contextmanager
def _packed(file: BinaryIO) -> Iterator[BinaryIO]:
    """Yields a file whose bytes are written to `file` gzip-compressed; the same bytes give the same bytes."""
    # The gzip header has neither name nor time, so that the bytes depend only on the documents.
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=_GZIP_LEVEL, mtime=0) as packed,
        io.BufferedWriter(cast(io.RawIOBase, packed), 1 << 20) as buffered,
    ):
        yield buffered


def _json_line(document: Mapping[str, object]) -> bytes:
    """Returns a row of DOCUMENT; times are ISO 8601 (UTC, milliseconds) or null, metadata a JSON object."""
    fields = {name: _json_value(document[name]) for name in _FIELDS}
    fields["metadata"] = json.loads(str(document["metadata"] or "null"))
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _json_value(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value


class PagedFiles:
    """Collects layout and page scores of the paged files of a part, as Arrow tables of about 40 bytes per block.

    Args:
        recognized: whether a parser of the recipe recognizes pages, so that their confidences are written.
    """

    def __init__(self, *, recognized: bool = False) -> None:
        self._recognized = recognized
        self._rows: list[dict[str, Any]] = []
        self._tables: list[pa.Table] = []
        self._pages: list[dict[str, Any]] = []

    def add_rejected(self, row: InputRow, outcome: Outcome) -> None:
        """Adds the pages of a file that gives no document."""
        if not isinstance(outcome, Poison):
            self._add_pages(row, outcome.pages)

    def add_document(self, part: Part, row: InputRow, document: str, content: Content) -> list[dict[str, str]]:
        """Adds layout and pages of the document with that id.

        Pages that need OCR are counted as rows of the part.

        Returns:
            the rejections of these pages, as rows of REJECTED.
        """
        if content.layout:
            self._rows.append(layout_row(document, content.layout))
            if len(self._rows) >= _LAYOUTS_AT_ONCE:
                self._pack()
        self._add_pages(row, content.pages)
        missing = [page for page in content.pages if page.needs_ocr]
        if missing:
            part.count_in(len(missing))
        for page in missing:
            part.reject(page.rejection)
        return [
            {
                "record_id": row.record_id,
                "url": f"{row.url}#page={page.page}",  # RFC 8118, section 3
                "source": row.source,
                "reason": page.rejection,
            }
            for page in missing
        ]

    def write(self, part: Part) -> None:
        """Writes the tables of the part; no file is written for a table without rows."""
        self._pack()
        if self._tables:
            part.table("layout", pa.concat_tables(self._tables).sort_by("id").combine_chunks(), out=False)
        if self._pages:
            self._pages.sort(key=lambda page: (page["url"], page["source"], page["page"]))
            schema = READ_PAGES if self._recognized else PAGES
            if self._recognized and (read := sum(map(_was_read, self._pages))):
                part.metric("ocr_pages", read)
            part.table("pages", pa.Table.from_pylist(self._pages, schema), out=False)

    def _pack(self) -> None:
        if self._rows:
            self._tables.append(pa.Table.from_pylist(self._rows, LAYOUT))
            self._rows = []

    def _add_pages(self, row: InputRow, pages: tuple[PageScore, ...]) -> None:
        self._pages += [{"url": row.url, "source": row.source, **dataclasses.asdict(page)} for page in pages]


def _was_read(page: Mapping[str, Any]) -> bool:
    """Returns whether a page has no usable text layer, and was read nevertheless."""
    from tasks.formats.pdf.health import NEEDS_OCR  # most stages have no page to recognize

    return bool(page["score"] >= NEEDS_OCR and not page["needs_ocr"])
