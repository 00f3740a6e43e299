"""Stage `render`: renders script-generated pages in a browser and stores the documents.

Reads the render queue of its partition's segment (rows of log/ that are captured and marked `render`, their captures,
state of their hosts), the hosts of the seeds and the hosts file. Writes parts like those of a segment: warc/
with one conversion record per page (the finished document, referring to the response record it was made from), index/,
log/ and links/. Without `[crawl.render] enabled` the artifact is empty and no browser is needed. A small page takes
1.8 s, of which 1 s is waiting for it to rest, and 0.8 CPU-seconds.

The render queue: the pages of a segment that need a browser, and their captures.

Its order is a function of the segment, so that a resumed stage makes the same parts.

One part of a render task's artifact: a WARC file of conversion records with its index, log and links.

The files are those of a segment (log: `fetchlog.FETCH_LOG`, links: `fetchlog.LINKS`), so that update and publish read
both alike. The WARC file is left out where no page of the part could be rendered.
"""

import asyncio
import contextlib
import logging
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.core.artifact import Artifact
from tasks.core.engine import Engine
from tasks.core.errors import InputError, StoppedError
from tasks.core.stage import Inputs, Output, Part, Report
from tasks.formats.warc import archive
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.hosts.clocks import Clocks
from tasks.stages.crawl.hosts.politeness import Politeness
from tasks.stages.crawl.hosts.rules import HostRules
from tasks.stages.crawl.http.address import Grants
from tasks.stages.crawl.http.client import SOFTWARE, Client, agent_of
from tasks.stages.crawl.http.dns import CachingResolver
from tasks.stages.crawl.inject import scope_of
from tasks.stages.crawl.policy import Policy
from tasks.stages.crawl.render.proxy import Guard
from tasks.stages.crawl.storage.fetchlog import (
    CAPTURED,
    HOSTS,
    RULES,
    SUCCESS,
    Outcome,
    clock_of,
    rules_of,
    to_links,
    to_table,
)
from tasks.stages.crawl.storage.segment import account
from tasks.stages.crawl.storage.warc import WarcWriter, suffix

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


VERSION = 3

log = logging.getLogger("sluice.crawl")


def run(config: CrawlConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Renders the queue of the partition named by `output.member`.

    Raises:
        InputError: rendering is on, and Chromium or the package playwright is missing.
        StoppedError: the task got SIGTERM; committed parts are kept, and a retry resumes from there.
    """
    waiting = queue(inputs["segment"])
    if not config.render.enabled or not waiting:
        if not output.committed:
            with output.part("none"):
                pass
        off = "" if config.render.enabled else "; rendering is off ([crawl.render] enabled)"
        return Report({"waiting": float(len(waiting))}, note=f"pages that need a browser: {len(waiting)}{off}")
    begin = time.monotonic()
    asyncio.run(_work(config, inputs, output, waiting))
    pages = sum(record.rows_out for record in output.committed.values())
    return Report(
        {"waiting": float(len(waiting)), "seconds": time.monotonic() - begin},
        note=f"{pages} of {len(waiting)} pages rendered",
    )


async def _work(config: CrawlConfig, inputs: Inputs, output: Output, waiting: Sequence[Waiting]) -> None:
    try:
        # Imported here: Playwright is needed for rendering only.
        from tasks.stages.crawl.render.browser import Browser
        from tasks.stages.crawl.render.work import Work
    except ImportError as error:
        raise InputError(f"rendering needs the package playwright ({error})", "pip install 'sluice[render]'") from None
    agent, segment = agent_of(config), inputs["segment"]
    clocks, policy = Clocks(output), Policy.of(config, segment)
    politeness = Politeness(config, clocks, policy)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(clocks.end)
        await stack.enter_async_context(policy.watched(politeness.adjust))
        client = await stack.enter_async_context(Client(config, begin=politeness.begin, policy=policy))
        rules = HostRules(
            client, politeness, config.user_agent, config.max_backoff_s, ai_optout="robots" in config.ai_optouts
        )
        _remember(segment, politeness, rules)
        guard = Guard(
            allow_loopback=config.allow_loopback,
            resolver=CachingResolver(config.name_servers),
            grants=Grants(config.allow_hosts),
            policy=policy,
        )
        stack.push_async_callback(guard.close)
        browser = await stack.enter_async_context(Browser(config.render, agent, guard, output.scratch))
        scope = scope_of(config, inputs["seeds"])
        with _on_signal(output):
            await Work(config, segment, output, browser, politeness, rules, scope, agent, policy).run(waiting)


def _remember(segment: Artifact, politeness: Politeness, rules: HostRules) -> None:
    """Loads the state of the hosts at the end of the fetch: pauses and robots.txt."""
    politeness.seed(clock_of(row) for path in segment.files(HOSTS) for row in segment.table(path).to_pylist())
    for path in segment.files(RULES):
        rules.seed(rules_of(segment.table(path)))


@contextlib.contextmanager
def _on_signal(output: Output) -> Iterator[None]:
    """Makes SIGTERM end the work at once: browsers are closed, committed parts are kept."""
    task = asyncio.current_task()
    if task is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGTERM)
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        yield
    except asyncio.CancelledError:
        raise StoppedError(
            f"the rendering of {output.address} was told to stop; {len(output.committed)} parts are committed",
            "run it again to go on from there",
        ) from None
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


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
