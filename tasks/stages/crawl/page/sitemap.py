"""Parsers of sitemaps (sitemaps.org protocol) and feeds (RSS, Atom, JSON Feed), in which sites list their own pages.

Pure functions over untrusted bytes. A sitemap is read in blocks; only its URLs are in memory, 32 MB at most. XML is
parsed as a stream, with one block and one element in memory (`XmlStream`).
"""

import codecs
import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from html.entities import html5
from itertools import islice
from typing import Any, Literal

from lxml import etree

from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.content_encoding import DecodedStream
from tasks.formats.web.url import MAX_CRAWLED_URL, distinct, identity

# Limits of the protocol: 50,000 URLs and 50 MB uncompressed.
MAX_ENTRIES = 50_000
MAX_BYTES = 50 << 20

MAX_FEED_BYTES = 4 << 20
MAX_FEED_ENTRIES = 5000
# Characters of all URLs together; a typical sitemap of 50,000 URLs has a tenth of this.
_MAX_CHARS = 32 << 20
_HEAD = 512
_TEXT = re.compile(rb"https?://", re.I)
# Byte order marks and white space, of which some programs write several, before the first character.
_BLANK = re.compile(rb"\A(?:\xef\xbb\xbf|\s)+")
_UTF_16 = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
# A declaration that is readable as ASCII is in none of these encodings.
_WIDE = re.compile(
    rb"""(<\?xml[^>]{1,200}?encoding\s{0,9}=\s{0,9}["'])(?:utf-?(?:16|32)|ucs-?[24]|iso-10646)[\w-]{0,20}""", re.I
)
_MONTH = re.compile(r"(\d{4})(?:-(\d{2}))?")
_JSON_FEED = "https://jsonfeed.org/version/"

_BLOCK = 64 << 10
_MAX_CHILDREN = 1000
_MAX_AMPERSANDS = 500_000
_BARE_AMPERSAND = re.compile(rb"&(?!#?\w{1,32};)")
_REFERENCE = re.compile(rb"&(?:#(?:x([0-9a-fA-F]{1,32})|([0-9]{1,32}))|([a-zA-Z]\w{0,31}));")
_XML_ENTITIES = frozenset((b"amp", b"lt", b"gt", b"quot", b"apos"))
# Possible beginning of a reference or tag that continues in the next block.
_UNFINISHED = re.compile(rb"(?:&#?\w{0,32}|<(?:!(?:\[(?:C(?:D(?:A(?:T(?:A)?)?)?)?)?)?)?|\]\]?)\Z")


@dataclass(frozen=True)
class SitemapEntry:
    """One URL of a sitemap.

    Attributes:
        url: the canonical URL.
        lastmod: last change as stated by the site, in UTC; None if missing or invalid.
    """

    url: str
    lastmod: datetime | None


@dataclass(frozen=True)
class Sitemap:
    """Content of a sitemap.

    Attributes:
        kind: "urlset" for a list of pages, "index" for a list of sitemaps.
        entries: entries in file order, without duplicate URLs.
        left_out: the reason why the rest of the file was not read; "" if it was read to its end.
    """

    kind: Literal["urlset", "index"]
    entries: tuple[SitemapEntry, ...]
    left_out: str


