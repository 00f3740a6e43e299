"""Parser of HTML pages: outlinks, robots directives, canonical URL, feeds, title, amount of text.

Reads the source of a page, made harmless first (`defuse`), with selectolax (lexbor): 5,000 pages per CPU-second. The
tree is traversed once. Links are looked up in a table (`resolve_links`): the menu of a site is the same on all its pages, so
most links cost one look-up instead of a parse and two hashes.
"""

import codecs
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import unescape
from itertools import compress, islice
from typing import NamedTuple
from urllib.parse import quote_from_bytes

import numpy as np
from selectolax.lexbor import LexborHTMLParser, LexborNode

from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.charset import with_source
from tasks.formats.web.domain import Link, link
from tasks.formats.web.html_tags import FORMATTING, Names, TagNames, all_tags
from tasks.formats.web.robots_tag import Directives, directives
from tasks.formats.web.url import MAX_CRAWLED_URL, origin_of

MAX_FEEDS = 10

MAX_LINKS = 5000
TEXT_ENOUGH = 1024

REPORTED = ("a", "area", "base", "frame", "iframe", "link", "meta", "p", "title")
"""Elements whose presence in a page is reported."""
ANCHOR = "z"
"""Name of the element `a` in a preprocessed page; in a flattened one it is an `area`."""
# Enough to contain 5,000 distinct ones; reading all would take seconds.
_MAX_HREFS = 10 * MAX_LINKS
_MAX_TITLE = 200
_MAX_HTML = 4 << 20

# HTML Living Standard, section 4.2.5.3 "Pragma directives", shared declarative refresh steps: a number, and an address
# that may be written without "url=". Repetitions are bounded: on hostile input an unbounded one is quadratic.
_BLANK = r"[\t\n\f\r ]{0,99}+"
_REFRESH = re.compile(
    rf"{_BLANK}(?:\d{{1,99}}|(?=\.))[\d.]{{0,99}}(?=[;,\t\n\f\r ]){_BLANK}[;,]?+{_BLANK}(?:url{_BLANK}={_BLANK})?+"
    rf"""(?:"([^"]{{1,{MAX_CRAWLED_URL}}})|'([^']{{1,{MAX_CRAWLED_URL}}})|([^"'].{{0,{MAX_CRAWLED_URL - 1}}}))""",
    re.I | re.S,
)
_REL_NOFOLLOW = re.compile(r"(?:^|\s)(?:nofollow|ugc|sponsored)(?:\s|$)", re.I)
_NOAI = re.compile(r"\bno(?:ai|ml)\b", re.I)
_UTF8 = ("utf-8", "utf8", "us-ascii")
_FEED_TYPES = frozenset({"application/rss+xml", "application/atom+xml", "application/feed+json"})
_UTF8_MARK = b"\xef\xbb\xbf"
_SELECTORS = {
    "a": f"{ANCHOR}[href]",
    "area": r"area[href], area[xlink\:href]",
    "base": "base[href]",
    "frame": "frame[src]",
    "iframe": "iframe[src]",
    "link": 'link:is([rel~="canonical" i], [rel~="alternate" i], [rel~="license" i])',
    "meta": "meta:is([name], [http-equiv])",
    "p": "p",
    "title": "title",
}
_INVISIBLE = "script, style, noscript, template"
_META = re.compile(rb"<meta[\t\n\f\r /]([^<>]{1,4096})", re.I)
_ATTRIBUTE = re.compile(
    r"""([^\s"'<>/=]{1,64})\s{0,9}=\s{0,9}(?:"([^"]{0,4096})"|'([^']{0,4096})'|([^\s"'>]{1,4096}))"""
)
_MAX_METAS = 1000
_Attributes = dict[str, str | None]
# Name and content of a meta element.
_NameAndContent = tuple[str, str]

