"""Parser of HTML pages: outlinks, robots directives, canonical URL, feeds, title, amount of text.

`defuse` rewrites the source of a page so that it cannot stall the parser; selectolax (lexbor) then parses it, 5,000
pages per CPU-second. The tree is traversed once. Resolved links are cached (`resolve_links`): the menu of a site is the
same on all its pages, so most links cost one cache look-up instead of a parse and two hashes.
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
from tasks.formats.web.charset import decode_with_source
from tasks.formats.web.domain import Link, link
from tasks.formats.web.html_tags import FORMATTING, TagFinder, TagNames, all_tags
from tasks.formats.web.link_header import RSL_TYPE, links_of
from tasks.formats.web.robots_tag import Directives, directives
from tasks.formats.web.url import MAX_CRAWLED_URL, distinct, identity, origin_of
from tasks.formats.web.xhtml import html_of_xhtml
from tasks.stages.crawl.http.response import Headers

MAX_FEEDS = 10

MAX_LINKS = 5000
TEXT_ENOUGH = 1024

REPORTED = ("a", "area", "base", "frame", "iframe", "link", "meta", "p", "title")
"""Elements whose presence `defuse` reports."""
ANCHOR = "z"
"""Name of the element `a` in a defused page; in a flattened page it is an `area`."""
# Enough to contain 5,000 distinct links; reading all links of a hostile page would take seconds.
_MAX_HREFS = 10 * MAX_LINKS
_MAX_TITLE = 200
_MAX_HTML = 4 << 20

# HTML Living Standard, section 4.2.5.3 "Pragma directives", shared declarative refresh steps: a number, and a URL that
# may be written without "url=". Repetitions are bounded: on hostile input an unbounded one takes quadratic time.
_BLANK = r"[\t\n\f\r ]{0,99}+"
_REFRESH = re.compile(
    rf"{_BLANK}(?:\d{{1,99}}|(?=\.))[\d.]{{0,99}}(?=[;,\t\n\f\r ]){_BLANK}[;,]?+{_BLANK}(?:url{_BLANK}={_BLANK})?+"
    rf"""(?:"([^"]{{1,{MAX_CRAWLED_URL}}})|'([^']{{1,{MAX_CRAWLED_URL}}})|([^"'].{{0,{MAX_CRAWLED_URL - 1}}}))""",
    re.I | re.S,
)
_REL_NOFOLLOW = re.compile(r"(?:^|\s)(?:nofollow|ugc|sponsored)(?:\s|$)", re.I)
NOAI = re.compile(r"\bno(?:ai|ml)\b", re.I)
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
# References that a URL parser does not change, except for a leading "../": joining strings gives the canonical form.
# Hosts with numbers, which may be IP addresses, and with Punycode labels need the parser.
_SEGMENTS = r"(?:[\w~-][\w.~-]*/)*(?:[\w~-][\w.~-]*)?"
_PLAIN = re.compile(rf"(?:/|(?=[a-zA-Z0-9])){_SEGMENTS}", re.A)
_PORT = r"(?::(?!80/|443/)(?:[1-9]\d{1,3}|[1-5]\d{4}))?"
_PLAIN_URL = re.compile(rf"https?://(?!\S*xn--)(?:[a-z0-9-]+\.)+[a-z][a-z-]*{_PORT}/{_SEGMENTS}", re.A)
_PLAIN_ABOVE = re.compile(rf"((?:\.\./)+)((?=[a-zA-Z0-9]){_SEGMENTS}|)", re.A)
_NON_ASCII = re.compile(r"[^\x00-\x7f]+")
_AS_REFERENCE = "sluice.as_reference"
# ASCII characters that are not escaped in a query, although some encodings use them within multibyte characters.
_SAFE_IN_QUERY = "!$%&()*+,/:;=?@[\\]^`{|}"

# So few tags take at most 7 ms, in any nesting; 99 % of articles have no more.
_FEW_TAGS = 2048
_MAX_DEPTH = 512
# With so many tags, the arrays of tag depths take 60 MB.
_MOST_COUNTED = 500_000
_MAX_OPTIONS = 1000
# The parser adds the attributes of every further <html> or <body> to the first, and compares them with all it has.
_MAX_ROOTS = 16
# Elements that never nest directly in themselves, or that have no content.
_FLAT = (
    *("area", "base", "br", "col", "dd", "dt", "embed", "hr", "img", "input", "li", "link", "meta", "option", "p"),
    *("param", "source", "td", "th", "tr", "track", "wbr"),
)

_A, _OPTION, _ROOT = 1, 254, 255
_NAMES = TagFinder(
    dict(zip(FORMATTING, range(_A, 100), strict=False))
    | {b"opt": _OPTION, b"bod": _ROOT, b"htm": _ROOT}
    # The first in `REPORTED` is `a`.
    | {name.encode()[:3]: 100 + number for number, name in enumerate(REPORTED) if number}
)
_ALL = frozenset(REPORTED)
# Indices of `REPORTED` in the counts of kinds.
_COUNTS = np.array([_A, *range(101, 100 + len(REPORTED))])
# Replacements for first letters, which turn the names of formatting elements into unknown names.
_OLD, _NEW = "abcefinstuABCEFINSTU", "zjywgkmvoxZJYWGKMVOX"
_RENAMED_LETTER = np.frombuffer(bytes.maketrans(_OLD.encode(), _NEW.encode()), np.uint8)
_BACK = str.maketrans(_NEW, _OLD)
_RENAMED = re.compile(r"(</?)((?:[zjkvx]|ot|wm)(?=[\t\n\f\r />])|jig|yod|gon|mob|vma|vtr)", re.I)

# Elements of a flattened page: those that the crawler reads, and those whose content is not markup. `bgsound` is an
# empty element that is allowed in a head, so the head continues after it.
_FLATTENED = {b"a": b"area", b"html": b"bgsound", b"head": b"bgsound"} | {
    name: name
    for name in b"area base iframe link meta noembed noframes p plaintext script style textarea title xmp".split()
}
_BLOCK_BYTES = 256 << 10
_TAG = re.compile(rb"<(/?)([a-zA-Z][^\t\n\f\r /><]*)(?:(>)|((?=<))|)")


@dataclass(frozen=True)
class ParsedPage:
    """The parts of a page that a crawler uses.

    Attributes:
        links: links in document order, without duplicates.
        noindex: whether a directive forbids keeping the page.
        noarchive: whether a directive forbids showing the page from an archive; recorded only.
        canonicals: distinct URLs of the rel=canonical links; "" for an invalid one.
        feeds: URLs of RSS, Atom and JSON feeds.
        title: the first 200 characters of the title.
        text_chars: number of characters of visible text, counted up to 1,024.
        noai: whether the robots meta element refuses AI training ("noai").
        tdm: the tdm-reservation meta element: True for reserved, False for not reserved, None if missing.
        terms: terms of use, as (name, value); see the module `terms`.
        licenses: URLs of RSL licenses, which `<link rel="license" type="application/rsl+xml">` names.
        unread: the reason why the links could not be parsed, or "".
    """

    links: tuple[Link, ...] = ()
    noindex: bool = False
    noarchive: bool = False
    canonicals: tuple[str, ...] = ()
    feeds: tuple[str, ...] = ()
    title: str = ""
    text_chars: int = 0
    noai: bool = False
    tdm: bool | None = None
    terms: tuple[tuple[str, str], ...] = ()
    licenses: tuple[str, ...] = ()
    unread: str = ""


def parse_page(
    html: bytes, url: str, agent: str, headers: Directives, charset: str = "", xhtml: bool = False
) -> ParsedPage:
    """Parses an HTML page.

    Args:
        html: the decoded body; only the first 4 MiB are read.
        url: the page's canonical URL.
        agent: our product token, for `<meta name="sluice">`.
        headers: directives of X-Robots-Tag.
        charset: charset parameter of Content-Type; if it is empty, the declaration in the page is used.
        xhtml: whether the page is XML by its media type.
    """
    source, encoding = _utf8(html[:_MAX_HTML], charset)
    source = (html_of_xhtml(source) if xhtml else None) or source
    page = defuse(source)
    elements = _PageElements(LexborHTMLParser(page.source), page.tags)
    directives_of_page = directives(_robots(elements.metas, agent), agent, names=False)
    combined = directives_of_page | headers
    # `resolve_href` returns None for javascript:, data: and similar schemes.
    base = (elements.base and resolve_href(elements.base, url, encoding)) or url
    # The targets of meta refreshes count as links.
    hrefs = [*filter(None, map(refresh_target, elements.refreshes)), *elements.hrefs]
    return ParsedPage(
        links=() if combined.nofollow else resolve_links(hrefs, base, encoding),
        noindex=combined.noindex,
        noarchive=combined.noarchive,
        canonicals=distinct(resolve_href(href, base, encoding) or "" for href in elements.canonicals),
        feeds=() if combined.nofollow else _feeds(resolve_href(href, base, encoding) for href in elements.feeds),
        title=elements.title,
        text_chars=elements.text_chars(),
        noai=directives_of_page.noai,
        tdm=_tdm(elements.metas),
        terms=(
            *_terms(elements.metas, agent),
            *(("license", resolve_href(href, base, encoding) or href) for href, _ in elements.licenses),
        ),
        licenses=distinct(
            to for href, kind in elements.licenses if kind == RSL_TYPE and (to := resolve_href(href, base, encoding))
        ),
    )


def scan_directives(html: bytes, agent: str, headers: Directives, unread: str) -> ParsedPage:
    """Returns the directives of a page's meta elements by searching the source, for a page that cannot be parsed.

    Meta elements in comments and scripts count as well: in doubt, a directive applies.

    Args:
        html: see `parse_page`.
        agent: see `parse_page`.
        headers: see `parse_page`.
        unread: the reason why the page could not be parsed.
    """
    source = html[:_MAX_HTML].replace(b"\0", b"")  # the tags of UTF-16 are ASCII without the zero bytes
    tags = [_attributes(tag[1].decode("utf-8", "replace")) for tag in islice(_META.finditer(source), _MAX_METAS)]
    metas = [(_lower(attributes, "name"), _value(attributes, "content")) for attributes in tags]
    directives_of_page = directives(_robots(metas, agent), agent, names=False)
    combined = directives_of_page | headers
    return ParsedPage(
        noindex=combined.noindex,
        noarchive=combined.noarchive,
        noai=directives_of_page.noai,
        tdm=_tdm(metas),
        terms=tuple(_terms(metas, agent)),
        unread=unread,
    )


def _attributes(tag: str) -> _Attributes:
    matches = _ATTRIBUTE.finditer(tag)
    return {match[1].lower(): unescape(match[2] or match[3] or match[4] or "") for match in matches}


def _robots(metas: Iterable[_NameAndContent], agent: str) -> list[str]:
    names = ("robots", agent.lower())
    return [content for name, content in metas if name in names]


def _tdm(metas: Iterable[_NameAndContent]) -> bool | None:
    values = [content.strip() for name, content in metas if name == "tdm-reservation"]
    return True if "1" in values else False if "0" in values else None


def _terms(metas: Sequence[_NameAndContent], agent: str) -> list[tuple[str, str]]:
    """Returns the terms of use that meta elements state."""
    tdm = [(name, content) for name, content in metas if name in ("tdm-reservation", "tdm-policy")]
    return tdm + [("robots", content) for content in _robots(metas, agent) if NOAI.search(content)]


def refresh_target(content: str) -> str | None:
    """Returns the URL of a Refresh header or meta refresh as written, or None."""
    match = _REFRESH.match(content)
    return match[1] or match[2] or match[3] if match else None


def canonical_of(page: ParsedPage, headers: Headers, url: str) -> str:
    """Returns the canonical URL that a page states in elements and Link headers (RFC 6596).

    "" if it states none, its own, or different ones, which search engines ignore as well.

    Args:
        page: the parsed page; `ParsedPage()` for types other than HTML.
        headers: headers of the response.
        url: URL of the page.
    """
    values = [value for name, value in headers if name.lower() == "link"]
    stated = distinct(
        (*page.canonicals, *(one.url or "" for one in links_of(values, url) if "canonical" in one.relations))
    )
    return stated[0] if len(stated) == 1 and identity(stated[0]) != identity(url) else ""


def _feeds(urls: Iterable[str | None]) -> tuple[str, ...]:
    return distinct(url for url in urls if url)[:MAX_FEEDS]


class _PageElements:
    """The relevant elements of a page, collected in one traversal of its tree; URLs are as written."""

    def __init__(self, tree: LexborHTMLParser, tags: frozenset[str]) -> None:
        self._tree = tree
        self.hrefs: list[str] = []
        hrefs = self.hrefs
        self.title = ""
        self.base = ""
        self.metas: list[_NameAndContent] = []
        self.refreshes: list[str] = []
        self.canonicals: list[str] = []
        self.feeds: list[str] = []
        self.licenses: list[tuple[str, str]] = []
        self._text_chars = 0
        for node in tree.css(_selector(tags)):
            tag = node.tag or ""
            if tag == ANCHOR or tag == "area":
                if len(hrefs) >= _MAX_HREFS:
                    continue
                attributes = node.attributes
                if "rel" not in attributes or not _REL_NOFOLLOW.search(attributes["rel"] or ""):
                    # Links in SVG are `xlink:href`, which the selector [href] matches, too.
                    hrefs.append(attributes.get("href") or attributes.get("xlink:href") or "")
            elif tag == "p":
                if self._text_chars < TEXT_ENOUGH:
                    self._text_chars += len(node.text(skip_empty=True))
            else:
                self._add(tag, node)

    def _add(self, tag: str, node: LexborNode) -> None:
        attributes = node.attributes
        if tag == "meta":
            name = _lower(attributes, "name")
            if name:
                self.metas.append((name, _value(attributes, "content")))
            if "http-equiv" in attributes and _lower(attributes, "http-equiv") == "refresh":
                self.refreshes.append(_value(attributes, "content"))
        elif tag == "link":
            # Elements in the body may come from readers' comments.
            if "href" in attributes and _in_head(node):
                self._add_link(attributes)
        elif tag == "base":
            self.base = self.base or _value(attributes, "href")
        elif tag == "title":
            if not self.title and _in_head(node):
                self.title = restore_names(" ".join(node.text()[: 4 * _MAX_TITLE].split())[:_MAX_TITLE])
        else:
            self.hrefs.append(_value(attributes, "src"))

    def _add_link(self, attributes: _Attributes) -> None:
        relations = _lower(attributes, "rel").split()
        if "canonical" in relations:
            self.canonicals.append(_value(attributes, "href"))
        if "license" in relations:
            self.licenses.append((_value(attributes, "href"), _lower(attributes, "type").partition(";")[0].strip()))
        if "alternate" in relations and _lower(attributes, "type") in _FEED_TYPES:
            self.feeds.append(_value(attributes, "href"))

    def text_chars(self) -> int:
        """Counts visible characters: of the paragraphs in the traversal, and if these are few, of all elements."""
        if self._text_chars >= TEXT_ENOUGH:
            return TEXT_ENOUGH
        body = self._tree.body
        if body is None:
            return 0
        hidden = sum(len(node.text(skip_empty=True)) for node in body.css(_INVISIBLE))
        return max(0, min(len(body.text(skip_empty=True)) - hidden, TEXT_ENOUGH))


# The traversal takes time proportional to elements times selectors, so only selectors of elements in the page are used.
@lru_cache(maxsize=1 << len(_SELECTORS))
def _selector(tags: frozenset[str]) -> str:
    return ", ".join(selector for name, selector in _SELECTORS.items() if name in tags) or "title"


def _in_head(node: LexborNode) -> bool:
    return node.parent is not None and node.parent.tag == "head"


def _value(attributes: _Attributes, name: str) -> str:
    return attributes.get(name) or ""


def _lower(attributes: _Attributes, name: str) -> str:
    value = attributes.get(name)
    return value.strip().lower() if value else ""


def _utf8(html: bytes, charset: str) -> tuple[bytes, str]:
    """Returns a page in UTF-8, and its original encoding."""
    if charset.lower() in _UTF8:
        return html.removeprefix(_UTF8_MARK), "utf-8"  # the parser replaces invalid UTF-8
    _, source, encoding = decode_with_source(html, charset)
    return source, encoding


def resolve_links(hrefs: Iterable[str], base: str, encoding: str = "utf-8") -> tuple[Link, ...]:
    """Returns the first 5,000 distinct links in page order.

    Args:
        hrefs: attribute values of a defused page (`defuse`).
        base: canonical base URL of relative references.
        encoding: encoding of the page, for non-ASCII characters in queries; see `encode_query`.
    """
    folder = base.partition("?")[0].rpartition("/")[0] + "/"
    origin = origin_of(base)
    links: dict[bytes, Link] = {}
    # Menus repeat the same links; each is looked up once.
    for href in dict.fromkeys([href.partition("#")[0].strip() for href in hrefs]):
        if not href:
            continue
        if encoding != "utf-8" and not href.isascii():
            href = encode_query(href, encoding)
        # The key has only the part of the base that the result depends on, so that one cache entry serves many pages.
        start = href[0]
        if start == "/":
            prefix = origin
        elif ":" in href:
            if href.lower().startswith(_NO_PAGE_SCHEMES):
                continue
            prefix = "" if href.startswith(("https://", "http://")) else base
        else:
            prefix = folder if start.isalnum() or start == "." else base
        target = _resolve(prefix, href) if len(href) <= _MAX_CACHED else _resolve.__wrapped__(prefix, href)
        if target is not None and target.key not in links:
            links[target.key] = target
            if len(links) >= MAX_LINKS:
                break
    return tuple(links.values())


# About 30 MB when full, at most 70 MB.
@lru_cache(maxsize=1 << 16)
def _resolve(base: str, href: str) -> Link | None:
    url = _join_plain(base, href) if len(base) + len(href) <= MAX_CRAWLED_URL else None
    url = url or canonical(restore_names(href), base)
    return link(url) if url is not None else None


def _join_plain(base: str, href: str) -> str | None:
    """Returns the absolute URL of a plain reference; None if resolving it takes a URL parser.

    Args:
        base: the origin for references with a leading "/", "" for absolute URLs, otherwise the folder.
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
    """Returns the canonical URL of one attribute value, or None if it is invalid; arguments as for `resolve_links`."""
    return canonical(encode_query(restore_names(href), encoding), base)


def encode_query(href: str, encoding: str) -> str:
    """Percent-encodes the query of a reference in the encoding of its page (URL Standard, "query state").

    Characters that the encoding lacks become percent-encoded character references ("&#1055;"), as in HTML forms.

    >>> encode_query("/д?q=д", "cp1251"), encode_query("/?q=ж", "iso8859-1")
    ('/д?q=%E4', '/?q=%26%231078%3B')
    """
    path, mark, query = href.partition("?")
    if encoding == "utf-8" or query.isascii():
        return href

    def percent_encode(match: re.Match[str]) -> str:
        return quote_from_bytes(match[0].encode(encoding, _AS_REFERENCE), _SAFE_IN_QUERY)

    query, hash_, fragment = query.partition("#")
    return path + mark + _NON_ASCII.sub(percent_encode, query) + hash_ + fragment


def _replace_unencodable(error: UnicodeError) -> tuple[str, int]:
    """Codec error handler: replaces unencodable characters by percent-encoded character references.

    A lone surrogate becomes U+FFFD.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    codes = map(ord, error.object[error.start : error.end])
    return "".join(f"%26%23{0xFFFD if 0xD800 <= code < 0xE000 else code}%3B" for code in codes), error.end


codecs.register_error(_AS_REFERENCE, _replace_unencodable)


class DefusedPage(NamedTuple):
    """A page in which elements neither multiply nor nest without bound.

    Attributes:
        source: the rewritten source. Tags within attribute values are renamed, too: see `restore_names`.
        tags: the elements of `REPORTED` that the page may contain.
    """

    source: bytes
    tags: frozenset[str]


def defuse(html: bytes) -> DefusedPage:
    """Renames the elements that can stall the parser in the source of a page; links and meta elements are kept.

    Time and memory of an HTML parser can grow with the product of two numbers that the page's author controls
    (selectolax 1.0.2, one core):

        formatting elements left open x blocks after    500 <b a=..> and 10,000 <p>x, 44 kB            4.8 s, 1.8 GB
        their attributes x blocks after                 an <a> of 3,000 attributes, 5,000 <p>x, 36 kB  2.2 s, 2.2 GB
        nested elements, squared                        30,000 <dl>, 117 kB                            1.4 s
        options, or attributes of <body>, squared       15,000, 120 kB                                 0.4 s

    The first two follow from the rule that formatting elements closed by a block are reopened after it (HTML Living
    Standard, 13.2.4.3). Only a parser can determine whether a page leaves any open: comments, quotes and tables hide
    end tags. Therefore all are renamed: `<b>` becomes `<j>`, an unknown element that is not reopened. This takes
    0.08 ms for a page of 160 KB. Pages of the last two kinds are flattened: elements with children become empty.

    Args:
        html: the page in UTF-8; invalid sequences are allowed.
    """
    tags = all_tags(html)
    if tags.starts > _FEW_TAGS and _is_deep(html, len(tags.at)):
        return DefusedPage(flatten(html), _ALL)
    matches, kinds = _NAMES.find(html, tags)
    counts = np.bincount(kinds, minlength=256)
    if counts[_OPTION] > _MAX_OPTIONS or counts[_ROOT] > _MAX_ROOTS:
        return DefusedPage(flatten(html), _ALL)
    at = tags.at.take(matches[kinds < 100])
    source = bytearray(html)
    octets = np.frombuffer(source, np.uint8)
    octets[at] = _RENAMED_LETTER.take(octets.take(at))
    return DefusedPage(bytes(source), _reported((counts.take(_COUNTS) > 0).tobytes()))


@lru_cache(maxsize=1 << len(REPORTED))
def _reported(flags: bytes) -> frozenset[str]:
    return frozenset(compress(REPORTED, flags))


def _is_deep(html: bytes, tags: int) -> bool:
    return tags > _MOST_COUNTED or TagNames(html).most_open(_FLAT, ()).nested > _MAX_DEPTH


def flatten(html: bytes) -> bytes:
    """Returns a page without nested elements, with links as `area` elements; it is not much longer than the page.

    The result has the links, meta elements, title and paragraphs (which do not nest), and the elements whose content is
    not markup, such as scripts and styles.
    """
    return b"".join(_TAG.sub(_flatten_tag, block) for block in _blocks(html))


def _blocks(html: bytes) -> Iterator[bytes]:
    """Yields a page in blocks that begin with "<", because a substitution takes twenty times the memory of its text."""
    at = 0
    while at < len(html):
        end = html.find(b"<", at + _BLOCK_BYTES)
        end = end if end >= 0 else len(html)
        yield html[at:end]
        at = end


def _flatten_tag(tag: re.Match[bytes]) -> bytes:
    end, name, closed, runs_on = tag.groups()
    new = _FLATTENED.get(name.lower())
    # A name that runs into the next tag is text, not a tag, such as "a<b" at the end of a style sheet. A tag without
    # attributes can be dropped; the blank prevents a "<" before it from forming a tag with the text after it.
    if runs_on is not None or (new is None and closed):
        return b" " if tag.string[tag.start() - 1 : tag.start()] in (b"<", b"") else b""
    return b"<" + end + (new or b"wbr") + (closed or b"")


def restore_names(value: str) -> str:
    """Returns the original value of an attribute of a defused page, with the renamed tags in it restored.

    >>> restore_names("/find?q=<j>x</j>")
    '/find?q=<b>x</b>'
    """
    return _RENAMED.sub(lambda tag: tag[1] + tag[2][0].translate(_BACK) + tag[2][1:], value) if "<" in value else value
