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
version with the same settings copies the parts of the newest such version, except those with a page that has been taken
down since.

The requests of all sources are made by this process, `common_crawl.CONNECTIONS` at a time.
"""

import io
import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.ledger import versions_of
from tasks.core.stage import Inputs, Output, Part, Report
from tasks.formats.documents.document import REJECTED
from tasks.formats.documents.text import hash64
from tasks.formats.documents.tombstones import NO_TOMBSTONES, Tombstones, canonical_document_url, tombstones_of
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
from tasks.formats.web.canonical_url import canonical
from tasks.stages.extract.config import Archive, ArchiveConfig

log = logging.getLogger("sluice.extract")

VERSION = 1

AT_ONCE, AT_ONCE_BYTES = 1000, 64 << 20
"""Captures of a part, and bytes of their records as stored."""

TAKEN_DOWN = "taken_down"
"""Reason for the rejection of a capture that is not fetched because of a takedown."""

GAP, SPAN = 32 << 10, 16 << 20
"""Bytes between two records that are read with them, and bytes of a request for several records. Between the responses
of two pages lie the request and the metadata of the second, about 2 KB."""


_KEYS = np.dtype([("version", np.uint64), ("url", np.uint64), ("length", np.int64), ("crawl", np.int32)])


@dataclass(frozen=True)
class Selection:
    """Which of the found captures of a crawl are fetched, as a mask over its rows, and counts of the others."""

    wanted: NDArray[np.bool_]
    bytes: int
    """Bytes of their records as stored."""
    repeated: int
    """Captures whose URL and content an earlier crawl of the source has."""
    left_out: int
    """Captures above `most`."""


def run(config: ArchiveConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Fetches the captures of each source.

    Raises:
        InputError: a crawl does not exist, nothing matches, or no record could be read.
        StoreError, TransientError: the server refuses or does not answer.
    """
    takedowns = tombstones_of(inputs)
    metrics: dict[str, float] = {}
    for source in config.sources or ():
        data, earlier = CrawlData(source.root, source.contact), _earlier(source, output)
        for crawl in source.crawls:
            _find(data, source, crawl, earlier, output)
        selections = _select(source, output)
        wanted = sum(int(selection.wanted.sum()) for selection in selections.values())
        if not wanted:
            raise InputError(
                f'{data.root} has no capture for the archive "{source.name}"',
                "correct its domains, prefixes, languages or mime, or add crawls",
            )
        metrics[f"{source.name}/repeated"] = sum(selection.repeated for selection in selections.values())
        metrics[f"{source.name}/left_out"] = sum(selection.left_out for selection in selections.values())
        _fetch_all(data, source, selections, takedowns, earlier, output)
        log.info("[%s] %s: %s bytes in %d requests", output.address, source.name, f"{data.bytes:,}", data.requests)
    return _report(output, metrics)


def _report(output: Output, metrics: dict[str, float]) -> Report:
    records = output.committed.values()
    fetched, rejected = sum(one.rows_out for one in records), sum(sum(one.rejected.values()) for one in records)
    if not fetched:
        reasons = sorted({reason for one in records for reason in one.rejected})
        raise InputError(f"{output.address}: none of {rejected} captures could be used ({', '.join(reasons)})")
    return Report(metrics, note=f"{fetched:,} captures, {rejected:,} rejected")


def _find(data: CrawlData, source: Archive, crawl: str, earlier: Artifact | None, output: Output) -> None:
    """Writes the table of the matching captures of a crawl, as a part."""
    name = f"{source.name}-{crawl}"
    if name in output.committed:
        return
    with output.part(name) as part:
        if not _carried(part, earlier, (), NO_TOMBSTONES):
            _search(part, data, source, crawl, output)