_MAX_CACHED = 256
_NO_PAGE_SCHEMES = ("mailto:", "javascript:", "tel:", "data:")
# References that no URL parser changes but for "../" in front: joining strings gives the canonical form. Of hosts those
# whose names it does not look into: no numbers, which may be addresses, and no encoded letters.
_SEGMENTS = r"(?:[\w~-][\w.~-]*/)*(?:[\w~-][\w.~-]*)?"
_PLAIN = re.compile(rf"(?:/|(?=[a-zA-Z0-9])){_SEGMENTS}", re.A)
_PORT = r"(?::(?!80/|443/)(?:[1-9]\d{1,3}|[1-5]\d{4}))?"
_PLAIN_URL = re.compile(rf"https?://(?!\S*xn--)(?:[a-z0-9-]+\.)+[a-z][a-z-]*{_PORT}/{_SEGMENTS}", re.A)
_PLAIN_ABOVE = re.compile(rf"((?:\.\./)+)((?=[a-zA-Z0-9]){_SEGMENTS}|)", re.A)
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]+")
_AS_REFERENCE = "sluice.as_reference"
# ASCII that a URL's query contains unescaped, but that in some encodings is part of a multibyte character.
_SAFE_IN_QUERY = "!$%&()*+,/:;=?@[\\]^`{|}"

# So few cannot cost more than 7 ms however they are nested; 99 % of articles have no more.
_FEW_TAGS = 2048
_MAX_DEPTH = 512
# With so many tags the arrays of their depth take 60 MB.
_MOST_COUNTED = 500_000
_MAX_OPTIONS = 1000
# Attributes of every further one are added to the first one, and compared with all that it has.
_MAX_ROOTS = 16
# Elements that never nest in themselves without another element between, or have no content.
_FLAT = (
    *("area", "base", "br", "col", "dd", "dt", "embed", "hr", "img", "input", "li", "link", "meta", "option", "p"),
    *("param", "source", "td", "th", "tr", "track", "wbr"),
)

_A, _OPTION, _ROOT = 1, 254, 255
_NAMES = Names(
    dict(zip(FORMATTING, range(_A, 100), strict=False))
    | {b"opt": _OPTION, b"bod": _ROOT, b"htm": _ROOT}
    # The first in `REPORTED` is `a`.
    | {name.encode()[:3]: 100 + number for number, name in enumerate(REPORTED) if number}
)
_ALL = frozenset(REPORTED)
# Indices of `REPORTED` in the counts of kinds.
_COUNTS = np.array([_A, *range(101, 100 + len(REPORTED))])
# First letters with which the names of formatting elements are unknown names.
_OLD, _NEW = "abcefinstuABCEFINSTU", "zjywgkmvoxZJYWGKMVOX"
_RENAMED_LETTER = np.frombuffer(bytes.maketrans(_OLD.encode(), _NEW.encode()), np.uint8)
_BACK = str.maketrans(_NEW, _OLD)
_RENAMED = re.compile(r"(</?)((?:[zjkvx]|ot|wm)(?=[\t\n\f\r />])|jig|yod|gon|mob|vma|vtr)", re.I)

# In a flattened page, elements that say something, and those whose content is no markup. `bgsound` is an empty element
# that is allowed in a head, so the head continues behind it.
_FLATTENED = {b"a": b"area", b"html": b"bgsound", b"head": b"bgsound"} | {
    name: name
    for name in b"area base iframe link meta noembed noframes p plaintext script style textarea title xmp".split()
}
_BLOCK_BYTES = 256 << 10
_TAG = re.compile(rb"<(/?)([a-zA-Z][^\t\n\f\r /><]*)(?:(>)|((?=<))|)")


