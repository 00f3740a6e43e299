"""One part of a render task's artifact: a WARC file of conversion records with its index, log and links.

The files are those of a segment (log: `fetchlog.FETCH_LOG`, links: `fetchlog.LINKS`), so that update and publish read
both alike. The WARC file is left out where no page of the part could be rendered.
"""

import contextlib
from datetime import UTC, datetime

import pyarrow.parquet as pq

from tasks.core.stage import Part
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.http.client import SOFTWARE
from tasks.stages.crawl.render.stage import Waiting
from tasks.stages.crawl.storage.fetchlog import CAPTURED, Outcome, to_links, to_table
from tasks.stages.crawl.storage.segment import account
from tasks.stages.crawl.storage.warc import WarcWriter, suffix

MIME = "text/html; charset=utf-8"


class RenderedPart:
    """The files of one part while it is made; use as a context manager around `add`.

    Args:
        part: the part.
        config: the crawl's settings.
        agent: User-Agent, for warcinfo.
        browser: name and version of the browser, for the records' notes.
    """

    def __init__(self, part: Part, config: CrawlConfig, agent: str, browser: str) -> None:
        self._part = part
        self._config = config
        self._agent = agent
        self._browser = browser
        self._name = f"{part.name}-{part.attempt}"
        self._warc = f"warc/{self._name}{suffix(config.warc_compression)}"
        self._stack = contextlib.ExitStack()
        self._writer: WarcWriter | None = None
        self._rows: list[Outcome] = []

    def __enter__(self) -> "RenderedPart":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._finish()
        else:
            self._stack.__exit__(type(error), error, error.__traceback__)

    def add(self, page: Waiting, outcome: Outcome, html: bytes, notes: dict[str, str]) -> None:
        """Adds the outcome of a page; `html` is stored where the outcome is a success."""
        if outcome.status in CAPTURED:
            writer = self._open()
            notes = {"software": self._browser, "hopsFromSeed": str(page.depth), **notes}
            when = outcome.fetched_at or datetime.now(UTC)
            written = writer.conversion(page.url, when, html, MIME, page.record_id, notes)
            outcome = outcome._replace(
                payload_digest=written.payload_digest,
                record_id=written.record_id,
                warc_file=self._warc,
                warc_offset=written.offset,
            )
        account(self._part, outcome)
        self._rows.append(outcome)

    def _open(self) -> WarcWriter:
        if self._writer is None:
            file = self._stack.enter_context(self._part.file(self._warc))
            self._writer = WarcWriter(file, self._warc, SOFTWARE, self._agent, self._config.warc_compression)
        return self._writer

    def _finish(self) -> None:
        if self._writer is not None:
            index = self._writer.finish()
            self._stack.close()
            with self._part.file(f"index/{self._name}.cdxj", rows=len(index)) as file:
                file.write("".join(f"{line}\n" for line in index).encode())
        links = to_links(self._rows, self._config.partitions)
        for folder, table in (("log", to_table(self._rows)), ("links", links)):
            with self._part.file(f"{folder}/{self._name}.parquet", rows=table.num_rows) as file:
                pq.write_table(table, file, compression="zstd", compression_level=3)
