"""Classification of response bodies (status 200 or 203): type, permission to keep them, and links.

HTML pages, sitemaps and feeds are parsed; other types are judged by their headers only. Servers send sitemaps with any
media type, so the body decides: of what robots.txt or an index names as a sitemap, always, and of other pages if they
begin like a sitemap or feed. A parser error does not fail the fetch: the page is kept without links, and the error is
logged. Two heuristics apply to HTML pages: whether a page
needs a browser to show its text (`needs_browser`), and whether it is an error page with status 200 (`is_soft_404`).
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import NamedTuple

from tasks.formats.warc.record import PAGE_STATUSES
from tasks.formats.web.content_encoding import DecodedStream, decode
from tasks.formats.web.domain import Link, link, owner_of
from tasks.formats.web.media_type import HTML_TYPES, XHTML, MediaType, listing_of, media_type
from tasks.formats.web.robots_tag import Directives, directives
from tasks.formats.web.scope import Scope
from tasks.formats.web.url import authority, key, origin_of
from tasks.formats.web.xhtml import html_of_xhtml
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.hosts.rules import AI_OPTOUT, Licensing, Ruling
from tasks.stages.crawl.http.client import Response
from tasks.stages.crawl.http.response import Headers
from tasks.stages.crawl.page.links import TEXT_ENOUGH, ParsedPage, canonical_of, scan_directives
from tasks.stages.crawl.page.parser import PageParser, describe_error
from tasks.stages.crawl.page.sitemap import MAX_BYTES, MAX_FEED_BYTES, SitemapEntry, read_feed, read_sitemap
from tasks.stages.crawl.page.terms import header_licenses, opted_out
from tasks.stages.crawl.storage.fetchlog import FEED, PAGE, SITEMAP

log = logging.getLogger("sluice.crawl")

DUPLICATE = "duplicate"
"""Reason for a page with the same bytes as another page of its host, which the revisit record refers to."""

SOFT_404 = "soft_404"
# A page with more text than this has content, whatever its title.
SOFT_404_TEXT = 1024

ENOUGH_TEXT = 1000
"""Characters of text from which a page is considered readable without a browser."""

_HTML = (*HTML_TYPES, "")
_FEEDS = ("application/rss+xml", "application/atom+xml", "application/rdf+xml", "application/feed+json")
_XML = ("application/xml", "text/xml")
_PACKED = ("application/gzip", "application/x-gzip")
# Names of sitemaps that no robots.txt or index read in this fetch task has named, such as those of an earlier cycle.
_LIKE_SITEMAP = re.compile(r"/[^/?]*(?:\.xml(?:\.gz)?|sitemap[^/?]*\.gz)(?:\?|$)", re.I)

_HEAD = 4096
MOST_NAMED = 500_000
"""Sitemaps whose names are kept, at about 100 bytes each; one index may name 50,000."""

# Tolerance for clock differences and dates without a time zone; dates further in the future are ignored.
_FUTURE_TOLERANCE = timedelta(days=1)

_PHRASES = (
    r"(?:page|file|document|url|site|content|article|product|post) (?:was |is |could |can ?)?not (?:be )?found",
    r"not found$",
    r"^not found",
    r"(?:page|file|article|product) (?:does not|doesn.t|no longer) exist",
    r"(?:error|http|status|fehler|erreur|ошибка|erro|errore|fout|błąd|エラー)[ :#-]{0,3}404\b",
    r"^404\b",
    r"\b404[ :|–-]{0,3}(?:error|not found|page|fehler|erreur|ошибка)",
    r"seite (?:wurde )?(?:leider )?nicht gefunden|nicht gefunden$",  # German
    r"page (?:introuvable|non trouvée|inexistante)|introuvable$",  # French
    r"página no (?:encontrada|existe)|no se (?:ha )?encontr(?:ó|ado) la página",  # Spanish
    r"página (?:não|nao) (?:foi )?(?:encontrada|existe)",  # Portuguese
    r"pagina (?:non|nu a fost|niet) (?:trovata|găsită|gevonden)",  # Italian, Romanian, Dutch
    r"nie (?:znaleziono|odnaleziono)|nie została (?:znaleziona|odnaleziona)|strona nie istnieje",  # Polish
    r"страниц[аы] не (?:найден|существует)|сторінк[ауи] не (?:знайден|існує)",  # Russian, Ukrainian
    r"страницата не е намерена|stranica nije pronađena|страница није пронађена",  # Bulgarian, Serbo-Croatian
    r"strán(?:ka|ku) (?:nebyla |nebola |sa )?(?:nenalezen|nenájden|nepodarilo)|nenalezena$",  # Czech, Slovak
    r"sidan (?:hittades inte|kunde inte hittas|finns inte)|siden (?:ble|blev|finnes|findes) ikke",  # Swedish, others
    r"sivua ei (?:löyd|löyt)|oldal nem található",  # Finnish, Hungarian
    r"sayfa bulunamadı|η σελίδα δεν βρέθηκε",  # Turkish, Greek
    r"halaman tidak (?:ditemukan|dijumpai)|không tìm thấy trang|trang không tồn tại",  # Indonesian, Malay, Vietnamese
    r"ページが見つかりません|ページは見つかりません|お探しのページ",  # Japanese
    r"页面(?:不存在|未找到|没有找到)|找不到(?:页面|網頁|网页|頁面)|頁面不存在|您访问的页面",  # Chinese
    r"페이지를 찾을 수 없|존재하지 않는 페이지",  # Korean
    r"الصفحة غير موجودة|لم يتم العثور على الصفحة",  # Arabic
    r"صفحه (?:مورد نظر )?(?:یافت|پیدا) نشد|הדף לא נמצא|העמוד לא נמצא",  # Persian, Hebrew
    r"पृष्ठ नहीं मिला|पेज नहीं मिला|ไม่พบหน้า|পৃষ্ঠা পাওয়া যায়নি",  # Hindi, Thai, Bengali
)
_ERROR_TITLE = re.compile("|".join(_PHRASES), re.I)

_SPA_BYTES = 256 << 10
_FEW_CHARS = 400
_SCRIPT_SHARE = 0.5

# Root elements of frameworks: React, Next, Nuxt, Vue, Gatsby, Svelte, Ember. All repetitions are bounded: on hostile
# input an unbounded one takes quadratic time.
_CONTAINER = re.compile(
    rb"""<(?:div|main|section|body)\b[^<>]{0,500}?\bid\s{0,9}=\s{0,9}["']?"""
    rb"""(?:root|app|__next|__nuxt|___gatsby|svelte|ember-root|react-root|app-root)["'\s>][^<>]{0,500}""",
    re.I,
)
_EMPTY = re.compile(rb">?(?:\s|<!--[^<>]{0,200}-->){0,200}</(?:div|main|section|body)", re.I)
_COMPONENT = re.compile(rb"<([a-z][a-z0-9]{0,30}-[a-z0-9-]{1,30})\b[^<>]{0,500}>\s{0,200}</\1\s{0,9}>", re.I)
_ANGULAR = re.compile(rb"<(?:html|body|div)\b[^<>]{0,500}?\b(?:data-)?ng-app\b", re.I)
_NOSCRIPT = re.compile(rb"<noscript\b[^<>]{0,200}>.{0,300}?javascript", re.I | re.S)
_SCRIPT = re.compile(rb"<script\b", re.I)
_SCRIPT_END = re.compile(rb"</script", re.I)


