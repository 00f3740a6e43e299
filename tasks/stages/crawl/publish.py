"""Stage `publish`: closes a crawl cycle with one artifact that names every WARC file and the new crawl DB.

Reads the segments, the rendered pages and the new crawl DB. Writes `manifest.parquet` (archive.MANIFEST_SCHEMA),
`index.cdxj`, and the report (`tasks.stages.crawl.health`). The WARC files stay in the segments: publishing
costs no copy. The next cycle starts from the crawl DB that the newest of these artifacts was made from: its record is
the pointer that is swapped.
"""

import contextlib
import heapq
import io
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.artifact import Artifact
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.stage import Inputs, Output, Report
from tasks.formats.warc.archive import INDEX as INDEX_FILE
from tasks.formats.warc.archive import MANIFEST, MANIFEST_SCHEMA
from tasks.stages.crawl import health
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.db import duck
from tasks.stages.crawl.storage.segment import INDEX, WARC

VERSION = 4


def run(config: CrawlConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Writes manifest and index.

    Raises:
        InputError: no segment has a capture, and no previous cycle had one.
    """
    segments = [*inputs.many("segments"), *inputs.many("rendered")]
    rows = [row for segment in segments for row in _files(segment)]
    captures = sum(row["records"] for row in rows)
    known = sum(one.record.metrics.get("captured", 0.0) for one in inputs.many("crawldb"))
    if not captures and not known:
        names = ", ".join(str(segment.address) for segment in segments)
        raise InputError(
            f"the crawl captured nothing: {names} hold no page",
            "read the rejected reasons in their records and correct [crawl] seeds",
        )
    if "manifest" not in output.committed:
        with output.part("manifest") as part:
            part.count_in(captures)
            part.count_out(captures)
            with part.file(MANIFEST, rows=len(rows)) as file:
                pq.write_table(pa.Table.from_pylist(rows, schema=MANIFEST_SCHEMA), file, compression="zstd")
            with part.file(INDEX_FILE, rows=captures) as file:
                for line in _index(segments):
                    file.write(line.encode())
    with duck.connect(output.scratch) as connection:
        health.attach(connection, inputs.many("segments"), inputs.many("crawldb"))
        numbers = health.figures(connection)
        if "health" not in output.committed:
            with output.part("health") as part:
                duck.write(connection, part, health.DOMAINS_FILE, health.DOMAINS)
                takedown = duck.write(connection, part, health.TAKEDOWN_FILE, health.TAKEDOWN)
                part.metric("takedown", takedown)
        output.log_file("domains.html", health.page(connection.sql(health.DOMAINS).to_arrow_table()))
    size = sum(row["bytes"] for row in rows)
    numbers |= {"pages": float(captures), "warc_bytes": float(size)}
    return Report(numbers, note=f"{captures} pages in {len(rows)} files")


def _files(segment: Artifact) -> Iterator[dict[str, Any]]:
    for part in segment.parts:
        # A part has one WARC file and its index, or neither.
        index = next((entry.path for entry in part.files if entry.path.startswith(INDEX)), None)
        for entry in part.files:
            if entry.path.startswith(WARC):
                yield {
                    "segment": str(segment.address),
                    "path": f"{segment.path}/{entry.path}",
                    "sha256": entry.sha256,
                    "bytes": entry.bytes,
                    "records": part.rows_out,
                    "index": f"{segment.path}/{index}" if index else None,
                }


def _index(segments: list[Artifact]) -> Iterator[str]:
    """Yields the lines of all indexes in one order, with file names relative to the store."""
    with contextlib.ExitStack() as stack:
        files = [
            _lines(io.TextIOWrapper(stack.enter_context(segment.open(path)), "utf-8"), segment)
            for segment in segments
            for path in segment.files(INDEX)
        ]
        yield from heapq.merge(*files)


def _lines(file: io.TextIOWrapper, segment: Artifact) -> Iterator[str]:
    for line in file:
        where, when, fields = line.split(" ", 2)
        entry = json.loads(fields)
        entry["filename"] = f"{segment.path}/{entry['filename']}"
        yield f"{where} {when} {json.dumps(entry, ensure_ascii=True)}\n"