@dataclass(frozen=True)
class ParsedPage:
    """The parts of a page that matter to a crawler.

    Attributes:
        links: in document order, each once.
        noindex: it may not be kept.
        noarchive: it may not be shown from an archive; recorded, not a reason to skip it.
        canonical: its rel=canonical link, or "".
        feeds: addresses of its RSS, Atom and JSON feeds.
        title: the first 200 characters of it.
        text_chars: characters of visible text, counted up to 1,024.
        noai: robots meta refuses AI training ("noai").
        tdm: its tdm-reservation meta: True reserved, False not reserved, None missing.
        terms: its terms of use, as (name, value); see `terms`.
        unread: text on why its links could not be parsed, or "".
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
    terms: tuple[tuple[str, str], ...] = ()
    unread: str = ""


def parse_page(html: bytes, url: str, agent: str, headers: Directives, charset: str = "") -> ParsedPage:
    """Parses an HTML page.

    Args:
        html: the decoded body; what is above 4 MiB is not read.
        url: the page's canonical URL.
        agent: our product token, for `<meta name="sluice">`.
        headers: directives of X-Robots-Tag.
        charset: of Content-Type; without it the page's own declaration counts.
    """
    source, encoding = _utf8(html[:_MAX_HTML], charset)
    page = defuse(source)
    found = _PageElements(LexborHTMLParser(page.source), page.holds)
    directives_of_page = directives(_robots(found.metas, agent), agent, names=False)
    both = directives_of_page | headers
    # `resolve_href` refuses javascript:, data: and the like.
    base = (found.base and resolve_href(found.base, url, encoding)) or url
    return ParsedPage(
        links=() if both.nofollow else resolve_links([*_refreshes(found.refreshes), *found.hrefs], base, encoding),
        noindex=both.noindex,
        noarchive=both.noarchive,
        canonical=_single_canonical({resolve_href(href, base, encoding) for href in found.canonicals}),
        feeds=() if both.nofollow else _feeds(resolve_href(href, base, encoding) for href in found.feeds),
        title=found.title,
        text_chars=found.text_chars(),
        noai=directives_of_page.noai,
        tdm=_tdm(found.metas),
        terms=(
            *_terms(found.metas, agent),
            *(("license", resolve_href(one, base, encoding) or one) for one in found.licences),
        ),
    )


def scan_directives(html: bytes, agent: str, headers: Directives, unread: str) -> ParsedPage:
    """Returns the directives of a page's meta elements, found in its source; for a page that the parser cannot read.

    One in a comment or a script counts as well: where in doubt, the page forbids it.

    Args:
        html: see `parse_page`.
        agent: see `parse_page`.
        headers: see `parse_page`.
        unread: why it could not be read.
    """
    source = html[:_MAX_HTML].replace(b"\0", b"")  # UTF-16 without its zeros is ASCII as far as tags go
    tags = [_attributes(tag[1].decode("utf-8", "replace")) for tag in islice(_META.finditer(source), _MAX_METAS)]
    metas = [(_lower(attributes, "name"), _value(attributes, "content")) for attributes in tags]
    directives_of_page = directives(_robots(metas, agent), agent, names=False)
    both = directives_of_page | headers
    return ParsedPage(
        noindex=both.noindex,
        noarchive=both.noarchive,
        noai=directives_of_page.noai,
        tdm=_tdm(metas),
        terms=tuple(_terms(metas, agent)),
        unread=unread,
    )


def _attributes(tag: str) -> _Attributes:
    return {one[1].lower(): unescape(one[2] or one[3] or one[4] or "") for one in _ATTRIBUTE.finditer(tag)}


def _robots(metas: Iterable[_NameAndContent], agent: str) -> list[str]:
    names = ("robots", agent.lower())
    return [content for name, content in metas if name in names]


def _tdm(metas: Iterable[_NameAndContent]) -> bool | None:
    values = [content.strip() for name, content in metas if name == "tdm-reservation"]
    return True if "1" in values else False if "0" in values else None


def _terms(metas: Sequence[_NameAndContent], agent: str) -> list[tuple[str, str]]:
    """Returns what meta elements state of the page's use."""
    tdm = [(name, content) for name, content in metas if name in ("tdm-reservation", "tdm-policy")]
    return tdm + [("robots", content) for content in _robots(metas, agent) if _NOAI.search(content)]


def _refreshes(contents: Iterable[str]) -> list[str]:
    """Returns the target of a meta refresh, which counts as a link."""
    matches = map(_REFRESH.match, contents)
    return [match[1] or match[2] or match[3] for match in matches if match]


def _single_canonical(named: set[str | None]) -> str:
    """Returns the canonical link of a page; "" where there are two different ones, as for search engines."""
    return (named.pop() or "") if len(named) == 1 else ""