class PageComparison(NamedTuple):
    """Result of comparing a page with earlier pages.

    Attributes:
        reason: the reason not to store the page in full, or "".
        follow: whether its links are followed.
    """

    reason: str = ""
    follow: bool = True


ComparePage = Callable[[str, str, str, int], PageComparison]
"""Compares a page with earlier pages; the arguments are URL, payload digest, title and characters of text."""


@dataclass(frozen=True)
class ReadResult:
    """Result of reading a body.

    Attributes:
        reason: the reason why the body is not kept, or "".
        kind: "page", "sitemap" or "feed".
        outlinks: links in scope, without duplicates.
        lastmods: outlinks with their last change, as stated by a sitemap of their own domain.
        canonical: the page's rel="canonical" link, or "".
        render: whether the page needs a browser to show its text.
        terms: terms of use in the page itself, as (name, value).
        unread: the reason why the links could not be parsed, or "".
        title: see `ParsedPage.title`.
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
    """Classifies and parses response bodies.

    Args:
        config: settings of the crawl.
        parser: parses HTML within limits of time and memory.
        scope: links outside the scope are dropped.
        sitemaps: returns the sitemaps that the robots.txt for a URL names.
        compare: called for every page; detects copies and soft 404s.
        licensing: returns what RSL licenses, given by URL, say about a page.
    """

    def __init__(
        self,
        config: CrawlConfig,
        parser: PageParser,
        scope: Scope,
        sitemaps: Callable[[str], tuple[str, ...]],
        compare: ComparePage,
        licensing: Callable[[str, Sequence[str]], Awaitable[Licensing]],
    ) -> None:
        self._config = config
        self._parser = parser
        self._scope = scope
        self._sitemaps = sitemaps
        self._compare = compare
        self._licensing = licensing
        # Keys of the sitemaps that robots.txt files and indexes have named, and the origins of these robots.txt files.
        self._named: set[bytes] = set()
        self._origins: set[str] = set()
        self._list_slot = asyncio.Semaphore(1)
        self._accepted_types = {"", *config.mime_types}
        if config.feeds:
            self._accepted_types.update(_FEEDS, _XML)
        if config.sitemaps:
            self._accepted_types.update(_XML, _PACKED)

    def body_limit(self, url: str, status: int, headers: Headers) -> int:
        """Returns the maximum number of bytes to read of a body with this status and these headers; 0 for none."""
        mime = mime_of(headers)
        is_named = self._is_named(url)
        is_like = self._config.sitemaps and _LIKE_SITEMAP.search(url) is not None
        if status not in PAGE_STATUSES or not (mime in self._accepted_types or is_named or is_like):
            return 0
        limit = self._config.max_body_bytes
        # The limit of the sitemap protocol is higher than that of pages.
        is_list = self._config.sitemaps and mime in (*_XML, *_PACKED) and mime not in self._config.mime_types
        return max(limit, MAX_BYTES) if is_list or is_named else limit

    def _is_named(self, url: str) -> bool:
        """Returns whether a robots.txt or an index names a URL as a sitemap, whatever its media type is."""
        if not self._config.sitemaps:
            return False
        if (origin := origin_of(url)) not in self._origins:
            self._origins.add(origin)
            self._expect_sitemaps(self._sitemaps(url))
        return key(url) in self._named

    def _expect_sitemaps(self, urls: Iterable[str]) -> None:
        """Records URLs whose bodies are sitemaps, up to a limit; others are known by their content."""
        for url in islice(urls, MOST_NAMED - len(self._named)):
            self._named.add(key(url))

    async def read(self, url: str, response: Response, mime: str, ruling: Ruling) -> ReadResult:
        """Classifies and parses a body; `ruling` is what the files of its site say."""
        try:
            return await self._read(url, response, mime, ruling)
        except Exception as error:
            return await self._unread(url, response, mime, ruling, describe_error(error))

    async def _read(self, url: str, response: Response, mime: str, ruling: Ruling) -> ReadResult:
        is_page = mime in _HTML or mime in self._config.mime_types
        body = self._decoded(response, self._config.max_body_bytes if mime in _HTML else _HEAD) if is_page else b""
        if not is_page or self._is_named(url) or listing_of(body):
            # A large list takes a second and 100 MB, so it is parsed outside the event loop, one at a time.
            async with self._list_slot:
                listed = await asyncio.to_thread(self._list, url, response)
            if listed is not None or not is_page:
                return listed or ReadResult("mime")
        from_headers = directives(response.all("x-robots-tag"), self._config.user_agent)
        if mime in _HTML:
            return await self._page(url, response, body, from_headers, ruling)
        page = ParsedPage(noindex=from_headers.noindex)
        refused, terms = await self._refused(url, response, from_headers, page, ruling)
        reason = refused or self._compare(url, response.payload_digest, "", TEXT_ENOUGH).reason
        canonical = canonical_of(page, response.headers, url)
        return ReadResult(
            reason, outlinks=self._covered([canonical] if canonical else ()), canonical=canonical, terms=terms
        )

    async def refused_by_headers(self, url: str, response: Response) -> str:
        """Returns the reason why the headers exclude a page from the corpus, or ""."""
        from_headers = directives(response.all("x-robots-tag"), self._config.user_agent)
        page = ParsedPage(noindex=from_headers.noindex)
        return (await self._refused(url, response, from_headers, page, Ruling()))[0]

    async def _page(
        self, url: str, response: Response, html: bytes, from_headers: Directives, ruling: Ruling
    ) -> ReadResult:
        page = ParsedPage(noindex=from_headers.noindex)
        kind, charset = _media_type(response.headers)
        if html:
            page = await self._parser.read(html, url, from_headers, charset, kind == XHTML)
        if page.unread:
            _warn_unread(url, page.unread)
        as_html = html_of_xhtml(html[:_SPA_BYTES]) if kind == XHTML and page.text_chars < ENOUGH_TEXT else None
        render = needs_browser(as_html or html, page.text_chars)
        refused, terms = await self._refused(url, response, from_headers, page, ruling)
        # All pages of a single-page application have the same HTML, but they are not copies.
        if not refused and not render:
            refused, follow = self._compare(url, response.payload_digest, page.title, page.text_chars)
            if not follow:
                return ReadResult(refused, terms=terms, unread=page.unread)
        links = [target for target in page.links if self._scope.covers(target.url, target.host)]
        links += self._covered(page.feeds if self._config.feeds else ())
        canonical = canonical_of(page, response.headers, url)
        links += self._covered([canonical] if canonical else ())
        outlinks = tuple(dict.fromkeys(links))
        render = render and not refused
        return ReadResult(refused, PAGE, outlinks, (), canonical, render, terms, page.unread, page.title)

    def _list(self, url: str, response: Response) -> ReadResult | None:
        """Parses a body that may be a sitemap or a feed; returns None if it is neither."""
        if self._config.feeds and (entries := read_feed(self._decoded(response, MAX_FEED_BYTES), url)) is not None:
            return ReadResult(kind=FEED, outlinks=self._covered(entries))
        body = DecodedStream(response.body, ",".join(response.all("content-encoding")), MAX_BYTES)
        if self._config.sitemaps and (sitemap := read_sitemap(body, url)) is not None:
            if sitemap.left_out:
                log.warning("%d entries of the sitemap %s are used: %s", len(sitemap.entries), url, sitemap.left_out)
            if sitemap.kind == "index":
                self._expect_sitemaps(entry.url for entry in sitemap.entries)
            return self._sitemap_result(sitemap.entries, url)
        return None

    def _sitemap_result(self, entries: Iterable[SitemapEntry], url: str) -> ReadResult:
        """Returns the URLs of a sitemap, and the last changes of the pages of its own domain."""
        owner, latest = owner_of(authority(url)), datetime.now(UTC) + _FUTURE_TOLERANCE
        links, lastmods = [], []
        for entry in entries:
            if self._scope.covers(entry.url):
                target = link(entry.url)
                links.append(target)
                if entry.lastmod is not None and entry.lastmod <= latest and target.owner == owner:
                    lastmods.append((target, entry.lastmod))
        return ReadResult(kind=SITEMAP, outlinks=tuple(links), lastmods=tuple(lastmods))

    async def _refused(
        self, url: str, response: Response, from_headers: Directives, page: ParsedPage, ruling: Ruling
    ) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Returns the reason why a page is not kept, or "", and the terms in the page and in its own licenses."""
        if page.noindex:
            return "noindex", page.terms
        named = tuple(dict.fromkeys((*header_licenses(response.headers, url), *page.licenses)))
        own = await self._licensing(url, named) if named else Licensing()
        optout = opted_out(
            self._config.ai_optouts,
            response.headers,
            from_headers,
            page,
            reserved=ruling.reserved,
            # The license nearest to the page applies.
            licensed=ruling.licensed if own.permits is None else own.permits,
        )
        return AI_OPTOUT if optout else "", (*page.terms, *own.terms)

    def _covered(self, urls: Iterable[str]) -> tuple[Link, ...]:
        return tuple(link(url) for url in urls if self._scope.covers(url))

    async def _unread(self, url: str, response: Response, mime: str, ruling: Ruling, reason: str) -> ReadResult:
        """Returns the result for a body that could not be parsed: no links, and the directives found in its source."""
        _warn_unread(url, reason)
        from_headers = directives(response.all("x-robots-tag"), self._config.user_agent)
        try:
            body = self._decoded(response, self._config.max_body_bytes)
        except Exception:  # decoding may be the step that failed
            body = b""
        page = scan_directives(body, self._config.user_agent, from_headers, reason)
        refused, terms = await self._refused(url, response, from_headers, page, ruling)
        return ReadResult(refused, PAGE if mime in _HTML else SITEMAP, terms=terms, unread=reason)

    def _decoded(self, response: Response, limit: int) -> bytes:
        return decode(response.body, ",".join(response.all("content-encoding")), limit).data


