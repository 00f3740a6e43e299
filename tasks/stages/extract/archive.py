"""Stage archive: fetches the captures of some sites from Common Crawl.

Reads, for each of `[[extract.archives]]`, the columnar index of its crawls and ranges of their WARC files
(`tasks.formats.warc.common_crawl`), and the takedowns in force. Writes

- `found/<source>/<crawl>.parquet`: the matching captures, in the order of the index (common_crawl.FOUND);
- `captures/<source>/<part>.warc.gz`: the records of the selected captures in that order, byte for byte as they are in
  Common Crawl's files, each a gzip member of its own. The stage `extract` reads them like other WARC files;
- `provenance/<source>/<part>.parquet`: for each record its offset there, and its crawl, file and offset at Common Crawl
  (archive.PROVENANCE);
- `rejected/<part>.parquet`: captures that were not fetched, or that are not what the index says, with the reason.

A crawl does not change, so the artifact is a function of the settings and the takedowns. A part has consecutive
captures of one crawl, at most `AT_ONCE` with `AT_ONCE_BYTES`; a killed run continues after its last part. Another
version with the same settings refers to the parts of the newest such version, except those with a page that has been
taken down since: these are fetched again without it.

The requests of all sources are made by this process, `common_crawl.CONNECTIONS` at a time.
"""

import io
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.core import parquet
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.ledger import versions_of
from tasks.core.stage import Inputs, Output, Part, Report
from tasks.formats.documents.document import REJECTED
from tasks.formats.documents.text import hash64
from tasks.formats.documents.tombstones import Tombstones, document_identity, tombstones_of
from tasks.formats.warc.archive import CAPTURES, PROVENANCE, PROVENANCE_FOLDER
from tasks.formats.warc.common_crawl import (
    CONNECTIONS,
    FOUND,
    CrawlData,
    Query,
    Span,
    lookup,
    matching_groups,
    of_domain,
    of_url,
    spans,
)
from tasks.formats.warc.reader import read_records
from tasks.formats.warc.record import Record
from tasks.formats.web.canonical_url import page_identity
from tasks.stages.extract.config import Archive, ArchiveConfig

log = logging.getLogger("sluice.extract")

VERSION = 2

AT_ONCE, AT_ONCE_BYTES = 1000, 64 << 20
"""Captures of a part, and bytes of their records as stored."""

TAKEN_DOWN = "taken_down"
"""Reason for the rejection of a capture that is not fetched because of a takedown."""

GAP, SPAN = 32 << 10, 16 << 20
"""Bytes between two records that are read with them, and bytes of a request for several records. Between the responses
of two pages lie the request and the metadata of the second, about 2 KB."""

_KEYS = np.dtype([("version", np.uint64), ("url", np.uint64), ("length", np.int64), ("crawl", np.int32)])

Row = dict[str, Any]
"""A row of FOUND."""


