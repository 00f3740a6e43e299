"""The render queue: the pages of a segment that need a browser, and their captures.

Its order is a function of the segment, so that a resumed stage makes the same parts.
"""

from collections import Counter
from dataclasses import dataclass

import pyarrow.compute as pc

from tasks.core.artifact import Artifact
from tasks.formats.warc import archive
from tasks.stages.crawl.storage.fetchlog import SUCCESS

_LOG = "log/"
_COLUMNS = ["url", "host", "depth", "record_id", "warc_file", "warc_offset"]


@dataclass(frozen=True)
class Waiting:
    """One page of the queue; the columns of its row in the fetch log."""

    url: str
    host: str
    depth: int
    record_id: str
    warc_file: str
    warc_offset: int


@dataclass(frozen=True)
class Source:
    """A captured page: its canonical URL, its headers and its decoded body."""

    url: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


def queue(segment: Artifact) -> list[Waiting]:
    """Returns the pages that need a browser: the first of every host, the second of every host, and so on."""
    condition = pc.field("render") & (pc.field("status") == SUCCESS)
    rows = [row for path in segment.files(_LOG) for row in segment.table(path, _COLUMNS, condition).to_pylist()]
    pages = sorted((Waiting(**row) for row in rows), key=lambda page: (page.depth, page.url))
    seen: Counter[str] = Counter()
    ranked = []
    for page in pages:
        ranked.append((seen[page.host], page.depth, page.host, page.url, page))
        seen[page.host] += 1
    return [page for *_, page in sorted(ranked, key=lambda row: row[:4])]


def source(segment: Artifact, page: Waiting, limit: int) -> Source:
    """Returns the capture of a page, with at most `limit` bytes of its decoded body.

    Raises:
        ValueError: the archive has no such capture.
    """
    with segment.open(page.warc_file) as file:
        capture = archive.capture_at(file, page.warc_offset)
    return Source(page.url, capture.headers, capture.body(limit).data)