def _warn_unread(url: str, reason: str) -> None:
    log.warning("%s is kept without its links: %s", url, reason)


def mime_of(headers: Headers) -> str:
    """Returns the media type of Content-Type in lower case, without parameters; "" if there is none."""
    return _media_type(headers).essence


def _media_type(headers: Headers) -> MediaType:
    return media_type(value for name, value in headers if name.lower() == "content-type")


def is_soft_404(title: str, text_chars: int, status: int = 200) -> bool:
    """Returns whether the title of a response with status 200 is that of an error page.

    Only short pages are considered, because an article about the error 404 is long. A short page whose title begins
    with "404" for another reason is a false positive.

    Args:
        title: title of the page.
        text_chars: characters of visible text (`ParsedPage.text_chars`).
        status: status of the HTTP response; only 200 can be a soft 404.

    >>> is_soft_404("404: page not found | Example", 300), is_soft_404("HTTP 404 - an encyclopedia", 1024)
    (True, False)
    """
    return status == 200 and text_chars < SOFT_404_TEXT and _ERROR_TITLE.search(title.strip()) is not None


def needs_browser(html: bytes, text_chars: int) -> bool:
    """Returns whether the text of a page seems to be generated by scripts, judged by the HTML as sent.

    Args:
        html: the decoded body; the first 256 KiB are examined.
        text_chars: characters of visible text without scripts.

    >>> needs_browser(b'<div id="root"></div><script src="/app.js"></script>', 0)
    True
    >>> needs_browser(b"<p>A short page.</p>", 13)
    False
    """
    if text_chars >= ENOUGH_TEXT:
        return False
    html = html[:_SPA_BYTES]
    if not _SCRIPT.search(html):
        return False
    container = _CONTAINER.search(html)
    if container and _EMPTY.match(html, container.end()):
        return True
    if text_chars >= _FEW_CHARS:
        return False
    # With so little text, a root element with a loading indicator or another sign of a framework is enough.
    if container or _COMPONENT.search(html) or _ANGULAR.search(html):
        return True
    return bool(_NOSCRIPT.search(html)) or _script_bytes(html) > _SCRIPT_SHARE * len(html)


def _script_bytes(html: bytes) -> int:
    total, position = 0, 0
    while begin := _SCRIPT.search(html, position):
        end = _SCRIPT_END.search(html, begin.end())
        position = end.end() if end else len(html)
        total += position - begin.start()
    return total