def run(config: ArchiveConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Fetches the captures of each source.

    Raises:
        InputError: a crawl does not exist, nothing matches, or no record could be used.
        StoreError, TransientError: the server refuses or does not answer.
    """
    metrics: dict[str, float] = {}
    for source in config.sources or ():
        data = CrawlData(source.root, source.contact)
        fetcher = _Fetcher(data, source, tombstones_of(inputs), _earlier(source, output), output)
        for crawl in source.crawls:
            fetcher.find(crawl)
        selection = fetcher.select()
        if not selection.count:
            raise InputError(
                f'{data.root} has no capture for the archive "{source.name}"',
                "correct its domains, prefixes, languages or mime, or add crawls",
            )
        fetcher.fetch(selection)
        metrics[f"{source.name}/repeated"] = selection.repeated
        metrics[f"{source.name}/left_out"] = selection.left_out
        log.info("[%s] %s: %s bytes in %d requests", output.address, source.name, f"{data.bytes:,}", data.requests)
    records = output.committed.values()
    fetched, rejected = sum(one.rows_out for one in records), sum(sum(one.rejected.values()) for one in records)
    if not fetched:
        reasons = sorted({reason for one in records for reason in one.rejected})
        raise InputError(f"{output.address}: none of {rejected} captures could be used ({', '.join(reasons)})")
    return Report(metrics, note=f"{fetched:,} captures, {rejected:,} rejected")


def _earlier(source: Archive, output: Output) -> Artifact | None:
    """Returns the newest other version whose parts of a source have the same captures; None if there is none."""
    wanted = source.model_dump(mode="json")
    usable = [
        artifact
        for artifact in versions_of(output.store, output.address.name, but=output.version)
        if wanted in artifact.record.config["sources"]
        and artifact.record.stage_version == VERSION
        and artifact.removal() is None
        and all(Artifact.find(output.store, ArtifactId.parse(home)) for home in artifact.record.elsewhere())
    ]
    return max(usable, key=lambda artifact: (artifact.record.finished, artifact.address), default=None)


@dataclass(frozen=True)
class Selection:
    """Which of the found captures are fetched.

    Attributes:
        wanted: a mask over the rows of each crawl.
        bytes: of their records as stored.
        repeated: captures whose URL and content an earlier crawl of the source has.
        left_out: captures above `most`.
    """

    wanted: dict[str, NDArray[np.bool_]]
    bytes: int
    repeated: int
    left_out: int

    @property
    def count(self) -> int:
        """Number of selected captures."""
        return sum(int(mask.sum()) for mask in self.wanted.values())


@dataclass(frozen=True)
class _Fetcher:
    """Finds, selects and fetches the captures of one source.

    Attributes:
        data: the files of Common Crawl.
        source: the source.
        takedowns: in force.
        earlier: another version with the same captures, or None.
        output: the artifact.
    """

    data: CrawlData
    source: Archive
    takedowns: Tombstones
    earlier: Artifact | None
    output: Output

    def find(self, crawl: str) -> None:
        """Writes the table of the matching captures of a crawl, as a part, unless it is there."""
        if (name := f"{self.source.name}-{crawl}") in self.output.committed:
            return
        if not self._carried(name, ()):
            with self.output.part(name) as part:
                self._search(part, crawl)

    def _search(self, part: Part, crawl: str) -> None:
        prefixes = [one for domain in self.source.domains for one in of_domain(domain)]
        prefixes += [one for prefix in self.source.prefixes for one in of_url(prefix)]
        query = Query(tuple(prefixes), self.source.mime, self.source.languages)
        files, before = self.data.index_files(crawl), self.data.bytes
        total = sum(size for _, size in files)
        log.info("[%s] %s: an index of %d files, %s bytes", self.output.address, crawl, len(files), f"{total:,}")
        groups = matching_groups(self.data, files, query)
        with part.file(self._found_path(crawl)) as file, pq.ParquetWriter(file, FOUND, compression="zstd") as writer:
            for number, table in enumerate(lookup(self.data, groups, query), start=1):
                if table.num_rows:
                    writer.write_table(table)
                self.output.progress(number, len(groups), f"row groups of the index of {crawl}")
        part.metric("index_bytes", total)
        part.metric("index_bytes_read", self.data.bytes - before)

    def _found_path(self, crawl: str) -> str:
        return f"found/{self.source.name}/{crawl}.parquet"

    def _found(self, crawl: str, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        (entry,) = self.output.committed[f"{self.source.name}-{crawl}"].files
        with parquet.open_file(self.output.store.local(self.output.folder.place(entry))) as table:
            yield from table.iter_batches(columns=columns)

    def select(self) -> Selection:
        """Returns the selected captures: the first of each URL and content, of these a sample by hash of the URL."""
        source = self.source
        keys = np.concatenate([self._keys(number, crawl) for number, crawl in enumerate(source.crawls)])
        first = np.zeros(len(keys), dtype=bool)
        first[np.unique(keys["version"], return_index=True)[1]] = True
        wanted = first.copy()
        if source.most is not None and first.sum() > source.most:
            # Stable, so that of several versions of a URL the first is preferred.
            ordered = np.flatnonzero(first)[np.argsort(keys["url"][first], kind="stable")]
            wanted[ordered[source.most :]] = False
        masks = {crawl: wanted[keys["crawl"] == number] for number, crawl in enumerate(source.crawls)}
        size, left_out = keys["length"][wanted].sum(), (first & ~wanted).sum()
        return Selection(masks, int(size), int((~first).sum()), int(left_out))

    def _keys(self, number: int, crawl: str) -> NDArray[np.void]:
        """Returns _KEYS of the found captures of a crawl: hashes of URL with content and of URL, bytes, and number."""
        keys = []
        for batch in self._found(crawl, ["url", "digest", "length"]):
            for url, digest, length in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                keys.append((hash64(f"{url}\n{digest}"), hash64(url), length, number))
        return np.array(keys, _KEYS)

    def fetch(self, selection: Selection) -> None:
        """Writes the parts that are not there."""
        total, name = selection.count, self.source.name
        size = f"{selection.bytes:,}"
        log.info("[%s] %s: %s captures to fetch, %s bytes", self.output.address, name, f"{total:,}", size)
        done = stored = 0
        with ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="archive") as pool:
            for crawl, mask in selection.wanted.items():
                for number, rows in enumerate(_chunks(self._wanted(crawl, mask))):
                    part_name = f"{name}-{crawl}-{number:06d}"
                    if part_name not in self.output.committed and not self._carried(part_name, rows):
                        with self.output.part(part_name) as part:
                            self._fetch(part, crawl, rows, pool)
                    done, stored = done + len(rows), stored + sum(row["length"] for row in rows)
                    self.output.progress(done, total, f"captures of {name}, {stored:,} bytes")

    def _wanted(self, crawl: str, mask: NDArray[np.bool_]) -> Iterator[Row]:
        first = 0
        for batch in self._found(crawl):
            yield from batch.filter(pa.array(mask[first : first + batch.num_rows])).to_pylist()
            first += batch.num_rows

    def _carried(self, name: str, rows: Sequence[Row]) -> bool:
        """Takes a part over from the other version, unless takedowns have changed it; returns whether it did."""
        record = self.earlier.parts.part(name) if self.earlier else None
        if self.earlier is None or record is None or TAKEN_DOWN in record.rejected:
            return False
        if any(self._is_taken_down(row["url"]) for row in rows):
            return False
        self.output.carry(self.earlier, record)
        return True

    def _is_taken_down(self, url: str) -> bool:
        page = document_identity(url) if self.takedowns else None
        return page is not None and self.takedowns.covers_url(page)

    def _fetch(self, part: Part, crawl: str, rows: Sequence[Row], pool: ThreadPoolExecutor) -> None:
        """Fetches the records of some captures and writes them in their order."""
        reasons = [TAKEN_DOWN if self._is_taken_down(row["url"]) else "" for row in rows]
        asked = [number for number, reason in enumerate(reasons) if not reason]
        ranges = spans([(rows[n]["file"], rows[n]["offset"], rows[n]["length"]) for n in asked], GAP, SPAN)
        records = dict[int, bytes]()
        for span, content in zip(ranges, pool.map(partial(_content, self.data), ranges), strict=True):
            for number in (asked[index] for index in span.records):
                first = rows[number]["offset"] - span.first
                record = content[first : first + rows[number]["length"]] if content is not None else b""
                reasons[number] = "not_found" if content is None else _problem(record, rows[number])
                if not reasons[number]:
                    records[number] = record
        _write(part, self.source.name, crawl, rows, records)
        rejected = [
            {"record_id": "", "url": row["url"], "source": self.source.name, "reason": reason}
            for row, reason in zip(rows, reasons, strict=True)
            if reason
        ]
        part.count_in(len(rows))
        for row in rejected:
            part.reject(row["reason"])
        if rejected:
            part.table("rejected", pa.Table.from_pylist(rejected, REJECTED), out=False)


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yields the captures of each part."""
    chunk, size = list[Row](), 0
    for row in rows:
        if chunk and (len(chunk) == AT_ONCE or size + row["length"] > AT_ONCE_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(row)
        size += row["length"]
    if chunk:
        yield chunk


def _content(data: CrawlData, span: Span) -> bytes | None:
    try:
        return data.read(span.file, span.first, span.end)
    except FileNotFoundError:
        return None


def _problem(member: bytes, row: Row) -> str:
    """Returns why the bytes at a place are not the record of the capture that the index names; "" if they are."""
    if len(member) < row["length"]:
        return "warc_truncated"
    found = list(read_records(io.BytesIO(member), 1))
    if len(found) != 1 or not isinstance(found[0], Record) or found[0].short:
        return "warc_damaged"
    record = found[0]
    if record.url != row["url"] and page_identity(record.url) != page_identity(row["url"]):
        return "url_differs"
    return "digest_differs" if row["digest"] and record.payload_digest != f"sha1:{row['digest']}" else ""


def _write(part: Part, source: str, crawl: str, rows: Sequence[Row], records: Mapping[int, bytes]) -> None:
    """Writes records, given by the numbers of their rows, and their provenance."""
    written, at = [], 0
    if records:
        with part.file(f"{CAPTURES}{source}/{part.name}.warc.gz", rows=len(records)) as file:
            for number, record in sorted(records.items()):
                file.write(record)
                there = {"crawl": crawl, "file_offset": rows[number]["offset"]}
                written.append({**rows[number], **there, "offset": at})
                at += len(record)
    part.count_out(len(records))
    part.table(f"{PROVENANCE_FOLDER}{source}", pa.Table.from_pylist(written, PROVENANCE), out=False)
