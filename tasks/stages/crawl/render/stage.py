"""Stage `render`: renders script-generated pages in a browser and stores the rendered documents.

Reads the render queue from the segment of its partition (captured rows of log/ marked `render`, their captures, and the
state of their hosts), the hosts of the seeds, and the hosts file. Writes parts in the layout of a segment, which update
and publish read in the same way: warc/ with one conversion record per page (the rendered document, which refers to the
response record of the page), index/, log/ and links/, and the targets of the links (`storage.targets`). The order of
the queue is a function of the segment, so a resumed stage writes the same parts. Without `[crawl.render] enabled` the
artifact is empty and no browser is needed.

One page of a host is rendered at a time, with the same pause after it as between two requests of fetch: at least
`delay_s`, the Crawl-delay, and `latency_factor` times the response time. Within a page the browser sends requests like
that of any visitor. The robots.txt of the page's own host applies to all requests to that host; the robots.txt of other
hosts is not checked, since they serve resources of the page. A small page takes 1.8 s, of which 1 s is the wait for it
to settle, and 0.8 CPU-seconds.
"""

import asyncio
import contextlib
import heapq
import logging
import signal
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tasks.core.engine import Engine
from tasks.core.errors import InputError, StoppedError
from tasks.core.part import POISON
from tasks.core.stage import Inputs, Output, Report
from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.domain import link
from tasks.formats.web.robots_tag import directives
from tasks.formats.web.url import authority, key, origin_of
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.hosts.clocks import CooldownStore
from tasks.stages.crawl.hosts.politeness import Politeness
from tasks.stages.crawl.hosts.rules import AI_OPTOUT, DENIED, HostRules
from tasks.stages.crawl.http.address import Grants
from tasks.stages.crawl.http.client import Client, agent_of
from tasks.stages.crawl.http.dns import CachingResolver
from tasks.stages.crawl.http.signature import request_signer
from tasks.stages.crawl.inject import scope_of
from tasks.stages.crawl.page.links import canonical_of
from tasks.stages.crawl.page.parser import PageParser
from tasks.stages.crawl.page.terms import opted_out
from tasks.stages.crawl.policy import HOST_PAUSED, Policy
from tasks.stages.crawl.render.proxy import AddressGuard
from tasks.stages.crawl.render.queue import CapturedPage, PageError, QueuedPage, read_capture, render_queue
from tasks.stages.crawl.storage.fetchlog import (
    CAPTURED,
    GONE,
    HOSTS,
    RETRY,
    RULES,
    SUCCESS,
    Outcome,
    clock_of,
    rules_of,
)
from tasks.stages.crawl.storage.segment import PartFiles
from tasks.stages.crawl.storage.targets import write_targets

if TYPE_CHECKING:
    from tasks.stages.crawl.render.browser import RenderResult

VERSION = 5

OVER_CAP = "render_cap"
OVER_TIME = "render_time_box"
MIME = "text/html; charset=utf-8"


log = logging.getLogger("sluice.crawl")


_Result = tuple[Outcome, bytes, dict[str, str]]