def read_sitemap(body: bytes | DecodedStream, url: str, limit: int = MAX_ENTRIES) -> Sitemap | None:
    """Parses a sitemap: XML, or text with one URL per line, plain or gzip.

    URLs of other hosts are returned as well, because robots.txt of one host may name a sitemap on another. The caller
    checks the scope.

    Args:
        body: the file without content coding, as a whole or in blocks; gzip, also twice, is detected, and unpacked up
            to 50 MB.
        url: URL of the file; base of relative URLs, which the protocol does not allow.
        limit: maximum number of entries (in a text file: lines) to read.

    Returns:
        the sitemap; None if the body is not a sitemap.

    >>> read_sitemap(b"https://example.com/a", "https://example.com/sitemap.txt").entries
    (SitemapEntry(url='https://example.com/a', lastmod=None),)
    """
    plain = DecodedStream(DecodedStream(body, "gzip", MAX_BYTES), "gzip", MAX_BYTES)
    collector = _EntryCollector(url, limit)
    head, blocks = _peek(plain)
    if _TEXT.match(head):
        collector.add_all((line, None) for line in _lines(blocks))
        return Sitemap("urlset", collector.entries, collector.limit_reached or _truncation(plain))
    stream = XmlStream(blocks, roots=("urlset", "sitemapindex"), items=("url", "sitemap"))
    collector.add_all(_url_entries(stream))
    if not stream.root:
        return None
    kind: Literal["urlset", "index"] = "urlset" if stream.root == "urlset" else "index"
    left_out = "" if stream.complete else _truncation(plain) or "its XML is incomplete"
    return Sitemap(kind, collector.entries, collector.limit_reached or left_out)


class _EntryCollector:
    """Collects entries up to the limits; `limit_reached` describes the limit that was exceeded, or is ""."""

    def __init__(self, base: str, limit: int) -> None:
        self._base = base
        self._limit = limit
        self._entries: dict[str, SitemapEntry] = {}
        self.limit_reached = ""

    @property
    def entries(self) -> tuple[SitemapEntry, ...]:
        return tuple(self._entries.values())

    def add_all(self, pairs: Iterable[tuple[str, str | None]]) -> None:
        """Adds pairs of (loc, lastmod) in file order."""
        chars = 0
        for number, (loc, lastmod) in enumerate(pairs):
            if number >= self._limit:
                self.limit_reached = f"it has more than {self._limit:,} entries"
                return
            url = canonical(loc, self._base) if loc else None
            if url is None or (page := identity(url)) in self._entries:
                continue
            chars += len(url)
            if chars > _MAX_CHARS:
                self.limit_reached = f"its URLs have more than {_MAX_CHARS >> 20} M characters"
                return
            self._entries[page] = SitemapEntry(url, _lastmod(lastmod) if lastmod else None)


def _url_entries(stream: "XmlStream") -> Iterator[tuple[str, str | None]]:
    for element in stream:
        is_entry = local_name(element) == ("url" if stream.root == "urlset" else "sitemap")
        yield (text_of(element, "loc"), text_of(element, "lastmod")) if is_entry else ("", None)


def _peek(plain: DecodedStream) -> tuple[bytes, Iterator[bytes]]:
    """Returns the first bytes of a file, and an iterator over all its blocks."""
    blocks, head = iter(plain), b""
    while len(head) < _HEAD and (block := next(blocks, b"")):
        head += block
    if encoding := _UTF_16.get(head[:2]):
        blocks = _as_utf8(itertools.chain((head[2:],), blocks), encoding)
        head = next(blocks, b"")
    head = _WIDE.sub(rb"\1utf-8", _BLANK.sub(b"", head), count=1)
    return head, itertools.chain((head,), blocks)