def _feeds(named: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(feed for feed in named if feed))[:MAX_FEEDS]


class _PageElements:
    """The relevant elements of a page, from one traversal of its tree; URLs as written."""

    def __init__(self, tree: LexborHTMLParser, holds: frozenset[str]) -> None:
        self._tree = tree
        self.hrefs: list[str] = []
        hrefs = self.hrefs
        self.title = ""
        self.base = ""
        self.metas: list[_NameAndContent] = []
        self.refreshes: list[str] = []
        self.canonicals: list[str] = []
        self.feeds: list[str] = []
        self.licences: list[str] = []
        self._text_chars = 0
        for node in tree.css(_selector(holds)):
            tag = node.tag or ""
            if tag == ANCHOR or tag == "area":
                if len(hrefs) >= _MAX_HREFS:
                    continue
                attributes = node.attributes
                if "rel" not in attributes or not _REL_NOFOLLOW.search(attributes["rel"] or ""):
                    # Links in SVG are `xlink:href`, which is [href] to a selector.
                    hrefs.append(attributes.get("href") or attributes.get("xlink:href") or "")
            elif tag == "p":
                if self._text_chars < TEXT_ENOUGH:
                    self._text_chars += len(node.text(skip_empty=True))
            else:
                self._take(tag, node)

    def _take(self, tag: str, node: LexborNode) -> None:
        attributes = node.attributes
        if tag == "meta":
            name = _lower(attributes, "name")
            if name:
                self.metas.append((name, _value(attributes, "content")))
            if "http-equiv" in attributes and _lower(attributes, "http-equiv") == "refresh":
                self.refreshes.append(_value(attributes, "content"))
        elif tag == "link":
            # Elements in the body may come from a visitor's comment.
            if "href" in attributes and _in_head(node):
                self._take_link(attributes)
        elif tag == "base":
            self.base = self.base or _value(attributes, "href")
        elif tag == "title":
            if not self.title and _in_head(node):
                self.title = restore_names(" ".join(node.text()[: 4 * _MAX_TITLE].split())[:_MAX_TITLE])
        else:
            self.hrefs.append(_value(attributes, "src"))

    def _take_link(self, attributes: _Attributes) -> None:
        relations = _lower(attributes, "rel").split()
        if "canonical" in relations:
            self.canonicals.append(_value(attributes, "href"))
        if "license" in relations:
            self.licences.append(_value(attributes, "href"))
        if "alternate" in relations and _lower(attributes, "type") in _FEED_TYPES:
            self.feeds.append(_value(attributes, "href"))

    def text_chars(self) -> int:
        """Counts visible text: that of paragraphs, collected by the traversal, and if needed that of all elements."""
        if self._text_chars >= TEXT_ENOUGH:
            return TEXT_ENOUGH
        body = self._tree.body
        if body is None:
            return 0
        hidden = sum(len(node.text(skip_empty=True)) for node in body.css(_INVISIBLE))
        return max(0, min(len(body.text(skip_empty=True)) - hidden, TEXT_ENOUGH))


# The traversal costs elements times selectors, so only selectors of elements in the page are used.
@lru_cache(maxsize=1 << len(_SELECTORS))
def _selector(holds: frozenset[str]) -> str:
    return ", ".join(selector for name, selector in _SELECTORS.items() if name in holds) or "title"


def _in_head(node: LexborNode) -> bool:
    return node.parent is not None and node.parent.tag == "head"


def _value(attributes: _Attributes, name: str) -> str:
    return attributes.get(name) or ""


def _lower(attributes: _Attributes, name: str) -> str:
    value = attributes.get(name)
    return value.strip().lower() if value else ""


def _utf8(html: bytes, charset: str) -> tuple[bytes, str]:
    """Returns a page in UTF-8, and the encoding that it came in."""
    if charset.lower() in _UTF8:
        return html.removeprefix(_UTF8_MARK), "utf-8"  # the parser replaces invalid UTF-8
    _, source, encoding = with_source(html, charset)
    return source, encoding