def _search(part: Part, data: CrawlData, source: Archive, crawl: str, output: Output) -> None:
    prefixes = (*(one for domain in source.domains for one in of_domain(domain)),
                *(one for prefix in source.prefixes for one in of_url(prefix)))  # fmt: skip
    query = Query(prefixes, source.mime, source.languages)
    files = data.index_files(crawl)
    total = sum(size for _, size in files)
    log.info("[%s] %s: searching %d files of the index, %s bytes", output.address, crawl, len(files), f"{total:,}")
    before = data.bytes
    groups = matching_groups(data, files, query)
    with part.file(_found_path(source, crawl)) as file, pq.ParquetWriter(file, FOUND, compression="zstd") as writer:
        for number, table in enumerate(lookup(data, groups, query), start=1):
            if table.num_rows:
                writer.write_table(table)
            output.progress(number, len(groups), f"row groups of the index of {crawl}")
    part.metric("index_bytes", total)
    part.metric("index_bytes_read", data.bytes - before)


def _found_path(source: Archive, crawl: str) -> str:
    return f"found/{source.name}/{crawl}.parquet"


def _select(source: Archive, output: Output) -> dict[str, Selection]:
    """Returns the selected captures of each crawl: the first of each URL and content, of these a sample by URL."""
    keys = np.concatenate([_keys(output, source, crawl) for crawl in source.crawls])
    first = np.zeros(len(keys), dtype=bool)
    first[np.unique(keys["version"], return_index=True)[1]] = True
    wanted = first.copy()
    if source.most is not None and first.sum() > source.most:
        # Stable, so that of several versions of a URL the first is preferred.
        ordered = np.flatnonzero(first)[np.argsort(keys["url"][first], kind="stable")]
        wanted[ordered[source.most :]] = False
    selections = {}
    for number, crawl in enumerate(source.crawls):
        rows = keys["crawl"] == number
        size = int(keys["length"][rows & wanted].sum())
        selections[crawl] = Selection(
            wanted[rows], size, int((rows & ~first).sum()), int((rows & first & ~wanted).sum())
        )
    return selections


def _keys(output: Output, source: Archive, crawl: str) -> NDArray[np.void]:
    """Returns hashes of URL with content and of URL, bytes, and number of the crawl, for its found captures."""
    number, keys = source.crawls.index(crawl), []
    for batch in _found(output, source, crawl, ["url", "digest", "length"]):
        for url, digest, length in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            keys.append((hash64(f"{url}\n{digest}"), hash64(url), length, number))
    return np.array(keys, _KEYS)


def _found(output: Output, source: Archive, crawl: str, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    path = f"{output.address.path}/{_found_path(source, crawl)}"
    with output.store.open(path) as file, pq.ParquetFile(file) as table:
        yield from table.iter_batches(columns=columns)


def _fetch_all(
    data: CrawlData,
    source: Archive,
    selections: dict[str, Selection],
    takedowns: Tombstones,
    earlier: Artifact | None,
    output: Output,
) -> None:
    total = sum(int(selection.wanted.sum()) for selection in selections.values())
    size = sum(selection.bytes for selection in selections.values())
    log.info("[%s] %s: %s captures to fetch, %s bytes", output.address, source.name, f"{total:,}", f"{size:,}")
    done = stored = 0
    with ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="archive") as pool:
        for crawl, selection in selections.items():
            for number, rows in enumerate(_chunks(_wanted(output, source, crawl, selection))):
                name = f"{source.name}-{crawl}-{number:06d}"
                if name not in output.committed:
                    with output.part(name) as part:
                        if not _carried(part, earlier, rows, takedowns):
                            _fetch(part, data, source, crawl, rows, takedowns, pool)
                done, stored = done + len(rows), stored + sum(row["length"] for row in rows)
                output.progress(done, total, f"captures of {source.name}, {stored:,} bytes")


def _wanted(output: Output, source: Archive, crawl: str, selection: Selection) -> Iterator[dict[str, Any]]:
    first = 0
    for batch in _found(output, source, crawl):
        mask = selection.wanted[first : first + batch.num_rows]
        first += batch.num_rows
        yield from batch.filter(pa.array(mask)).to_pylist()


