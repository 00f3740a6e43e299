"""One visit to one URL: rules, pause, request, classification of the response, storage, and the record of its outcome.

Every URL ends as exactly one `Outcome`: a row of the log, news for the order of URLs, and a count of the fetch.
"""

import asyncio
import logging
import time
from collections.abc import Iterable
from datetime import UTC, datetime

from tasks.core.part import POISON
from tasks.formats.warc.record import PAGE_STATUSES
from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.domain import Link, link
from tasks.formats.web.url import authority, key, origin_of
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.frontier.order import UrlOrder
from tasks.stages.crawl.frontier.scheduler import VisitResult
from tasks.stages.crawl.frontier.traps import TRAPS
from tasks.stages.crawl.hosts.politeness import HOST_BACKOFF, HOST_FAILURES, HostState, Politeness, retry_after
from tasks.stages.crawl.hosts.rules import UNAVAILABLE, HostRules, Ruling
from tasks.stages.crawl.http.client import Client, FetchError, Response
from tasks.stages.crawl.page.reading import DUPLICATE as SAME
from tasks.stages.crawl.page.reading import Reader, mime_of
from tasks.stages.crawl.page.terms import header_terms, merge_terms, terms_json
from tasks.stages.crawl.policy import EVERY_S, HOST_DENIED, Policy
from tasks.stages.crawl.status import FetchProgress
from tasks.stages.crawl.storage.fetchlist import Candidate, EarlierCapture
from tasks.stages.crawl.storage.fetchlog import (
    CAPTURED,
    DUPLICATE,
    GONE,
    NOT_MODIFIED,
    PAGE,
    REDIRECT_PERMANENT,
    REDIRECT_TEMPORARY,
    RETRY,
    SUCCESS,
    Outcome,
)
from tasks.stages.crawl.storage.segment import SegmentWriter

log = logging.getLogger("sluice.crawl")

TRIES = 3
CUT_TRIES = 2
"""A body that is cut off twice is kept as it is: the server states a wrong length."""
PAYMENT = "payment_required"
"""An answer (402), not a failure: the page is not to be had without a contract."""

_TRANSIENT = frozenset({"timeout", "connect", "protocol", "dns"})