def _as_utf8(blocks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    return (decoder.decode(block).encode() for block in blocks)


def _lines(blocks: Iterable[bytes]) -> Iterator[str]:
    """Yields the URLs of a text file; "" for other lines, and for lines longer than any URL that is crawled."""
    rest = b""
    for block in itertools.chain(blocks, (b"\n",)):
        *lines, rest = (rest + block).split(b"\n")
        rest = rest[: MAX_CRAWLED_URL + 1]
        for line in lines:
            short = line if len(line) <= MAX_CRAWLED_URL else b""
            text = short.decode("utf-8", "replace").strip()
            yield text if text[:4].lower() == "http" else ""


def _truncation(plain: DecodedStream) -> str:
    return "" if plain.complete else f"it is truncated, or has more than {MAX_BYTES >> 20} MB"


def _lastmod(text: str) -> datetime | None:
    """Parses a W3C date: a year, month, day or time; a time without a time zone counts as UTC."""
    try:
        month = _MONTH.fullmatch(text)
        if month:
            return datetime(int(month[1]), int(month[2] or 1), 1, tzinfo=UTC)
        date = datetime.fromisoformat(text)
        return date.astimezone(UTC) if date.tzinfo else date.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def read_feed(body: bytes, url: str) -> tuple[str, ...] | None:
    """Returns the canonical URLs of the entries of a feed in file order, or None if the body is not a feed.

    Reads RSS 0.9x, 1.0 and 2.0, Atom, and JSON Feed; at most 4 MiB and 5,000 entries.

    Args:
        body: the file without content coding.
        url: URL of the file; base of relative URLs.

    >>> read_feed(b"<rss><channel><item><link>/a</link></item></channel></rss>", "https://example.com/feed")
    ('https://example.com/a',)
    """
    body = b"".join(_peek(DecodedStream(body, "gzip", MAX_FEED_BYTES))[1])
    if body.lstrip()[:1] == b"{":
        return _read_json(body, url)
    stream = XmlStream([body], roots=("rss", "RDF", "feed"), items=("item", "entry"))
    links = _canonical_links(_feed_entry(element, url) for element in stream)
    return links if stream.root else None


def _feed_entry(element: Any, url: str) -> tuple[str, str]:
    """Returns (reference, base) of one entry; the reference is "" if the entry has none."""
    if local_name(element) == "entry":
        # Relative references in Atom feeds are resolved against xml:base.
        return _atom_link(element), canonical(base_of(element), url) or url
    link = text_of(element, "link")
    if not link:
        guid = element.find("{*}guid")
        if guid is not None and (attribute(guid, "isPermaLink") or "true").strip().lower() == "true":
            link = own_text(guid)
    return link or _atom_link(element), url


def _atom_link(element: Any) -> str:
    links = element.iterchildren("{*}link")
    hrefs = {(attribute(child, "rel") or "alternate"): attribute(child, "href") for child in links}
    return hrefs.get("alternate", "")


def _read_json(body: bytes, url: str) -> tuple[str, ...] | None:
    try:
        feed = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(feed, dict) or not str(feed.get("version")).startswith(_JSON_FEED):
        return None
    items = feed.get("items")
    hrefs = [item.get("url") for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    return _canonical_links((href, url) for href in hrefs if isinstance(href, str))


def _canonical_links(references: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    links = [canonical(href, base) for href, base in islice(references, MAX_FEED_ENTRIES) if href]
    return distinct(link for link in links if link is not None)


class XmlStream:
    """Iterates once over the elements of an untrusted XML file.

    Dangerous features are disabled: no DTD is loaded, nothing is fetched, entities are not expanded, a file that
    declares entities is not read, libxml2's limits on nesting (256) and on the length of one text (10 MB) apply, and
    parsed elements are freed at once. The parser recovers from common errors (bare ampersands, HTML entities,
    references to surrogates, invalid bytes, truncation). 50,000 URLs take 0.7 s.

    Args:
        blocks: the file, in blocks of any size.
        roots: local names allowed for the root element, in any namespace; a file with another root is not read.
        items: local names of the elements to yield.

    Attributes:
        root: local name of the root element; "" before it is read, or if it is not one of `roots`.
        complete: whether the file was read up to the end of its root element.
    """

    def __init__(self, blocks: Iterable[bytes], roots: Collection[str], items: Collection[str]) -> None:
        self._blocks = blocks
        self._roots = roots
        self._items = items
        self._top: Any = None
        self.root = ""
        self.complete = False

    def __iter__(self) -> Iterator[Any]:
        """Yields each matching element at its end tag; an element is cleared when the next one is requested."""
        parser = etree.XMLPullParser(
            events=("start", "end"),
            tag=[f"{{*}}{name}" for name in (*self._roots, *self._items)],
            recover=True,
            resolve_entities=False,
            no_network=True,
            load_dtd=False,
            huge_tree=False,
            remove_comments=True,
            remove_pis=True,
        )
        try:
            for block in _repair_ampersands(self._blocks):
                parser.feed(block)
                for event, element in parser.read_events():
                    if not self.root and not self._begins(element):
                        return
                    if event == "end" and local_name(element) in self._items:
                        yield element
                        element.clear()
                    elif event == "end" and element is self._top:
                        self.complete = True
                        return
                if self.root:
                    self._free(self._top)
        except (etree.XMLSyntaxError, UnicodeDecodeError):  # the latter if a name contains a surrogate
            return

    def _begins(self, element: Any) -> bool:
        """Checks the root element; returns False if it is not one of `roots`, or if the file declares entities."""
        declared = element.getroottree().docinfo.internalDTD
        if declared is not None and any(True for _ in declared.iterentities()):
            return False
        if element.getparent() is None and local_name(element) in self._roots:
            self.root = local_name(element)
            self._top = element
        return bool(self.root)

    def _free(self, node: Any) -> None:
        """Frees finished elements; the children of an open item are kept, unless there are too many."""
        while len(node) and (local_name(node) not in self._items or len(node) > _MAX_CHILDREN):
            del node[:-1]
            node = node[0]


def _repair_ampersands(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Repairs ampersands at which the parser would drop text.

    At a bare ampersand the parser drops the name after it; at a reference to an invalid character, the whole attribute;
    at an entity of HTML, which XML does not have, the whole text.
    """
    literal, rest, ampersands = False, b"", 0
    for block in _pieces(blocks):
        data = rest + block
        # UTF-16 is not changed, nor is a file with very many ampersands.
        ampersands += data.count(b"&") if b"\0" not in data else _MAX_AMPERSANDS
        if ampersands >= _MAX_AMPERSANDS:
            yield data
            rest = b""
            continue
        unfinished = _UNFINISHED.search(data, max(0, len(data) - 40))
        end = unfinished.start() if unfinished else len(data)
        data, rest = data[:end], data[end:]
        parts = []
        while data:
            if literal:
                text, mark, data = data.partition(b"]]>")
                parts.append(text + mark)
            else:
                text, mark, data = data.partition(b"<![CDATA[")
                text = _BARE_AMPERSAND.sub(b"&amp;", text)
                parts.append((_REFERENCE.sub(_character, text) if b"&" in text else text) + mark)
            literal ^= bool(mark)
        yield b"".join(parts)
    yield rest


def _character(reference: re.Match[bytes]) -> bytes:
    hexadecimal, decimal, name = reference.groups()
    if name in _XML_ENTITIES:
        return reference[0]
    if name:
        meaning = html5.get(f"{name.decode()};")
        return escape(meaning).encode("ascii", "xmlcharrefreplace") if meaning else b"&amp;" + name + b";"
    code = int(hexadecimal, 16) if hexadecimal else int(decimal)
    # The production Char of XML 1.0.
    valid = code in (9, 10, 13) or 0x20 <= code < 0xD800 or 0xE000 <= code < 0xFFFE or 0x10000 <= code <= 0x10FFFF
    return reference[0] if valid else b"&#xFFFD;"


def _pieces(blocks: Iterable[bytes]) -> Iterator[bytes]:
    for block in blocks:
        yield from (block[at : at + _BLOCK] for at in range(0, len(block), _BLOCK))


def local_name(element: Any) -> str:
    """Returns the name of an element without its namespace; "" for other nodes."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def text_of(parent: Any, name: str) -> str:
    """Returns the text of the first child with that local name; "" if there is none, or if it has child elements."""
    child = parent.find(f"{{*}}{name}")
    return own_text(child) if child is not None and not len(child) else ""


def own_text(element: Any) -> str:
    """Returns the text before the first child of an element, stripped; "" if it cannot be decoded."""
    try:
        return (element.text or "").strip()
    except UnicodeDecodeError:  # a reference to a surrogate ("&#xD800;")
        return ""


def attribute(element: Any, name: str) -> str:
    """Returns the value of an attribute; "" if it is missing or cannot be decoded."""
    try:
        return element.get(name) or ""
    except UnicodeDecodeError:
        return ""


def base_of(element: Any) -> str:
    """Returns the base URL of relative references within an element (xml:base), or ""."""
    try:
        return element.base or ""
    except UnicodeDecodeError:
        return ""