def run(config: CrawlConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Renders the queue of the partition named by `output.member`.

    Raises:
        InputError: rendering is on, and Chromium or the package playwright is missing.
        StoppedError: the task received SIGTERM; committed parts are kept, and a retry resumes after them.
    """
    pages = render_queue(inputs["segment"])
    if not config.render.enabled or not pages:
        if not output.committed:
            with output.part("none"):
                pass
        off = "" if config.render.enabled else "; rendering is off ([crawl.render] enabled)"
        return Report({"waiting": float(len(pages))}, note=f"pages that need a browser: {len(pages)}{off}")
    begin = time.monotonic()
    asyncio.run(_render(config, inputs, output, pages))
    write_targets(output, config.max_depth)
    rendered = sum(record.rows_out for record in output.committed.values())
    return Report(
        {"waiting": float(len(pages)), "seconds": time.monotonic() - begin},
        note=f"{rendered} of {len(pages)} pages rendered",
    )


async def _render(config: CrawlConfig, inputs: Inputs, output: Output, pages: Sequence[QueuedPage]) -> None:
    with _cancel_on_sigterm(output):
        await RenderTask(config, inputs, output).run(pages)


@contextlib.contextmanager
def _cancel_on_sigterm(output: Output) -> Iterator[None]:
    """Cancels the current task on SIGTERM: browsers are closed, committed parts are kept.

    Raises:
        StoppedError: the task was canceled.
    """
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
            f"the rendering of {output.address} was stopped; {len(output.committed)} parts are committed",
            "run it again to resume after them",
        ) from None
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


class RenderTask:
    """Renders the queue of one partition, part by part; must be created while the event loop runs."""

    def __init__(self, config: CrawlConfig, inputs: Inputs, output: Output) -> None:
        try:
            # Imported here, because only rendering needs Playwright.
            from tasks.stages.crawl.render.browser import Browser
        except ImportError as error:
            cause = f"rendering needs the package playwright ({error})"
            raise InputError(cause, "pip install 'sluice[render]'") from None
        self._config = config
        self._segment = inputs["segment"]
        self._output = output
        self._scope = scope_of(config, inputs["seeds"])
        self._agent = agent_of(config)
        self._policy = Policy.of(config, self._segment)
        signer = request_signer(config.signature)
        self._clocks = CooldownStore(output)
        self._politeness = Politeness(config, self._clocks, self._policy)
        self._client = Client(config, begin=self._politeness.begin, policy=self._policy, signer=signer)
        # What the other files of a site say was decided when its pages were fetched.
        self._rules = HostRules(self._client, self._politeness, config, {"robots"}.intersection(config.ai_optouts))
        self._load_hosts()
        grants = Grants(config.allow_hosts, allow_loopback=config.allow_loopback)
        self._guard = AddressGuard(CachingResolver(config.name_servers), grants, self._policy)
        self._browser = Browser(config.render, self._agent, self._guard, output.scratch)
        self._parser = PageParser(config.user_agent)
        self._deadline = time.monotonic() + config.time_box_s
        self._done = self._total = 0

    def _load_hosts(self) -> None:
        """Loads the state of the hosts at the end of the fetch: politeness clocks and robots.txt."""
        files, table = self._segment.files, self._segment.table
        self._politeness.load(clock_of(row) for path in files(HOSTS) for row in table(path).to_pylist())
        for path in files(RULES):
            self._rules.load(rules_of(table(path)))

    async def run(self, pages: Sequence[QueuedPage]) -> None:
        """Renders the pages whose parts are not committed yet; pages above the cap are only logged."""
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._clocks.close)
            stack.push_async_callback(self._parser.close)
            stack.push_async_callback(self._guard.close)
            await stack.enter_async_context(self._policy.watch(self._politeness.adjust))
            await stack.enter_async_context(self._client)
            await stack.enter_async_context(self._browser)
            await self._render_parts(pages)

    async def _render_parts(self, pages: Sequence[QueuedPage]) -> None:
        self._total = len(pages)
        cap, size = self._config.render.max_pages, self._config.render.pages_per_part
        chosen, rest = pages[:cap], pages[cap:]
        for name in {page.host for page in chosen}:
            # The fetch, or an earlier attempt of this task, may have sent a request to the host a moment ago.
            self._politeness.start_pause(self._politeness.host(name))
        for number, begin in enumerate(range(0, len(chosen), size)):
            await self._part(f"rendered-{number:05d}", chosen[begin : begin + size])
        if rest and "left" not in self._output.committed:
            with self._files("left") as files:
                for page in rest:
                    files.note(_outcome(page, RETRY, OVER_CAP))

    async def _part(self, name: str, pages: Sequence[QueuedPage]) -> None:
        if name in self._output.committed:
            self._done += len(pages)
            return
        with self._files(name) as files:
            await self._render_pages(pages, files)

    @contextlib.contextmanager
    def _files(self, name: str) -> Iterator[PartFiles]:
        """Yields the files of a new part, and commits it."""
        with self._output.part(name) as part:
            files = PartFiles(part, f"{part.name}-{part.attempt}", self._config, self._agent)
            try:
                yield files
            except BaseException as error:
                files.abandon(error)
                raise
            files.finish()

    async def _render_pages(self, pages: Sequence[QueuedPage], files: PartFiles) -> None:
        queues: dict[str, deque[QueuedPage]] = defaultdict(deque)
        for page in pages:
            queues[page.host].append(page)
        ready = [(self._politeness.host(name).next_at, name) for name in queues]
        heapq.heapify(ready)

        async def work() -> None:
            while ready:
                _, name = heapq.heappop(ready)
                page = queues[name].popleft()
                self._add(files, page, *await self._render_page(page))
                self._done += 1
                self._output.progress(self._done, self._total, page.url)
                if queues[name]:
                    heapq.heappush(ready, (self._politeness.host(name).next_at, name))

        workers = [asyncio.ensure_future(work()) for _ in range(min(self._config.render.concurrency, len(queues)))]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    def _add(self, files: PartFiles, page: QueuedPage, outcome: Outcome, html: bytes, notes: dict[str, str]) -> None:
        """Adds the outcome of a page; `html` is stored if the outcome is a success."""
        if outcome.status in CAPTURED:
            notes = {"software": f"Chromium/{self._browser.version}", "hopsFromSeed": str(page.depth), **notes}
            when = outcome.fetched_at or datetime.now(UTC)
            outcome = files.with_record(
                outcome, files.warc.conversion(page.url, when, html, MIME, page.record_id, notes)
            )
        files.note(outcome)

    async def _render_page(self, page: QueuedPage) -> _Result:
        try:
            reason = await self._skip_reason(page)
            if reason:
                return _outcome(page, GONE if reason in (DENIED, AI_OPTOUT) else RETRY, reason), b"", {}
            return await self._render_capture(page)
        except PageError as error:
            log.info("%s is not rendered: %s (%s)", page.url, error.reason, error)
            return _outcome(page, RETRY, error.reason, str(error)), b"", {}
        except (ValueError, LookupError, ArithmeticError, RecursionError, TypeError) as error:
            log.exception("%s cannot be rendered", page.url)
            return _outcome(page, GONE, POISON, f"{type(error).__name__}: {error}"), b"", {}

    async def _skip_reason(self, page: QueuedPage) -> str | None:
        """Returns the reason why a page must not be rendered now, or None."""
        host = self._politeness.host(page.host)
        if skip_reason := self._policy.skip_reason(page.host):
            return skip_reason
        if self._policy.pauses(page.host):
            return HOST_PAUSED
        if max(time.monotonic(), host.next_at) > self._deadline:
            return OVER_TIME
        while (ruling := await self._rules.ruling(page.url)) is None:
            if host.next_at > self._deadline:
                return OVER_TIME
            await self._politeness.wait_pause(host)
        if reason := host.skip_reason or ruling.denied:
            return reason
        # The robots.txt may have set a Crawl-delay.
        return OVER_TIME if host.next_at > self._deadline else None

    async def _render_capture(self, page: QueuedPage) -> _Result:
        capture = await asyncio.to_thread(read_capture, self._segment, page, self._config.max_body_bytes)
        async with self._politeness.turn(self._politeness.host(page.host)):
            begin, when = time.monotonic(), datetime.now(UTC)
            rendered = await self._browser.render(capture, lambda url: self._allowed(page, url))
            seconds = time.monotonic() - begin
        outcome = _outcome(page, SUCCESS, "")._replace(fetched_at=when, bytes=len(rendered.document.html))
        notes = {
            "renderTimeMs": str(round(seconds * 1000)),
            "requests": str(rendered.document.requests),
            "bytesReceived": str(rendered.received),
            "cameToRest": "yes" if rendered.document.complete and not rendered.spent else "no",
        }
        return await self._with_links(outcome, capture, rendered), rendered.document.html, notes

    def _allowed(self, page: QueuedPage, url: str) -> bool:
        """Returns whether a page may request a URL: robots.txt decides for its own origin, others are allowed."""
        return origin_of(url) != origin_of(page.url) or bool(self._rules.allows(url))

    async def _with_links(self, outcome: Outcome, capture: CapturedPage, rendered: "RenderResult") -> Outcome:
        """Returns the outcome with the links of the rendered page, and with the reason if the page is not kept."""
        document = rendered.document
        base = canonical(document.url)
        if base is None or authority(base) != outcome.host:
            base = outcome.url
        tags = [value for name, value in capture.headers if name.lower() == "x-robots-tag"]
        from_headers = directives(tags, self._config.user_agent)
        page = await self._parser.read(document.html, base, from_headers, "utf-8")
        if page.unread:
            log.warning("%s is kept without its links: %s", outcome.url, page.unread)
        targets = dict.fromkeys((*map(link, document.leads), *page.links))
        covered = (self._policy.rewritten(to) for to in targets if self._scope.covers(to.url, to.host))
        links = tuple(dict.fromkeys(covered))
        outcome = outcome._replace(outlinks=links, canonical=canonical_of(page, capture.headers, outcome.url))
        if page.noindex:
            return outcome._replace(status=GONE, reason="noindex")
        if opted_out(self._config.ai_optouts, capture.headers, from_headers, page):
            return outcome._replace(status=GONE, reason=AI_OPTOUT)
        return outcome


def _outcome(page: QueuedPage, status: str, reason: str, error: str = "") -> Outcome:
    return Outcome(
        key=key(page.url),
        url=page.url,
        host=page.host,
        depth=page.depth,
        status=status,
        reason=reason,
        requested=status == SUCCESS,
        http_status=200 if status == SUCCESS else None,
        mime="text/html",
        render=True,
        fetched_at=datetime.now(UTC),
        error=error[:500],
    )
