"""Outlinks and robots directives of an HTML page.

Used by fetch. selectolax (lexbor) reads 5,000 pages per CPU-second but is quadratic in nesting depth: 100,000 nested
elements take 11 s, a million never end. Pages nested deeper than 512 are therefore read by a regular expression.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from html import unescape

from selectolax.lexbor import LexborHTMLParser

from tasks.crawl.url import canonical

MAX_LINKS = 5000
_MAX_DEPTH = 512
_MAX_HTML = 4 << 20

# Elements that never nest in themselves without another element between, or have no content.
_FLAT = frozenset(
    b"area base br col dd dt embed hr img input li link meta option p param source td th tr track wbr".split()
)
_TAG = re.compile(rb"<(/?)([a-zA-Z][a-zA-Z0-9]*)")
# Every repetition is bounded: on hostile input an unbounded one is quadratic.
_HREF = re.compile(
    rb"""<a\s[^<>]{0,2000}?href\s{0,9}=\s{0,9}("[^"<>]{0,4096}"|'[^'<>]{0,4096}'|[^\s<>"']{1,4096})""", re.I
)
_REFRESH = re.compile(r"\s{0,9}[\d.]{0,9}\s{0,9}[;,]\s{0,9}url\s{0,9}=\s{0,9}[\"']?([^\"'>]{1,4096})", re.I)
_REL_NOFOLLOW = re.compile(r"(?:^|\s)(?:nofollow|ugc|sponsored)(?:\s|$)", re.I)


@dataclass(frozen=True)
class Page:
    """What a page says to a crawler: its links in document order, and whether it may be kept."""

    links: tuple[str, ...]
    noindex: bool


@dataclass(frozen=True)
class Directives:
    """What robots meta tags or X-Robots-Tag headers forbid."""

    noindex: bool = False
    nofollow: bool = False

    def __or__(self, other: "Directives") -> "Directives":
        return Directives(self.noindex or other.noindex, self.nofollow or other.nofollow)


def directives(values: Iterable[str], agent: str) -> Directives:
    """Reads X-Robots-Tag headers or robots meta contents; "otherbot: noindex" counts only for that bot.

    >>> directives(["noarchive", "googlebot: noindex", "nofollow"], "sluice")
    Directives(noindex=False, nofollow=True)
    """
    words: set[str] = set()
    for value in values:
        name, colon, rest = value.lower().partition(":")
        if colon and name.strip() not in ("unavailable_after", "max-snippet", "max-image-preview"):
            if name.strip() != agent.lower():
                continue
            value = rest
        words.update(word.strip() for word in value.lower().split(","))
    none = "none" in words
    return Directives(noindex=none or "noindex" in words, nofollow=none or "nofollow" in words)


def read_page(html: bytes, url: str, agent: str, headers: Directives, charset: str = "") -> Page:
    """Returns the canonical outlinks of an HTML page and whether it asks not to be kept.

    Args:
        html: the decoded body; what is above 4 MiB is not read.
        url: the page's canonical URL.
        agent: our product token, for `<meta name="sluice">`.
        headers: what X-Robots-Tag said.
        charset: what Content-Type said; without it the page's own declaration counts.
    """
    html = html[:_MAX_HTML]
    if deeper_than(html, _MAX_DEPTH):
        raw = [] if headers.nofollow else _HREF.findall(html)
        return Page(_links(map(_attribute, raw), url), headers.noindex)
    tree = _parsed(html, charset)
    meta = directives(_robots_meta(tree, agent), agent) | headers
    if meta.nofollow:
        return Page((), meta.noindex)
    found = (node.attributes for node in tree.css("a[href], area[href], frame[src], iframe[src]"))
    hrefs = [
        held.get("href") or held.get("src") or "" for held in found if not _REL_NOFOLLOW.search(held.get("rel") or "")
    ]
    return Page(_links([*_refresh(tree), *hrefs], _base(tree, url)), meta.noindex)


def deeper_than(html: bytes, depth: int) -> bool:
    """Tells whether elements are nested deeper than `depth`, by counting tags.

    An end tag counts only for an open element of its name. End tags in comments and attributes can still hide some
    depth; `parser` bounds what that may cost.
    """
    if html.count(b"<") - html.count(b"</") <= depth:
        return False
    current = 0
    still_open: Counter[bytes] = Counter()
    for match in _TAG.finditer(html):
        name = match[2].lower()
        if name in _FLAT:
            continue
        if not match[1]:
            still_open[name] += 1
            current += 1
            if current > depth:
                return True
        elif still_open[name]:
            still_open[name] -= 1
            current -= 1
    return False


def _parsed(html: bytes, charset: str) -> LexborHTMLParser:
    try:
        if charset:
            return LexborHTMLParser(html.decode(charset, "replace"))
    except (LookupError, ValueError):
        pass  # a charset that does not exist, or is none of text
    return LexborHTMLParser(html, encoding=True)


def _refresh(tree: LexborHTMLParser) -> list[str]:
    """Returns where meta refresh leads: a redirect to people, a link to us."""
    return [
        found[1].strip()
        for node in tree.css("meta[http-equiv][content]")
        if (node.attributes.get("http-equiv") or "").strip().lower() == "refresh"
        and (found := _REFRESH.match(node.attributes.get("content") or ""))
    ]


def _robots_meta(tree: LexborHTMLParser, agent: str) -> list[str]:
    names = ("robots", agent.lower())
    return [
        node.attributes.get("content") or ""
        for node in tree.css("meta[name]")
        if (node.attributes.get("name") or "").strip().lower() in names
    ]


def _base(tree: LexborHTMLParser, url: str) -> str:
    node = tree.css_first("base[href]")
    # canonical() refuses javascript:, data: and the like.
    return (node and canonical(node.attributes.get("href") or "", url)) or url


def _links(hrefs: Iterable[str], base: str) -> tuple[str, ...]:
    links: dict[str, None] = {}
    # Menus name the same address several times over; each is parsed once.
    for href in dict.fromkeys(href.strip() for href in hrefs):
        if not href or href.startswith("#"):
            continue
        link = canonical(href, base)
        if link is not None:
            links[link] = None
            if len(links) >= MAX_LINKS:
                break
    return tuple(links)


def _attribute(raw: bytes) -> str:
    return unescape(raw.strip(b"\"'").decode("utf-8", "replace"))