class Visitor:
    """Visits URLs and records every outcome.

    Args:
        config: the crawl's settings.
        client: sends requests.
        politeness: the hosts' clocks.
        rules: robots.txt and tdmrep.json by origin.
        reader: reads responses.
        order: source of the URLs; receives their outcomes.
        segment: takes captures, and a row for every outcome.
        policy: hosts that are denied, dropped or paused, and rewriting rules.
        watch: counts of the fetch.
        deadline: time of the monotonic clock up to which a visit waits for room in the local buffer.
    """

    def __init__(
        self,
        config: CrawlConfig,
        client: Client,
        politeness: Politeness,
        rules: HostRules,
        reader: Reader,
        order: UrlOrder,
        segment: SegmentWriter,
        policy: Policy,
        progress: FetchProgress,
        *,
        deadline: float,
    ) -> None:
        self._config = config
        self._client = client
        self._politeness = politeness
        self._rules = rules
        self._reader = reader
        self._order = order
        self._traps = order.traps
        self._segment = segment
        self._policy = policy
        self._progress = progress
        self._deadline = deadline
        self._tries: dict[str, int] = {}
        self._known_sites: set[str] = set()
        # Of earlier attempts: outcomes of URLs whose turn has not come yet, and links that are logged as traps.
        self._earlier: dict[str, Outcome] = {}
        self._logged: set[str] = set()

    async def visit(self, host: HostState, candidate: Candidate) -> VisitResult:
        """Tries one URL, and records the outcome unless the visit must be repeated."""
        if (outcome := self._earlier.pop(candidate.url, None)) is not None:
            self.replay(candidate, outcome)
            return VisitResult.SKIPPED
        ruling = await self._before(host, candidate)
        if isinstance(ruling, VisitResult):
            return ruling
        fetched_at = datetime.now(UTC)
        try:
            async with self._politeness.turn(host):
                fetched_at = datetime.now(UTC)
                response = await self._client.get(
                    candidate.url,
                    limit=self._config.max_body_bytes,
                    body_limit=self._reader.body_limit,
                    # Header and meta element may override the site's file: the whole page is needed.
                    headers={} if ruling.reserved else _conditions(candidate),
                    keep_partial=True,
                )
        except FetchError as error:
            if error.reason == HOST_DENIED:  # denied while it waited
                return self._skip(candidate, RETRY, HOST_DENIED)
            return self._failed(host, candidate, error.reason, str(error))
        if response.truncated == "disconnect" and self._tries.get(candidate.url, 0) + 1 < CUT_TRIES:
            return self._failed(host, candidate, "protocol", "the connection ends within the body")
        if response.status in (429, 503):
            return self._failed(host, candidate, f"http_{response.status}", "", response)
        self._politeness.succeeded(host)
        self._tries.pop(candidate.url, None)
        try:
            outcome = self._rewritten(await self._judged(candidate, response, fetched_at, ruling))
        except (ValueError, LookupError, ArithmeticError, RecursionError, TypeError) as error:
            log.exception("the answer of %s cannot be processed", candidate.url)
            outcome = _outcome(candidate, GONE, POISON, True, error=f"{type(error).__name__}: {error}")
        self._record(candidate, outcome)
        return VisitResult.DONE

    async def _before(self, host: HostState, candidate: Candidate) -> Ruling | VisitResult:
        """Returns what ends a visit before its request, or the site's rules for its URL."""
        try:
            async with asyncio.timeout(max(0.0, self._deadline - time.monotonic())):
                await self._segment.wait_for_space()
        except TimeoutError:
            return VisitResult.AGAIN
        located = await self._client.locate(candidate.url)
        if not self._politeness.ready(host, located.address):
            return VisitResult.AGAIN
        put_off = self._policy.skip_reason(host.authority) or host.skip_reason
        if reason := put_off or located.refused:
            return self._skip(candidate, RETRY if put_off else GONE, reason)
        if self._policy.pauses(host.authority):
            self._politeness.postpone(host, EVERY_S)
            return VisitResult.AGAIN
        ruling = await self._rules.ruling(candidate.url)
        if ruling is None:
            return VisitResult.AGAIN
        if ruling.denied:
            return self._skip(candidate, RETRY if ruling.denied == UNAVAILABLE else GONE, ruling.denied, ruling.detail)
        return ruling

    def replay(self, candidate: Candidate, outcome: Outcome) -> None:
        """Takes in what an earlier attempt of the task has made of a URL."""
        came = outcome.http_status in PAGE_STATUSES
        if came and outcome.reason != "mime":
            self._known_sites.add(origin_of(outcome.url))
        if came and outcome.status in CAPTURED and outcome.kind == PAGE and not outcome.render:
            self._traps.note(outcome.url, outcome.payload_digest)
        self._order.note(candidate, outcome)
        self._progress.count(outcome)

    def expect(self, outcomes: Iterable[Outcome]) -> None:
        """Takes outcomes of earlier attempts whose turn has not come yet; a visit to their URL replays them.

        Links that were logged as traps have no turn: they are not logged again.
        """
        for outcome in outcomes:
            if outcome.requested or outcome.reason not in TRAPS:
                self._earlier[outcome.url] = outcome
            else:
                self._logged.add(outcome.url)

    def log_refused(self) -> None:
        """Logs the links that are traps, unless an earlier attempt has."""
        for candidate, reason in self._order.refused:
            if candidate.url not in self._logged:
                self._segment.note(_outcome(candidate, GONE, reason, False))
            self._progress.errors[reason] += 1
        self._order.refused.clear()

    def _record(self, candidate: Candidate, outcome: Outcome) -> None:
        self._segment.note(outcome)
        self._progress.fetched += 1
        self._order.note(candidate, outcome)
        self._progress.count(outcome)
        self.log_refused()
        self._progress.report(self._politeness, self._segment.buffered)

    def _skip(self, candidate: Candidate, status: str, reason: str, why: str = "") -> VisitResult:
        """Records a URL that is not requested; `why` is text for the log."""
        self._record(candidate, _outcome(candidate, status, reason, False, why[:500]))
        return VisitResult.SKIPPED

    def _failed(
        self, host: HostState, candidate: Candidate, reason: str, detail: str, response: Response | None = None
    ) -> VisitResult:
        """Records a request without a usable answer; `response` is that of a busy host (429, 503)."""
        transient = response is not None or reason in _TRANSIENT
        if transient:
            pause = self._politeness.failed(host, retry_after(response.header("retry-after")) if response else None)
            tries = self._tries[candidate.url] = self._tries.get(candidate.url, 0) + 1
            patient = pause <= self._config.max_backoff_s
            if not patient or host.failures >= HOST_FAILURES:
                host.skip_reason = HOST_BACKOFF
                log.warning("%s is left for the next cycle: %s %s", host.authority, reason, detail)
            elif tries < TRIES:
                return VisitResult.AGAIN
        outcome = _outcome(candidate, RETRY if transient else GONE, reason, True, error=detail[:500])
        self._record(candidate, outcome._replace(http_status=response.status if response else None))
        return VisitResult.DONE

    async def _judged(self, candidate: Candidate, response: Response, fetched_at: datetime, ruling: Ruling) -> Outcome:
        """Returns what an answer means; writes it to the segment if it is kept."""
        outcome = _outcome(candidate, GONE, f"http_{response.status}", True)._replace(
            http_status=response.status,
            mime=mime_of(response.headers),
            bytes=len(response.body),
            fetched_at=fetched_at,
            etag=(response.header("etag") or "")[:1000],
            last_modified=(response.header("last-modified") or "")[:100],
            terms=terms_json(**ruling.terms, header=header_terms(response.headers)),
        )
        if response.status == 304 and candidate.earlier is not None and not ruling.reserved:
            if refused := self._reader.refused_by_headers(response):
                return outcome._replace(reason=refused)
            return self._revisited(candidate, candidate.earlier, response, outcome)
        if 300 <= response.status < 400:
            return _redirected(candidate, response, outcome)
        if response.status >= 500 or response.status == 408:
            return outcome._replace(status=RETRY)
        if response.status == 402:
            return outcome._replace(reason=PAYMENT)
        if response.status not in PAGE_STATUSES:
            return outcome
        return await self._read(candidate, response, outcome, ruling.reserved)

    async def _read(self, candidate: Candidate, response: Response, outcome: Outcome, reserved: bool) -> Outcome:
        """Returns what a page is; writes it to the segment if it is kept."""
        if response.truncated == "disconnect":
            outcome = outcome._replace(etag="", last_modified="")  # these are of the whole body
        if response.refresh and (target := canonical(response.refresh, candidate.url)):
            outcome = outcome._replace(redirect=target)
        if not self._reader.body_limit(response.status, response.headers):
            return outcome._replace(reason="mime")
        read = await self._reader.read(candidate.url, response, outcome.mime, reserved=reserved)
        links = read.outlinks + self._sitemaps(candidate.url)
        outcome = outcome._replace(
            reason=read.reason,
            outlinks=links,
            lastmods=read.lastmods,
            kind=read.kind,
            canonical=read.canonical,
            title=read.title,
            terms=merge_terms(outcome.terms, page=read.terms),
            unread=read.unread,
        )
        return outcome if read.reason not in ("", SAME) else self._stored(candidate, response, outcome, read.render)

    def _stored(self, candidate: Candidate, response: Response, outcome: Outcome, render: bool) -> Outcome:
        """Writes a page to the segment: in full, or as a reference to a capture with the same bytes."""
        digest = response.payload_digest
        if candidate.earlier and candidate.earlier.payload_digest == digest:
            unchanged = outcome._replace(status=NOT_MODIFIED, reason="")
            return self._segment.capture(candidate, response, unchanged, candidate.earlier)
        if outcome.reason:
            return self._duplicate(candidate, response, outcome, digest)
        return self._segment.capture(candidate, response, outcome._replace(status=SUCCESS, render=render))

    def _duplicate(self, candidate: Candidate, response: Response, outcome: Outcome, digest: str) -> Outcome:
        """Returns what becomes of a page with the bytes of another one: a revisit record of that one."""
        original = self._traps.original(candidate.url, digest)
        if original is None:
            return outcome
        same = outcome._replace(status=DUPLICATE, error=f"the same bytes as {original.url}"[:500])
        return self._segment.capture(candidate, response, same, original)

    def _rewritten(self, outcome: Outcome) -> Outcome:
        """Returns an outcome with its links as the hosts file has them written."""
        if not self._policy.rewrites:
            return outcome
        new = self._policy.rewritten
        target = new(link(outcome.redirect)).url if outcome.redirect else ""
        return outcome._replace(
            outlinks=tuple(dict.fromkeys(map(new, outcome.outlinks))),
            lastmods=tuple((new(to), lastmod) for to, lastmod in outcome.lastmods),
            canonical=new(link(outcome.canonical)).url if outcome.canonical else "",
            # A site that leads to the spelling that a rule takes back insists on it.
            redirect=target if target != outcome.url else outcome.redirect,
        )

    def _sitemaps(self, url: str) -> tuple[Link, ...]:
        """Returns the sitemaps of a site, as links of its first fetched page."""
        origin = origin_of(url)
        if not self._config.sitemaps or origin in self._known_sites:
            return ()
        self._known_sites.add(origin)
        return tuple(map(link, self._rules.sitemaps(url)))

    def _revisited(
        self, candidate: Candidate, earlier: EarlierCapture, response: Response, outcome: Outcome
    ) -> Outcome:
        # A 304 may omit the validators; those we sent are still valid.
        known = outcome._replace(
            status=NOT_MODIFIED,
            reason="",
            etag=outcome.etag or candidate.etag,
            last_modified=outcome.last_modified or candidate.last_modified,
        )
        return self._segment.capture(candidate, response, known, earlier)


def _redirected(candidate: Candidate, response: Response, outcome: Outcome) -> Outcome:
    location = response.location
    target = canonical(location, candidate.url) if location else None
    if target is None:
        return outcome._replace(reason="redirect_broken")
    permanent = response.status in (301, 308)
    status = REDIRECT_PERMANENT if permanent else REDIRECT_TEMPORARY
    return outcome._replace(status=status, reason="redirect", redirect=target)


def _outcome(candidate: Candidate, status: str, reason: str, requested: bool, error: str = "") -> Outcome:
    return Outcome(
        key=key(candidate.url),
        url=candidate.url,
        host=authority(candidate.url),
        depth=candidate.depth,
        status=status,
        reason=reason,
        requested=requested,
        fetched_at=datetime.now(UTC),
        error=error,
    )


def _conditions(candidate: Candidate) -> dict[str, str]:
    if candidate.earlier is None:
        return {}
    validators = {"If-None-Match": candidate.etag, "If-Modified-Since": candidate.last_modified}
    return {name: value for name, value in validators.items() if value}
