"""What an HTML page says to a crawler: outlinks, robots directives, its own address, feeds, title, how much text.

Reads the source of a page, made harmless (`defuse`), by selectolax (lexbor): 5,000 pages per CPU-second. The tree is
walked once for everything. Links are looked up in a table first: the menu of a site is the same on all its pages, so
that most links cost one look-up in place of a parse and two hashes.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from html import unescape
from itertools import islice

from selectolax.lexbor import LexborHTMLParser, LexborNode

from tasks.charset import with_source
from tasks.crawl.page.defuse import ANCHORS, as_written, defused
from tasks.crawl.url import MAX_URL, Link, canonical, link
from tasks.robots_tag import Directives, directives

MAX_LINKS = 5000
MAX_FEEDS = 10
# Of so many the first 5,000 different ones stand among the first; to read on would take seconds.
_MOST_HREFS = 10 * MAX_LINKS
TEXT_ENOUGH = 1024
_MAX_TITLE = 200
_MAX_HTML = 4 << 20
_MAX_CACHED = 256

_REFRESH = re.compile(r"\s{0,9}[\d.]{0,9}\s{0,9}[;,]\s{0,9}url\s{0,9}=\s{0,9}[\"']?([^\"'>]{1,4096})", re.I)
_REL_NOFOLLOW = re.compile(r"(?:^|\s)(?:nofollow|ugc|sponsored)(?:\s|$)", re.I)
_NO_PAGES = ("mailto:", "javascript:", "tel:", "data:")
# Paths that no URL parser changes: joining strings gives the canonical form.
_PLAIN = re.compile(r"(?:/|(?=[a-z0-9]))(?:[\w~-][\w.~-]*/)*(?:[\w~-][\w.~-]*)?", re.I | re.A)
_UTF8 = ("utf-8", "utf8", "us-ascii")
_FEED_TYPES = frozenset({"application/rss+xml", "application/atom+xml", "application/feed+json"})
_UTF8_MARK = b"\xef\xbb\xbf"
_READ = (
    r"z[href], area[href], area[xlink\:href], frame[src], iframe[src], meta[content], base[href], link[href], title, p"
)
_UNSEEN = "script, style, noscript, template"
# Every repetition is bounded: on hostile input an unbounded one is quadratic.
_META = re.compile(rb"<meta[\t\n\f\r /]([^<>]{1,4096})", re.I)
_ATTRIBUTE = re.compile(
    r"""([^\s"'<>/=]{1,64})\s{0,9}=\s{0,9}(?:"([^"]{0,4096})"|'([^']{0,4096})'|([^\s"'>]{1,4096}))"""
)
_MAX_METAS = 1000
_Attributes = dict[str, str | None]


@dataclass(frozen=True)
class Page:
    """What a page says to a crawler.

    Attributes:
        links: in document order, each once.
        noindex: it may not be kept.
        noarchive: it may not be shown from an archive; noted, not a reason to leave it out.
        canonical: the address it names as its own (rel=canonical), or "".
        feeds: addresses of its RSS, Atom and JSON feeds.
        title: the first 200 characters of it.
        text_chars: characters of visible text, counted up to 1,024.
        noai: robots meta refuses AI training ("noai").
        tdm: what its tdm-reservation meta says: True reserved, False free, None nothing.
        unread: why its links could not be read, for people, or "".
    """

    links: tuple[Link, ...] = ()
    noindex: bool = False
    noarchive: bool = False
    canonical: str = ""
    feeds: tuple[str, ...] = ()
    title: str = ""
    text_chars: int = 0
    noai: bool = False
    tdm: bool | None = None
    unread: str = ""


def read_page(html: bytes, url: str, agent: str, headers: Directives, charset: str = "") -> Page:
    """Returns what an HTML page says to a crawler.

    Args:
        html: the decoded body; what is above 4 MiB is not read.
        url: the page's canonical URL.
        agent: our product token, for `<meta name="sluice">`.
        headers: what X-Robots-Tag said.
        charset: what Content-Type said; without it the page's own declaration counts.
    """
    found = _Found(LexborHTMLParser(defused(_utf8(html[:_MAX_HTML], charset))))
    said = directives(_robots(found.metas, agent), agent, names=False)
    both = said | headers
    base = found.base(url)
    return Page(
        links=() if both.nofollow else _links([*found.refreshes(), *found.hrefs], base),
        noindex=both.noindex,
        noarchive=both.noarchive,
        canonical=found.canonical(base),
        feeds=() if both.nofollow else found.feeds(base),
        title=found.title,
        text_chars=found.text_chars(),
        noai=said.noai,
        tdm=_tdm(found.metas),
    )


def refusals(html: bytes, agent: str, headers: Directives, unread: str) -> Page:
    """Returns what the meta elements of a page forbid, found in its source; for a page that no parser could read.

    One in a comment or a script counts as well: where in doubt, the page forbids it.

    Args:
        html: see `read_page`.
        agent: see `read_page`.
        headers: see `read_page`.
        unread: why it could not be read.
    """
    source = html[:_MAX_HTML].replace(b"\0", b"")  # UTF-16 without its zeros is ASCII as far as tags go
    metas = [_attributes(tag[1].decode("utf-8", "replace")) for tag in islice(_META.finditer(source), _MAX_METAS)]
    said = directives(_robots(metas, agent), agent, names=False)
    both = said | headers
    return Page(noindex=both.noindex, noarchive=both.noarchive, noai=said.noai, tdm=_tdm(metas), unread=unread)


def _attributes(tag: str) -> _Attributes:
    return {one[1].lower(): unescape(one[2] or one[3] or one[4] or "") for one in _ATTRIBUTE.finditer(tag)}


def _robots(metas: Iterable[_Attributes], agent: str) -> list[str]:
    names = ("robots", agent.lower())
    return [_value(held, "content") for held in metas if _lower(held, "name") in names]


def _tdm(metas: Iterable[_Attributes]) -> bool | None:
    said = [_value(held, "content").strip() for held in metas if _lower(held, "name") == "tdm-reservation"]
    return True if "1" in said else False if "0" in said else None


class _Found:
    """The elements of a page that matter, from one walk over its tree."""

    def __init__(self, tree: LexborHTMLParser) -> None:
        self._tree = tree
        self.hrefs: list[str] = []
        self.title = ""
        self._base = ""
        self.metas: list[_Attributes] = []
        self._links: list[_Attributes] = []
        self._text_chars = 0
        for node in tree.css(_READ):
            tag = node.tag or ""
            if tag in ANCHORS:
                if len(self.hrefs) >= _MOST_HREFS:
                    continue
                held = node.attributes
                if "rel" not in held or not _REL_NOFOLLOW.search(held["rel"] or ""):
                    # Drawings hold links as `xlink:href`, which is [href] to a selector.
                    self.hrefs.append(_value(held, "href") or _value(held, "xlink:href"))
            elif tag == "p":
                if self._text_chars < TEXT_ENOUGH:
                    self._text_chars += len(node.text(skip_empty=True))
            else:
                self._take(tag, node)

    def _take(self, tag: str, node: LexborNode) -> None:
        held = node.attributes
        if tag == "meta":
            self.metas.append(held)
        elif tag == "link":
            # What stands in the body may come from a visitor's comment.
            if _in_head(node):
                self._links.append(held)
        elif tag == "base":
            self._base = self._base or _value(held, "href")
        elif tag == "title":
            if not self.title and _in_head(node):
                self.title = as_written(" ".join(node.text()[: 4 * _MAX_TITLE].split())[:_MAX_TITLE])
        else:
            self.hrefs.append(_value(held, "src"))

    def base(self, url: str) -> str:
        # canonical() refuses javascript:, data: and the like.
        return (self._base and canonical(self._base, url)) or url

    def refreshes(self) -> list[str]:
        """Returns where meta refresh leads: a redirect to people, a link to us."""
        matches = [
            _REFRESH.match(_value(held, "content")) for held in self.metas if _lower(held, "http-equiv") == "refresh"
        ]
        return [as_written(match[1]) for match in matches if match]

    def canonical(self, base: str) -> str:
        """Returns the address the page names as its own; "" where it names two, as search engines read it."""
        named = {
            canonical(as_written(_value(held, "href")), base)
            for held in self._links
            if "canonical" in _lower(held, "rel").split()
        }
        return (named.pop() or "") if len(named) == 1 else ""

    def feeds(self, base: str) -> tuple[str, ...]:
        named = [
            canonical(as_written(_value(held, "href")), base)
            for held in self._links
            if "alternate" in _lower(held, "rel").split() and _lower(held, "type") in _FEED_TYPES
        ]
        return tuple(dict.fromkeys(feed for feed in named if feed))[:MAX_FEEDS]

    def text_chars(self) -> int:
        """Counts visible text: that of paragraphs, which the walk has passed anyway, and if need be that of all."""
        if self._text_chars >= TEXT_ENOUGH:
            return TEXT_ENOUGH
        body = self._tree.body
        if body is None:
            return 0
        hidden = sum(len(node.text(skip_empty=True)) for node in body.css(_UNSEEN))
        return max(0, min(len(body.text(skip_empty=True)) - hidden, TEXT_ENOUGH))


def _in_head(node: LexborNode) -> bool:
    return node.parent is not None and node.parent.tag == "head"


def _value(held: _Attributes, name: str) -> str:
    return held.get(name) or ""


def _lower(held: _Attributes, name: str) -> str:
    return _value(held, name).strip().lower()


def _utf8(html: bytes, charset: str) -> bytes:
    if charset.lower() in _UTF8:
        return html.removeprefix(_UTF8_MARK)  # the parser replaces what is no UTF-8
    return with_source(html, charset)[1]


def _links(hrefs: Iterable[str], base: str) -> tuple[Link, ...]:
    """Returns the links of a page with the base URL `base`."""
    folder = base.partition("?")[0].rpartition("/")[0] + "/"
    origin = "/".join(base.split("/", 3)[:3])
    links: dict[bytes, Link] = {}
    # Menus name the same address several times over; each is looked up once.
    for href in dict.fromkeys([href.partition("#")[0].strip() for href in hrefs]):
        if not href:
            continue
        # As little of the base as the result depends on, so that one entry serves many pages.
        start = href[0]
        if start == "/":
            known = origin
        elif ":" in href:
            if href.lower().startswith(_NO_PAGES):
                continue
            known = "" if href.startswith(("https://", "http://")) else base
        else:
            known = folder if start.isalnum() or start == "." else base
        found = _resolved(known, href) if len(href) <= _MAX_CACHED else _resolved.__wrapped__(known, href)
        if found is not None and found.key not in links:
            links[found.key] = found
            if len(links) >= MAX_LINKS:
                break
    return tuple(links.values())


# Some 30 MB when full, and at worst 70 MB.
@lru_cache(maxsize=1 << 16)
def _resolved(base: str, href: str) -> Link | None:
    plain = base and len(base) + len(href) <= MAX_URL and _PLAIN.fullmatch(href)
    url = base + href if plain else canonical(as_written(href), base)
    return link(url) if url is not None else None
