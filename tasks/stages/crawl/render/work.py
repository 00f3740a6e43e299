"""The work of one render task: scheduling, classification of rendered pages, storage.

One page of a host at a time, and after each the host's pause, as between two requests of fetch: at least `delay_s`, the
Crawl-delay, and `latency_factor` times what its pages take. Within a page the browser sends requests like any
visitor's. robots.txt of the page's own host applies to all requests to that host; for other hosts it is not checked,
since the resources of a page belong to the page.
"""

import asyncio
import heapq
import logging
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from datetime import UTC, datetime

from tasks.core.artifact import Artifact
from tasks.core.part import POISON
from tasks.core.stage import Output, Part
from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.domain import link
from tasks.formats.web.robots_tag import directives
from tasks.formats.web.scope import Scope
from tasks.formats.web.url import authority, key, origin_of
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.hosts.politeness import Politeness
from tasks.stages.crawl.hosts.rules import AI_OPTOUT, DENIED, HostRules
from tasks.stages.crawl.page.parser import Parser
from tasks.stages.crawl.page.terms import opted_out
from tasks.stages.crawl.policy import HOST_PAUSED, Policy
from tasks.stages.crawl.render.browser import Browser, PageError, Rendered
from tasks.stages.crawl.render.stage import RenderedPart, Source, Waiting, source
from tasks.stages.crawl.storage.fetchlog import GONE, RETRY, SUCCESS, Outcome

log = logging.getLogger("sluice.crawl")

OVER_CAP = "render_cap"
OVER_TIME = "render_time_box"

_Result = tuple[Outcome, bytes, dict[str, str]]


