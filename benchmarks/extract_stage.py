"""The whole extract stage beside the bare library, from the compressed records of a crawl to committed Parquet.

Used by `extraction`, whose docstring says what is compared.
"""

import glob
import os
import resource
import tempfile
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.archive import MANIFEST, MANIFEST_SCHEMA, warc_files
from tasks.artifact import Address, Artifact
from tasks.commit import commit
from tasks.crawl.http.client import Answer
from tasks.crawl.storage.warc import WarcWriter
from tasks.engine import open_engine
from tasks.extract.config import ExtractConfig
from tasks.extract.main_text import FURNITURE
from tasks.stage import Inputs, Output, Report
from tasks.store import Store


def measure_stage(captures: Iterable[tuple[str, bytes]], rounds: int) -> dict[str, dict[str, float]]:
    """Runs the whole extract stage and the bare library over the captures of a crawl in turn; the least times count.

    Args:
        captures: addresses and pages.
        rounds: how often each is run; once more before, uncounted, starts the child.
    """
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        crawl, pages, size = _crawled(folder, captures)
        path = f"{folder}/{warc_files(crawl)[0].path}"
        for extractor in ("resiliparse", "blocks"):
            config = ExtractConfig.model_validate({"extractor": extractor, "honour_noindex": False})
            for number in range(rounds + 1):
                for name, options in (("bare library from WARC", _BARE), ("bare library, same text", _SAME)):
                    found.setdefault(name, []).append(_bare_seconds(path, options))
                seconds = _stage_seconds(folder, config, crawl, f"{extractor}-{number}")
                found.setdefault(f"stage, {extractor}", []).append(seconds)
    best = {name: min(times[1:]) for name, times in found.items()}
    return {
        name: {
            "pages_per_cpu_second": round(pages / seconds, 1),
            "megabytes_per_cpu_second": round(size / 1e6 / seconds, 1),
            "of_bare_library_from_warc": round(best["bare library from WARC"] / seconds, 2),
            "of_bare_library_same_text": round(best["bare library, same text"] / seconds, 2),
        }
        for name, seconds in best.items()
    }


def captures_of(pattern: str) -> Iterator[tuple[str, bytes]]:
    """Yields addresses and pages of the responses in WARC files, given as a glob."""
    from fastwarc import ArchiveIterator, WarcRecordType

    for path in sorted(glob.glob(pattern)):
        with open(path, "rb") as file:
            for record in ArchiveIterator(file, record_types=WarcRecordType.response):
                yield record.headers["WARC-Target-URI"], record.reader.read()


def _crawled(folder: str, captures: Iterable[tuple[str, bytes]]) -> tuple[Artifact, int, int]:
    """Writes captures as the crawler does; returns the `warc` artifact, its pages, and the bytes of their HTML."""
    output = Output(Store(folder), Address("benchmark/warc", "dev"), "fingerprint")
    pages = size = 0
    with output.part("crawl", conserved=False) as part:
        with part.file("pages.warc.gz") as file:
            writer = WarcWriter(file, "pages.warc.gz", "benchmark", "benchmark")
            for url, html in captures:
                answer = Answer(
                    200, "OK", (("Content-Type", "text/html"),), html, False, "", b"GET / HTTP/1.1\r\n\r\n", 0
                )
                writer.capture(url, datetime(2026, 1, 1, tzinfo=UTC), answer, {})
                pages, size = pages + 1, size + len(html)
            lines = writer.finish()
        with part.file("pages.cdxj") as file:
            file.write("".join(f"{line}\n" for line in lines).encode())
        row = {"segment": "benchmark/warc@dev", "sha256": "", "bytes": writer.bytes, "records": pages}
        row |= {"path": "benchmark/warc/dev/pages.warc.gz", "index": "benchmark/warc/dev/pages.cdxj"}
        with part.file(MANIFEST) as file:
            pq.write_table(pa.Table.from_pylist([row], MANIFEST_SCHEMA), file)
    return commit(output, "tasks.crawl.publish", 1, ExtractConfig(), [], Report()), pages, size


_BARE = {"main_content": True, "preserve_formatting": True}
# What `main_text` asks for: the library leaves out more, and looks longer for it.
_SAME = {
    **_BARE,
    **{"comments": False, "post_meta": False, "list_bullets": False, "alt_texts": False},
    "skip_elements": list(FURNITURE),
}


def _bare_seconds(path: str, options: dict[str, Any]) -> float:
    """Returns CPU seconds of reading, parsing and extracting, and nothing else."""
    from fastwarc import ArchiveIterator, WarcRecordType
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.encoding import detect_encoding
    from resiliparse.parse.html import HTMLTree

    begin = _cpu_seconds()
    with open(path, "rb") as file:
        for record in ArchiveIterator(file, record_types=WarcRecordType.response):
            payload = record.reader.read()
            tree = HTMLTree.parse_from_bytes(payload, detect_encoding(payload) or "utf-8")
            extract_plain_text(tree, **options)
    return _cpu_seconds() - begin


def _stage_seconds(folder: str, config: ExtractConfig, crawl: Artifact, version_: str) -> float:
    from tasks.extract import stage

    output = Output(Store(folder), Address("benchmark/extracted", version_), "fingerprint")
    begin = _cpu_seconds()
    with open_engine() as engine:
        stage.run(config, Inputs({"warc": crawl}), output, engine)
    return _cpu_seconds() - begin


def _cpu_seconds() -> float:
    """CPU seconds of this process and of the living child that extracts for it."""
    from tasks.extract import guard

    ticks = os.sysconf("SC_CLK_TCK")
    total = sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    for child in guard.children():
        fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / ticks
    return total
