"""The render queue: pages whose text appears only in a browser, and their captures.

Reads the fetch log and the WARC files of a segment.
"""

from collections import Counter
from dataclasses import dataclass

import pyarrow.compute as pc

from tasks.core.artifact import Artifact
from tasks.formats.warc import archive
from tasks.stages.crawl.storage.fetchlog import SUCCESS
from tasks.stages.crawl.storage.segment import LOG

_COLUMNS = ["url", "host", "depth", "record_id", "warc_file", "warc_offset"]


@dataclass(frozen=True)
class QueuedPage:
    """One page of the render queue; the fields are columns of the fetch log."""

    url: str
    host: str
    depth: int
    record_id: str
    warc_file: str
    warc_offset: int


@dataclass(frozen=True)
class CapturedPage:
    """A captured page: canonical URL, response headers and decoded body."""

    url: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


class PageError(Exception):
    """A page cannot be rendered; `reason` is an identifier that begins with "render_"."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(detail or reason)
        self.reason = reason


def render_queue(segment: Artifact) -> list[QueuedPage]:
    """Returns the pages that need a browser, in the order: first pages of all hosts, second pages, and so on."""
    condition = pc.field("render") & (pc.field("status") == SUCCESS)
    rows = [row for path in segment.files(LOG) for row in segment.table(path, _COLUMNS, condition).to_pylist()]
    pages = sorted((QueuedPage(**row) for row in rows), key=lambda page: (page.depth, page.url))
    ranks: Counter[str] = Counter()
    ranked = []
    for page in pages:
        ranked.append((ranks[page.host], page.depth, page.host, page.url, page))
        ranks[page.host] += 1
    return [page for *_, page in sorted(ranked, key=lambda row: row[:4])]


def read_capture(segment: Artifact, page: QueuedPage, limit: int) -> CapturedPage:
    """Returns the capture of a page, with at most `limit` bytes of its decoded body.

    Raises:
        ValueError: the WARC file has no such capture.
    """
    with segment.open(page.warc_file) as file:
        capture = archive.capture_at(file, page.warc_offset)
    return CapturedPage(page.url, capture.http or (), archive.body_of(capture, limit))