def _chunks(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yields the captures of each part."""
    chunk, size = list[dict[str, Any]](), 0
    for row in rows:
        if chunk and (len(chunk) == AT_ONCE or size + row["length"] > AT_ONCE_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(row)
        size += row["length"]
    if chunk:
        yield chunk


def _is_taken_down(url: str, takedowns: Tombstones) -> bool:
    page = canonical_document_url(url) if takedowns else None
    return page is not None and takedowns.covers_url(page)


def _earlier(source: Archive, output: Output) -> Artifact | None:
    """Returns an earlier version whose parts of a source have the same captures; None if there is none."""
    wanted = source.model_dump(mode="json")
    for artifact in sorted(versions_of(output.store, output.address.name, but=output.version), key=_finished):
        record = artifact.record
        if wanted in record.config["sources"] and record.stage_version == VERSION and artifact.removal() is None:
            return artifact
    return None


def _finished(artifact: Artifact) -> tuple[float, ArtifactId]:
    """Key that sorts artifacts, the newest first."""
    return -artifact.record.finished.timestamp(), artifact.address


def _carried(part: Part, earlier: Artifact | None, rows: Sequence[dict[str, Any]], takedowns: Tombstones) -> bool:
    """Takes a part over from an earlier version, unless takedowns have changed it; returns whether it did."""
    record = next((one for one in earlier.parts if one.name == part.name), None) if earlier else None
    if earlier is None or record is None or TAKEN_DOWN in record.rejected:
        return False
    if any(_is_taken_down(row["url"], takedowns) for row in rows):
        return False
    part.carry(earlier.folder, record)
    return True


def _fetch(
    part: Part,
    data: CrawlData,
    source: Archive,
    crawl: str,
    rows: Sequence[dict[str, Any]],
    takedowns: Tombstones,
    pool: ThreadPoolExecutor,
) -> None:
    """Fetches the records of some captures and writes them in their order."""
    part.count_in(len(rows))
    reasons = [TAKEN_DOWN if _is_taken_down(row["url"], takedowns) else "" for row in rows]
    open_rows = [number for number, reason in enumerate(reasons) if not reason]
    ranges = spans([(rows[n]["file"], rows[n]["offset"], rows[n]["length"]) for n in open_rows], GAP, SPAN)
    records = dict[int, bytes]()
    for span, content in zip(ranges, pool.map(lambda span: _content(data, span), ranges), strict=True):
        for number in (open_rows[index] for index in span.records):
            first = rows[number]["offset"] - span.first
            record = content[first : first + rows[number]["length"]] if content is not None else b""
            reasons[number] = "not_found" if content is None else _problem(record, rows[number])
            if not reasons[number]:
                records[number] = record
    _write(part, source, crawl, rows, records)
    rejected = [
        {"record_id": "", "url": row["url"], "source": source.name, "reason": reason}
        for row, reason in zip(rows, reasons, strict=True)
        if reason
    ]
    for row in rejected:
        part.reject(row["reason"])
    if rejected:
        part.table("rejected", pa.Table.from_pylist(rejected, REJECTED), out=False)


def _content(data: CrawlData, span: Span) -> bytes | None:
    try:
        return data.read(span.file, span.first, span.end)
    except FileNotFoundError:
        return None


def _problem(member: bytes, row: dict[str, Any]) -> str:
    """Returns why the bytes at a place are not the record of the capture that the index names; "" if they are."""
    if len(member) < row["length"]:
        return "warc_truncated"
    found = list(read_records(io.BytesIO(member), 1))
    if len(found) != 1 or not isinstance(found[0], Record) or found[0].short:
        return "warc_damaged"
    record = found[0]
    if record.url != row["url"] and canonical(record.url) != canonical(row["url"]):
        return "url_differs"
    return "digest_differs" if row["digest"] and record.payload_digest != f"sha1:{row['digest']}" else ""


def _write(part: Part, source: Archive, crawl: str, rows: Sequence[dict[str, Any]], records: dict[int, bytes]) -> None:
    written, at = [], 0
    if records:
        with part.file(f"{CAPTURES}{source.name}/{part.name}.warc.gz", rows=len(records)) as file:
            for number, record in sorted(records.items()):
                file.write(record)
                there = {"crawl": crawl, "file_offset": rows[number]["offset"]}
                written.append({**rows[number], **there, "offset": at})
                at += len(record)
    part.count_out(len(records))
    part.table(f"{PROVENANCE_FOLDER}{source.name}", pa.Table.from_pylist(written, PROVENANCE), out=False)
