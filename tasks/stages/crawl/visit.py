"""One visit to one URL: rules, pause, request, classification of the response, and storage of the page.

Every URL ends with exactly one `Outcome`, which is logged, reported to the order of URLs, and counted.
"""

import asyncio
import logging
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from tasks.core.part import POISON
from tasks.formats.warc.record import PAGE_STATUSES
from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.domain import Link, link
from tasks.formats.web.url import host_of, origin_of
from tasks.stages.crawl.config import CrawlConfig, is_loopback
from tasks.stages.crawl.frontier.order import MAX_REDIRECTS, UrlOrder
from tasks.stages.crawl.frontier.scheduler import VisitResult
from tasks.stages.crawl.frontier.traps import TRAPS
from tasks.stages.crawl.hosts.politeness import HOST_BACKOFF, HOST_FAILURES, HostState, Politeness, retry_after
from tasks.stages.crawl.hosts.rules import UNAVAILABLE, HostRules, Ruling
from tasks.stages.crawl.http.client import Client, FetchError, Response
from tasks.stages.crawl.page.links import refresh_target
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
    NO_SITEMAP,
    NOT_MODIFIED,
    PAGE,
    REDIRECT_PERMANENT,
    REDIRECT_TEMPORARY,
    RETRY,
    SITEMAP,
    SUCCESS,
    Outcome,
)
from tasks.stages.crawl.storage.segment import SegmentWriter

log = logging.getLogger("sluice.crawl")

TRIES = 3
CUT_TRIES = 2
"""After this many tries, an incomplete body is kept: the server sends a wrong length."""
PAYMENT = "payment_required"
"""The reason for status 402, which is not a failure: the page requires a contract."""

# Of sites whose robots.txt names no sitemap; the second if the first is none.
_GUESSED = ("/sitemap.xml", "/sitemap_index.xml")
_TRANSIENT = frozenset({"timeout", "connect", "protocol", "dns"})