class Work:
    """Renders a queue part by part.

    Args:
        config: the crawl's settings.
        segment: where the captures are.
        output: the artifact being written.
        browser: shows pages.
        politeness: the hosts' clocks.
        rules: robots.txt by origin.
        scope: links outside it are dropped.
        agent: the User-Agent.
        policy: denied hosts.
    """

    def __init__(
        self,
        config: CrawlConfig,
        segment: Artifact,
        output: Output,
        browser: Browser,
        politeness: Politeness,
        rules: HostRules,
        scope: Scope,
        agent: str,
        policy: Policy,
    ) -> None:
        self._config = config
        self._segment = segment
        self._output = output
        self._browser = browser
        self._politeness = politeness
        self._rules = rules
        self._agent = agent
        self._policy = policy
        self._scope = scope
        self._parser = Parser(config.user_agent)
        self._deadline = time.monotonic() + config.time_box_s
        self._done = self._total = 0

    async def run(self, pages: Sequence[Waiting]) -> None:
        """Renders the pages whose parts are not committed yet; pages above the cap are only logged."""
        self._total = len(pages)
        most, size = self._config.render.max_pages, self._config.render.pages_per_part
        chosen, rest = pages[:most], pages[most:]
        for name in {page.host for page in chosen}:
            # The fetch or an earlier attempt of this task may just have sent a request to it.
            self._politeness.rest(self._politeness.host(name))
        try:
            for number, begin in enumerate(range(0, len(chosen), size)):
                await self._part(f"rendered-{number:05d}", chosen[begin : begin + size])
            if rest:
                self._leave("left", rest)
        finally:
            await self._parser.close()

    async def _part(self, name: str, pages: Sequence[Waiting]) -> None:
        if name in self._output.committed:
            self._done += len(pages)
            return
        with self._output.part(name) as part, self._files(part) as files:
            await self._all(pages, files)

    def _leave(self, name: str, pages: Sequence[Waiting]) -> None:
        if name not in self._output.committed:
            with self._output.part(name) as part, self._files(part) as files:
                for page in pages:
                    files.add(page, _outcome(page, RETRY, OVER_CAP), b"", {})

    def _files(self, part: Part) -> RenderedPart:
        return RenderedPart(part, self._config, self._agent, f"Chromium/{self._browser.version}")

    async def _all(self, pages: Sequence[Waiting], files: RenderedPart) -> None:
        left: dict[str, deque[Waiting]] = defaultdict(deque)
        for page in pages:
            left[page.host].append(page)
        ready = [(self._politeness.host(name).next_at, name) for name in left]
        heapq.heapify(ready)

        async def work() -> None:
            while ready:
                _, name = heapq.heappop(ready)
                page = left[name].popleft()
                files.add(page, *await self._one(page))
                self._done += 1
                self._output.progress(self._done, self._total, page.url)
                if left[name]:
                    heapq.heappush(ready, (self._politeness.host(name).next_at, name))

        workers = [asyncio.ensure_future(work()) for _ in range(min(self._config.render.concurrency, len(left)))]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _one(self, page: Waiting) -> _Result:
        try:
            reason = await self._obstacle(page)
            if reason:
                return _outcome(page, GONE if reason in (DENIED, AI_OPTOUT) else RETRY, reason), b"", {}
            return await self._rendered(page)
        except PageError as error:
            log.info("%s is not rendered: %s (%s)", page.url, error.reason, error)
            return _outcome(page, RETRY, error.reason, str(error)), b"", {}
        except (ValueError, LookupError, ArithmeticError, RecursionError, TypeError) as error:
            log.exception("%s cannot be rendered", page.url)
            return _outcome(page, GONE, POISON, f"{type(error).__name__}: {error}"), b"", {}

    async def _obstacle(self, page: Waiting) -> str | None:
        """Returns why a page is not to be shown now, or None."""
        host = self._politeness.host(page.host)
        if withheld := self._policy.withheld(page.host):
            return withheld
        if self._policy.pauses(page.host):
            return HOST_PAUSED
        if max(time.monotonic(), host.next_at) > self._deadline:
            return OVER_TIME
        while not self._rules.known(page.url):
            await self._rules.look_up(page.url)
            if not self._rules.known(page.url):
                await self._politeness.rested(host)
        if reason := host.given_up or self._rules.verdict(page.url):
            return reason
        # A Crawl-delay may just have become known.
        return OVER_TIME if host.next_at > self._deadline else None

    async def _rendered(self, page: Waiting) -> _Result:
        captured = await asyncio.to_thread(source, self._segment, page, self._config.max_body_bytes)
        async with self._politeness.turn(self._politeness.host(page.host)):
            begin, when = time.monotonic(), datetime.now(UTC)
            rendered = await self._browser.render(captured, lambda url: self._allowed(page, url))
            seconds = time.monotonic() - begin
        outcome = _outcome(page, SUCCESS, "")._replace(fetched_at=when, bytes=len(rendered.shown.html))
        notes = {
            "renderTimeMs": str(round(seconds * 1000)),
            "requests": str(rendered.shown.requests),
            "bytesReceived": str(rendered.received),
            "cameToRest": "yes" if rendered.shown.complete and not rendered.spent else "no",
        }
        return await self._judged(outcome, captured, rendered), rendered.shown.html, notes

    def _allowed(self, page: Waiting, url: str) -> bool:
        """Returns whether robots.txt allows `url`, if it is of the page's own origin."""
        if origin_of(url) != origin_of(page.url):
            return True
        return self._rules.known(url) and self._rules.verdict(url) != DENIED

    async def _judged(self, outcome: Outcome, captured: Source, rendered: Rendered) -> Outcome:
        """Returns the outcome with the links of the finished page, or with the reason why it is not kept."""
        shown = rendered.shown
        base = canonical(shown.url)
        if base is None or authority(base) != outcome.host:
            base = outcome.url
        tags = [value for name, value in captured.headers if name.lower() == "x-robots-tag"]
        from_headers = directives(tags, self._config.user_agent)
        read = await self._parser.read(shown.html, base, from_headers, "utf-8")
        if read.unread:
            log.warning("%s is kept without its links: %s", outcome.url, read.unread)
        found = dict.fromkeys((*map(link, shown.leads), *read.links))
        covered = (self._policy.rewritten(one) for one in found if self._scope.covers(one.url, one.host))
        links = tuple(dict.fromkeys(covered))
        outcome = outcome._replace(outlinks=links, canonical=read.canonical if read.canonical != outcome.url else "")
        if read.noindex:
            return outcome._replace(status=GONE, reason="noindex")
        if opted_out(self._config.ai_optouts, captured.headers, from_headers, read):
            return outcome._replace(status=GONE, reason=AI_OPTOUT)
        return outcome


def _outcome(page: Waiting, status: str, reason: str, error: str = "") -> Outcome:
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