def resolve_links(hrefs: Iterable[str], base: str, encoding: str = "utf-8") -> tuple[Link, ...]:
    """Returns links in the order of the page, each once, the first 5,000.

    Args:
        hrefs: values of attributes, of a page that was made harmless (`defuse`).
        base: the canonical URL that relative ones are meant from.
        encoding: of the page, for letters in queries; see `encode_query`.
    """
    folder = base.partition("?")[0].rpartition("/")[0] + "/"
    origin = origin_of(base)
    links: dict[bytes, Link] = {}
    # Menus name the same address several times over; each is looked up once.
    for href in dict.fromkeys([href.partition("#")[0].strip() for href in hrefs]):
        if not href:
            continue
        if encoding != "utf-8" and not href.isascii():
            href = encode_query(href, encoding)
        # As little of the base as the result depends on, so that one entry serves many pages.
        start = href[0]
        if start == "/":
            known = origin
        elif ":" in href:
            if href.lower().startswith(_NO_PAGE_SCHEMES):
                continue
            known = "" if href.startswith(("https://", "http://")) else base
        else:
            known = folder if start.isalnum() or start == "." else base
        found = _resolve(known, href) if len(href) <= _MAX_CACHED else _resolve.__wrapped__(known, href)
        if found is not None and found.key not in links:
            links[found.key] = found
            if len(links) >= MAX_LINKS:
                break
    return tuple(links.values())


# Some 30 MB when full, and at worst 70 MB.
@lru_cache(maxsize=1 << 16)
def _resolve(base: str, href: str) -> Link | None:
    url = _join_plain(base, href) if len(base) + len(href) <= MAX_CRAWLED_URL else None
    url = url or canonical(restore_names(href), base)
    return link(url) if url is not None else None