class Visitor:
    """Visits URLs and records every outcome.

    Args:
        config: the crawl's settings.
        client: sends requests.
        politeness: the hosts' clocks.
        rules: robots.txt, tdmrep.json and licenses, by origin.
        reader: reads responses.
        order: source of the URLs; receives their outcomes.
        segment: stores captures, and a row for every outcome.
        policy: hosts that are denied, dropped or paused, and rewriting rules.
        progress: counts of the fetch.
        deadline: time of the monotonic clock until which a visit waits for space in the local buffer.
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
        # Candidates whose site redirects to another spelling of the same URL, in that spelling, by key.
        self._respelled: dict[bytes, Candidate] = {}
        # Origins with a fetched page, whose sitemaps were listed.
        self._visited_sites: set[str] = set()
        # From earlier attempts: outcomes of URLs whose turn has not come yet, and links that are logged as traps.
        self._earlier: dict[bytes, Outcome] = {}
        self._logged_traps: set[bytes] = set()

    async def visit(self, host: HostState, candidate: Candidate) -> VisitResult:
        """Tries one URL, and records the outcome unless the visit must be repeated."""
        if (outcome := self._earlier.pop(candidate.link.key, None)) is not None:
            self.replay(candidate, outcome)
            return VisitResult.SKIPPED
        candidate = self._respelled.get(candidate.link.key, candidate)
        ruling = await self._check(host, candidate)
        if isinstance(ruling, VisitResult):
            return ruling
        fetched_at = datetime.now(UTC)
        try:
            async with self._politeness.turn(host):
                fetched_at = datetime.now(UTC)
                response = await self._client.get(
                    candidate.url,
                    limit=self._config.max_body_bytes,
                    body_limit=partial(self._reader.body_limit, candidate.url),
                    # The full page is needed, because its header or meta element may override the site's file.
                    headers={} if ruling.may_be_overridden else _conditions(candidate),
                    keep_partial=True,
                )
        except FetchError as error:
            if error.reason == HOST_DENIED:  # denied since the check in `_check`
                return self._skip(candidate, RETRY, HOST_DENIED)
            return self._fail(host, candidate, error.reason, str(error))
        if response.truncated == "disconnect" and self._tries.get(candidate.url, 0) + 1 < CUT_TRIES:
            return self._fail(host, candidate, "protocol", "the connection ends within the body")
        if response.status in (429, 503):
            return self._fail(host, candidate, f"http_{response.status}", "", response)
        self._politeness.succeeded(host)
        self._tries.pop(candidate.url, None)
        if candidate.hops < MAX_REDIRECTS and (spelling := _other_spelling(candidate, response)):
            self._respelled[spelling.key] = replace(candidate, link=spelling, hops=candidate.hops + 1)
            return VisitResult.AGAIN
        try:
            outcome = self._rewrite(await self._classify(candidate, response, fetched_at, ruling))
        except (ValueError, LookupError, ArithmeticError, RecursionError, TypeError) as error:
            log.exception("the response of %s cannot be processed", candidate.url)
            outcome = _outcome(candidate, GONE, POISON, True, error=f"{type(error).__name__}: {error}")
        self._record(candidate, outcome)
        return VisitResult.DONE

    async def _check(self, host: HostState, candidate: Candidate) -> Ruling | VisitResult:
        """Returns the site's rules for the URL, or the result of a visit that ends without a request for it."""
        try:
            async with asyncio.timeout(max(0.0, self._deadline - time.monotonic())):
                await self._segment.wait_for_space()
        except TimeoutError:
            return VisitResult.AGAIN
        endpoint = await self._client.locate(candidate.url)
        if not self._politeness.ready(host, endpoint.address):
            return VisitResult.AGAIN
        if skip_reason := self._policy.skip_reason(host.authority) or host.skip_reason:
            return self._skip(candidate, RETRY, skip_reason)
        if endpoint.refused:
            return self._skip(candidate, GONE, endpoint.refused)
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
        """Replays an outcome of an earlier attempt of the task."""
        is_page = outcome.http_status in PAGE_STATUSES
        if is_page and outcome.reason != "mime":
            self._visited_sites.add(origin_of(outcome.url))
        if is_page and outcome.status in CAPTURED and outcome.kind == PAGE and not outcome.render:
            self._traps.note(outcome.url, outcome.payload_digest)
        self._order.note(candidate, outcome)
        self._progress.count(outcome)

    def expect(self, outcomes: Iterable[Outcome]) -> None:
        """Stores outcomes of earlier attempts, to be replayed when their URLs are visited.

        Links that were logged as traps are never visited; they are not logged again.
        """
        for outcome in outcomes:
            if outcome.requested or outcome.reason not in TRAPS:
                self._earlier[outcome.key] = outcome
            else:
                self._logged_traps.add(outcome.key)

    def log_refused(self) -> None:
        """Logs links that are traps, unless an earlier attempt has logged them."""
        for candidate, reason in self._order.refused:
            if candidate.link.key not in self._logged_traps:
                self._segment.note(_outcome(candidate, GONE, reason, False))
            self._progress.errors[reason] += 1
        self._order.refused.clear()

    def _record(self, candidate: Candidate, outcome: Outcome) -> None:
        self._respelled.pop(outcome.key, None)
        self._segment.note(outcome)
        self._progress.fetched += 1
        self._order.note(candidate, outcome)
        self._progress.count(outcome)
        self.log_refused()
        self._progress.report(self._politeness, self._segment.buffered)

    def _skip(self, candidate: Candidate, status: str, reason: str, detail: str = "") -> VisitResult:
        """Records a URL that is not requested; `detail` is text for the log."""
        self._record(candidate, _outcome(candidate, status, reason, False, detail[:500]))
        return VisitResult.SKIPPED

    def _fail(
        self, host: HostState, candidate: Candidate, reason: str, detail: str, response: Response | None = None
    ) -> VisitResult:
        """Records a failed request; `response` is that of a busy host (429, 503), if any."""
        transient = response is not None or reason in _TRANSIENT
        if transient:
            pause = self._politeness.failed(host, retry_after(response.header("retry-after")) if response else None)
            tries = self._tries[candidate.url] = self._tries.get(candidate.url, 0) + 1
            if pause > self._config.max_backoff_s or host.failures >= HOST_FAILURES:
                host.skip_reason = HOST_BACKOFF
                log.warning("%s is left for the next cycle: %s %s", host.authority, reason, detail)
            elif tries < TRIES:
                return VisitResult.AGAIN
        outcome = _outcome(candidate, RETRY if transient else GONE, reason, True, error=detail[:500])
        self._record(candidate, outcome._replace(http_status=response.status if response else None))
        return VisitResult.DONE

    async def _classify(
        self, candidate: Candidate, response: Response, fetched_at: datetime, ruling: Ruling
    ) -> Outcome:
        """Returns the outcome of a response; writes the page to the segment if it is kept."""
        outcome = _outcome(candidate, GONE, f"http_{response.status}", True)._replace(
            http_status=response.status,
            mime=mime_of(response.headers),
            bytes=len(response.body),
            fetched_at=fetched_at,
            etag=(response.header("etag") or "")[:1000],
            last_modified=(response.header("last-modified") or "")[:100],
            terms=terms_json(**ruling.terms, header=header_terms(response.headers, candidate.url)),
        )
        if response.status == 304 and candidate.earlier is not None and not ruling.may_be_overridden:
            if refused := await self._reader.refused_by_headers(candidate.url, response):
                return outcome._replace(reason=refused)
            return self._store_revisit(candidate, candidate.earlier, response, outcome)
        if 300 <= response.status < 400:
            return _redirect_outcome(candidate, response, outcome)
        if response.status >= 500 or response.status == 408:
            return outcome._replace(status=RETRY)
        if response.status == 402:
            return outcome._replace(reason=PAYMENT)
        if response.status not in PAGE_STATUSES:
            return self._without_sitemap(outcome) if self._is_guess(candidate.url) else outcome
        return await self._read_page(candidate, response, outcome, ruling)

    async def _read_page(self, candidate: Candidate, response: Response, outcome: Outcome, ruling: Ruling) -> Outcome:
        """Returns the outcome of a page; writes it to the segment if it is kept."""
        if response.truncated == "disconnect":
            outcome = outcome._replace(etag="", last_modified="")  # they apply to the full body
        refresh = refresh_target(response.header("refresh") or "")
        if refresh and (target := canonical(refresh, candidate.url)):
            outcome = outcome._replace(redirect=target)
        if not self._reader.body_limit(candidate.url, response.status, response.headers):
            return outcome._replace(reason="mime")
        read = await self._reader.read(candidate.url, response, outcome.mime, ruling)
        if read.kind != SITEMAP and self._is_guess(candidate.url):
            return self._without_sitemap(outcome)
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
        return outcome if read.reason not in ("", SAME) else self._store(candidate, response, outcome, read.render)

    def _store(self, candidate: Candidate, response: Response, outcome: Outcome, render: bool) -> Outcome:
        """Writes a page to the segment: in full, or as a reference to a capture with the same bytes."""
        digest = response.payload_digest
        if candidate.earlier and candidate.earlier.payload_digest == digest:
            unchanged = outcome._replace(status=NOT_MODIFIED, reason="")
            return self._segment.capture(candidate, response, unchanged, candidate.earlier)
        if outcome.reason:
            return self._store_duplicate(candidate, response, outcome, digest)
        return self._segment.capture(candidate, response, outcome._replace(status=SUCCESS, render=render))

    def _store_duplicate(self, candidate: Candidate, response: Response, outcome: Outcome, digest: str) -> Outcome:
        """Writes a page with the bytes of another one as a revisit record of that one."""
        original = self._traps.original(candidate.url, digest)
        if original is None:
            return outcome
        same = outcome._replace(status=DUPLICATE, error=f"the same bytes as {original.url}"[:500])
        return self._segment.capture(candidate, response, same, original)

    def _rewrite(self, outcome: Outcome) -> Outcome:
        """Returns an outcome with its links rewritten by the rules of the hosts file."""
        if not self._policy.rewrites:
            return outcome
        rewritten = self._policy.rewritten
        target = rewritten(link(outcome.redirect)).url if outcome.redirect else ""
        return outcome._replace(
            outlinks=tuple(dict.fromkeys(map(rewritten, outcome.outlinks))),
            lastmods=tuple((rewritten(to), lastmod) for to, lastmod in outcome.lastmods),
            canonical=rewritten(link(outcome.canonical)).url if outcome.canonical else "",
            # If a rule undoes the redirect, the site requires the other spelling.
            redirect=target if target != outcome.url else outcome.redirect,
        )

    def _sitemaps(self, url: str) -> tuple[Link, ...]:
        """Returns the sitemaps of a site, as links of its first fetched page."""
        origin = origin_of(url)
        if not self._config.sitemaps or origin in self._visited_sites:
            return ()
        self._visited_sites.add(origin)
        named = self._rules.sitemaps(url)
        guess = origin + _GUESSED[0]
        return tuple(map(link, named or ((guess,) if self._is_guess(guess) else ())))

    def _is_guess(self, url: str) -> bool:
        """Returns whether a URL is where sitemaps often are, on a site whose robots.txt names none."""
        if not url.endswith(_GUESSED) or not self._config.sitemaps or self._rules.sitemaps(url):
            return False
        wanted = self._config.guess_sitemaps
        is_place = url.removeprefix(origin_of(url)) in _GUESSED
        return is_place and (not is_loopback(host_of(url)) if wanted is None else wanted)

    def _without_sitemap(self, outcome: Outcome) -> Outcome:
        """Returns the outcome of a guess without a sitemap, with a link to the next place."""
        origin = origin_of(outcome.url)
        number = _GUESSED.index(outcome.url.removeprefix(origin)) + 1
        following = tuple(link(origin + path) for path in _GUESSED[number : number + 1])
        return outcome._replace(status=GONE, reason=NO_SITEMAP, kind=SITEMAP, outlinks=following)

    def _store_revisit(
        self, candidate: Candidate, earlier: EarlierCapture, response: Response, outcome: Outcome
    ) -> Outcome:
        # A 304 may omit the validators; those of the request are still valid.
        unchanged = outcome._replace(
            status=NOT_MODIFIED,
            reason="",
            etag=outcome.etag or candidate.etag,
            last_modified=outcome.last_modified or candidate.last_modified,
        )
        return self._segment.capture(candidate, response, unchanged, earlier)


def _other_spelling(candidate: Candidate, response: Response) -> Link | None:
    """Returns the target of a redirect to another spelling of the same URL: the one that the site requires."""
    location = response.location if 300 <= response.status < 400 else None
    url = canonical(location, candidate.url) if location else None
    target = link(url) if url is not None and url != candidate.url else None
    return target if target is not None and target.key == candidate.link.key else None


def _redirect_outcome(candidate: Candidate, response: Response, outcome: Outcome) -> Outcome:
    location = response.location
    target = canonical(location, candidate.url) if location else None
    if target is None:
        return outcome._replace(reason="redirect_broken")
    permanent = response.status in (301, 308)
    status = REDIRECT_PERMANENT if permanent else REDIRECT_TEMPORARY
    return outcome._replace(status=status, reason="redirect", redirect=target)


def _outcome(candidate: Candidate, status: str, reason: str, requested: bool, error: str = "") -> Outcome:
    return Outcome(
        key=candidate.link.key,
        url=candidate.url,
        host=candidate.link.host,
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
