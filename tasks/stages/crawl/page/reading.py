"""Reading of a response with a page (status 200 or 203): its type, whether it may be kept, and its links.

HTML pages, sitemaps and feeds are parsed; of everything else only the headers count. A parser error does not fail the
fetch: the page is kept without links, and the log has the error.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from tasks.formats.warc.record import PAGE_STATUSES
from tasks.formats.web.content_encoding import Unpacked, decode
from tasks.formats.web.domain import Link, link, owner_of
from tasks.formats.web.robots_tag import Directives, directives
from tasks.formats.web.scope import Scope
from tasks.formats.web.url import authority
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.hosts.rules import AI_OPTOUT
from tasks.stages.crawl.http.client import Answer
from tasks.stages.crawl.http.response import Headers, content_type
from tasks.stages.crawl.page.feed import MAX_BYTES as FEED_BYTES
from tasks.stages.crawl.page.feed import read_feed
from tasks.stages.crawl.page.links import TEXT_ENOUGH, Page, refusals
from tasks.stages.crawl.page.optout import opted_out
from tasks.stages.crawl.page.parser import Parser, why
from tasks.stages.crawl.page.sitemap import MAX_BYTES, Entry, read_sitemap
from tasks.stages.crawl.page.spa import needs_browser
from tasks.stages.crawl.storage.fetchlog import FEED, PAGE, SITEMAP

log = logging.getLogger("sluice.crawl")

_HTML = ("text/html", "application/xhtml+xml", "")
_FEEDS = ("application/rss+xml", "application/atom+xml", "application/rdf+xml", "application/feed+json")
_XML = ("application/xml", "text/xml")
_PACKED = ("application/gzip", "application/x-gzip")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w.:-]+)", re.I)

# Clocks differ, and a date without a zone counts as UTC; dates further in the future are ignored.
_AHEAD = timedelta(days=1)

DUPLICATE = "duplicate"
"""Reason of a page with the bytes of another one of its host: a revisit record names that one."""


class Noted(NamedTuple):
    """What the pages before say about a page: a reason not to store it in full, or "", and whether its links count."""

    reason: str = ""
    follow: bool = True


NoteCopy = Callable[[str, str, str, int], Noted]
"""Receives (URL, payload digest, title, characters of text) of a page."""


@dataclass(frozen=True)
class Reading:
    """What became of a body.

    Attributes:
        reason: why it is not kept, or "".
        kind: page, sitemap or feed.
        outlinks: in scope, each once.
        lastmods: those of them with a last change in a sitemap of their own domain.
        canonical: the page's rel="canonical" link, or "".
        render: whether it takes a browser to show its text.
        terms: the page's own terms of use, as (name, value).
        unread: why the links could not be read, or "".
        title: see `Page.title`.
    """

    reason: str = ""
    kind: str = PAGE
    outlinks: tuple[Link, ...] = ()
    lastmods: tuple[tuple[Link, datetime], ...] = ()
    canonical: str = ""
    render: bool = False
    terms: tuple[tuple[str, str], ...] = ()
    unread: str = ""
    title: str = ""


class Reader:
    """Reads bodies.

    Args:
        config: the crawl's settings.
        parser: reads HTML under a time limit.
        scope: links outside it are dropped.
        sitemaps: returns the sitemaps that the robots.txt of a URL names.
        note: called for every page; detects copies and soft 404s.
    """

    def __init__(
        self,
        config: CrawlConfig,
        parser: Parser,
        scope: Scope,
        sitemaps: Callable[[str], tuple[str, ...]],
        note: NoteCopy,
    ) -> None:
        self._config = config
        self._parser = parser
        self._scope = scope
        self._sitemaps = sitemaps
        self._note = note
        self._one_list = asyncio.Semaphore(1)
        self._wanted = {"", *config.mime_types}
        if config.feeds:
            self._wanted.update(_FEEDS, _XML)
        if config.sitemaps:
            self._wanted.update(_XML, _PACKED)

    def worth(self, status: int, headers: Headers) -> int:
        """Returns by status and headers how many bytes of a body are worth taking, 0 for none."""
        mime = mime_of(headers)
        if status not in PAGE_STATUSES or mime not in self._wanted:
            return 0
        most = self._config.max_body_bytes
        # Sitemaps may be as long as their protocol allows, which is more than pages may.
        is_list = self._config.sitemaps and mime in (*_XML, *_PACKED) and mime not in self._config.mime_types
        return max(most, MAX_BYTES) if is_list else most

    async def read(self, url: str, answer: Answer, mime: str, *, reserved: bool) -> Reading:
        """Classifies a body; `reserved` is the site's tdmrep.json reservation."""
        try:
            return await self._read(url, answer, mime, reserved)
        except Exception as error:
            return self._unread(url, answer, mime, reserved, why(error))

    async def _read(self, url: str, answer: Answer, mime: str, reserved: bool) -> Reading:
        from_headers = directives(answer.all("x-robots-tag"), self._config.user_agent)
        if mime in _HTML:
            return await self._page(url, answer, from_headers, reserved)
        if mime in self._config.mime_types and not (mime == "text/plain" and url in self._sitemaps(url)):
            refused = self._refused(answer, from_headers, Page(noindex=from_headers.noindex), reserved)
            return Reading(refused or self._note(url, answer.payload_digest, "", TEXT_ENOUGH).reason)
        # Large ones take a second and 100 MB: not on the event loop, and one at a time.
        async with self._one_list:
            return await asyncio.to_thread(self._list, url, answer)

    def refused_by_headers(self, answer: Answer) -> str:
        """Returns why a response without a body excludes its page from the corpus, or ""."""
        from_headers = directives(answer.all("x-robots-tag"), self._config.user_agent)
        return self._refused(answer, from_headers, Page(noindex=from_headers.noindex), reserved=False)

    async def _page(self, url: str, answer: Answer, from_headers: Directives, reserved: bool) -> Reading:
        html = self._decoded(answer, self._config.max_body_bytes)
        page = Page(noindex=from_headers.noindex)
        if html:
            charset = _CHARSET.search(content_type(answer.headers))
            page = await self._parser.read(html, url, from_headers, charset[1] if charset else "")
        if page.unread:
            _tell(url, page.unread)
        render = needs_browser(html, page.text_chars)
        refused = self._refused(answer, from_headers, page, reserved)
        # All pages of a single-page application have the same shell, but are not copies.
        if not refused and not render:
            refused, follow = self._note(url, answer.payload_digest, page.title, page.text_chars)
            if not follow:
                return Reading(refused, terms=page.terms, unread=page.unread)
        links = [one for one in page.links if self._scope.covers(one.url, one.host)]
        links += self._covered(page.feeds if self._config.feeds else ())
        named = page.canonical if page.canonical != url else ""
        links += self._covered([named] if named else ())
        outlinks = tuple(dict.fromkeys(links))
        render = render and not refused
        return Reading(refused, PAGE, outlinks, (), named, render, page.terms, page.unread, page.title)

    def _list(self, url: str, answer: Answer) -> Reading:
        """Reads what may be a sitemap or a feed."""
        if self._config.feeds and (entries := read_feed(self._decoded(answer, FEED_BYTES), url)) is not None:
            return Reading(kind=FEED, outlinks=self._covered(entries))
        body = Unpacked(answer.body, ",".join(answer.all("content-encoding")), MAX_BYTES)
        if self._config.sitemaps and (found := read_sitemap(body, url)) is not None:
            if found.left_out:
                log.warning("the sitemap %s gives %d addresses: %s", url, len(found.entries), found.left_out)
            return self._of_sitemap(found.entries, url)
        return Reading("mime")

    def _of_sitemap(self, entries: Iterable[Entry], url: str) -> Reading:
        """Returns the URLs of a sitemap, and the last changes of pages of its own domain."""
        owner, latest = owner_of(authority(url)), datetime.now(UTC) + _AHEAD
        links, lastmods = [], []
        for entry in entries:
            if self._scope.covers(entry.url):
                to = link(entry.url)
                links.append(to)
                if entry.lastmod is not None and entry.lastmod <= latest and to.owner == owner:
                    lastmods.append((to, entry.lastmod))
        return Reading(kind=SITEMAP, outlinks=tuple(links), lastmods=tuple(lastmods))

    def _refused(self, answer: Answer, from_headers: Directives, page: Page, reserved: bool) -> str:
        if page.noindex:
            return "noindex"
        out = opted_out(self._config.ai_optouts, answer.headers, from_headers, page, reserved=reserved)
        return AI_OPTOUT if out else ""

    def _covered(self, urls: Iterable[str]) -> tuple[Link, ...]:
        return tuple(link(url) for url in urls if self._scope.covers(url))

    def _unread(self, url: str, answer: Answer, mime: str, reserved: bool, reason: str) -> Reading:
        """Returns a body without links, unless headers or source forbid storing it."""
        _tell(url, reason)
        from_headers = directives(answer.all("x-robots-tag"), self._config.user_agent)
        try:
            body = self._decoded(answer, self._config.max_body_bytes)
        except Exception:  # perhaps this is what raised
            body = b""
        page = refusals(body, self._config.user_agent, from_headers, reason)
        refused = self._refused(answer, from_headers, page, reserved)
        return Reading(refused, PAGE if mime in _HTML else SITEMAP, terms=page.terms, unread=reason)

    def _decoded(self, answer: Answer, limit: int) -> bytes:
        return decode(answer.body, ",".join(answer.all("content-encoding")), limit).data


def _tell(url: str, reason: str) -> None:
    log.warning("%s is kept without its links: %s", url, reason)


def mime_of(headers: Headers) -> str:
    """Returns the content type without its parameters, in lower case; "" where there is none."""
    return content_type(headers).partition(";")[0].strip().lower()