def _join_plain(base: str, href: str) -> str | None:
    """Returns the URL that a plain reference means, or None: only a parser knows.

    Args:
        base: an origin for references with "/" in front, "" for whole URLs, and else a folder.
        href: the reference.
    """
    if not base:
        return href if _PLAIN_URL.fullmatch(href) else None
    if _PLAIN.fullmatch(href):
        return base + href
    above = _PLAIN_ABOVE.fullmatch(href)
    if above is None:
        return None
    origin = origin_of(base)
    folders = base[len(origin) : -1].split("/")
    up = min(len(above[1]) // 3, len(folders) - 1)
    return f"{origin}{'/'.join(folders[: len(folders) - up])}/{above[2]}"


def resolve_href(href: str, base: str, encoding: str = "utf-8") -> str | None:
    """Returns the canonical address that one attribute means, or None; arguments as for `resolve_links`."""
    return canonical(encode_query(restore_names(href), encoding), base)


def encode_query(href: str, encoding: str) -> str:
    """Returns an address with its query in the encoding of its page, as browsers do (URL Standard, "query state").

    Characters that the encoding lacks are encoded as in forms, "&#1055;", percent-encoded.

    >>> query_in("/д?q=д", "cp1251"), query_in("/?q=ж", "iso8859-1")
    ('/д?q=%E4', '/?q=%26%231078%3B')
    """
    path, mark, query = href.partition("?")
    if encoding == "utf-8" or query.isascii():
        return href

    def written(letters: re.Match[str]) -> str:
        return quote_from_bytes(letters[0].encode(encoding, _AS_REFERENCE), _SAFE_IN_QUERY)

    query, hash_, fragment = query.partition("#")
    return path + mark + _BEYOND_ASCII.sub(written, query) + hash_ + fragment


def _replace_unencodable(error: UnicodeError) -> tuple[str, int]:
    """Writes letters that an encoding lacks as references; half a character is none."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    codes = map(ord, error.object[error.start : error.end])
    return "".join(f"%26%23{0xFFFD if 0xD800 <= code < 0xE000 else code}%3B" for code in codes), error.end


codecs.register_error(_AS_REFERENCE, _replace_unencodable)


class DefusedPage(NamedTuple):
    """A page in which elements neither multiply nor nest without bound.

    Attributes:
        source: the page. Tags in attribute values are renamed like tags: see `restore_names`.
        holds: those of `REPORTED` that it may contain; no others.
    """

    source: bytes
    holds: frozenset[str]


def defuse(html: bytes) -> DefusedPage:
    """Makes a page harmless: renames elements in its source that make the parser slow, keeping links and metas.

    Time and memory of an HTML parser can be the product of two numbers that are both under the page author's control
    (selectolax 1.0.2, one core):

        formatting elements left open x blocks behind   500 <b a=..> and 10,000 <p>x, 44 kB            4.8 s, 1.8 GB
        their attributes x blocks behind                an <a> of 3,000 attributes, 5,000 <p>x, 36 kB  2.2 s, 2.2 GB
        nested elements, squared                        30,000 <dl>, 117 kB                            1.4 s
        options, or attributes of <body>, squared       15,000, 120 kB                                 0.4 s

    The first two follow from the rule that formatting elements which a block has closed are reopened behind it (HTML
    Living Standard, 13.2.4.3). Only a parser can determine whether a page leaves any open: comments, quotes and tables
    hide end tags. So all are renamed: `<b>` becomes `<j>`, an unknown element that is not reopened; 0.08 ms for a page
    of 160 KB. A page of the other kinds is flattened: elements with children become empty ones.

    Args:
        html: the page in UTF-8, or what claims to be.
    """
    tags = all_tags(html)
    if tags.starts > _FEW_TAGS and _is_deep(html, len(tags.at)):
        return DefusedPage(flatten(html), _ALL)
    named, kinds = _NAMES.find(html, tags)
    counts = np.bincount(kinds, minlength=256)
    if counts[_OPTION] > _MAX_OPTIONS or counts[_ROOT] > _MAX_ROOTS:
        return DefusedPage(flatten(html), _ALL)
    at = tags.at.take(named[kinds < 100])
    source = bytearray(html)
    octets = np.frombuffer(source, np.uint8)
    octets[at] = _RENAMED_LETTER.take(octets.take(at))
    return DefusedPage(bytes(source), _reported((counts.take(_COUNTS) > 0).tobytes()))


@lru_cache(maxsize=1 << len(REPORTED))
def _reported(some: bytes) -> frozenset[str]:
    return frozenset(compress(REPORTED, some))


def _is_deep(html: bytes, tags: int) -> bool:
    return tags > _MOST_COUNTED or TagNames(html).most_open(_FLAT, ()).nested > _MAX_DEPTH


def flatten(html: bytes) -> bytes:
    """Returns a page without nested elements, links being `area` elements; not much longer than the page.

    Kept are links, meta elements, the title, paragraphs (which never nest by themselves), and what hides markup from a
    parser: scripts, styles and the like.
    """
    return b"".join(_TAG.sub(_flatten_tag, piece) for piece in _blocks(html))


def _blocks(html: bytes) -> Iterator[bytes]:
    """Yields a page in pieces that begin with a "<": a substitution needs twenty times the memory of its text."""
    at = 0
    while at < len(html):
        end = html.find(b"<", at + _BLOCK_BYTES)
        end = end if end >= 0 else len(html)
        yield html[at:end]
        at = end


def _flatten_tag(tag: re.Match[bytes]) -> bytes:
    end, name, closed, runs_on = tag.groups()
    new = _FLATTENED.get(name.lower())
    # A name that runs into the next tag is no tag but text, as "a<b" is at the end of a style sheet. A tag without
    # attributes has nothing to lose; the blank keeps a "<" before it from becoming one with what stands behind.
    if runs_on is not None or (new is None and closed):
        return b" " if tag.string[tag.start() - 1 : tag.start()] in (b"<", b"") else b""
    return b"<" + end + (new or b"wbr") + (closed or b"")


def restore_names(value: str) -> str:
    """Returns the value of an attribute of a harmless page as the page has it.

    >>> as_written("/find?q=<j>x</j>")
    '/find?q=<b>x</b>'
    """
    return _RENAMED.sub(lambda tag: tag[1] + tag[2][0].translate(_BACK) + tag[2][1:], value) if "<" in value else value
