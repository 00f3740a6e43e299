"""Sitemaps (sitemaps.org protocol) and feeds (RSS, Atom, JSON Feed): what pages a site lists itself.

Pure functions over untrusted bytes. A sitemap is read in blocks; only its URLs are in memory, 32 MB at most. XML is
read as a stream, with one block and one element in memory (`XmlStream`).
"""

import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Literal

from lxml import etree

from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.content_encoding import Unpacked
from tasks.formats.web.url import MAX_CRAWLED_URL

# The protocol's own limits: 50,000 URLs and 50 MB without compression.
MAX_ENTRIES = 50_000
MAX_BYTES = 50 << 20

MAX_FEED_BYTES = 4 << 20
MAX_FEED_ENTRIES = 5000
# All URLs together: a usual list of 50,000 has a tenth of it.
_MAX_CHARS = 32 << 20
_HEAD = 128
_TEXT = re.compile(rb"(?:\xef\xbb\xbf)?\s{0,100}https?://", re.I)
_MONTH = re.compile(r"(\d{4})(?:-(\d{2}))?")
_JSON_FEED = "https://jsonfeed.org/version/"

_BLOCK = 64 << 10
_MAX_CHILDREN = 1000
_MAX_AMPERSANDS = 500_000
_BARE_AMPERSAND = re.compile(rb"&(?!#?\w{1,32};)")
_REFERENCE = re.compile(rb"&#(?:x([0-9a-fA-F]{1,32})|([0-9]{1,32}));")
# Possible beginning of a reference or tag that continues in the next block.
_UNFINISHED = re.compile(rb"(?:&#?\w{0,32}|<(?:!(?:\[(?:C(?:D(?:A(?:T(?:A)?)?)?)?)?)?)?|\]\]?)\Z")


@dataclass(frozen=True)
class SitemapEntry:
    """One URL of a sitemap.

    Attributes:
        url: canonical.
        lastmod: last change as stated by the site, UTC; None where missing or invalid.
    """

    url: str
    lastmod: datetime | None


@dataclass(frozen=True)
class Sitemap:
    """Content of a sitemap.

    Attributes:
        kind: "urlset" names pages, "index" names sitemaps.
        entries: in the order of the file, each URL once.
        left_out: text on why the rest was not read; "" where it was read to its end.
    """

    kind: Literal["urlset", "index"]
    entries: tuple[SitemapEntry, ...]
    left_out: str


def read_sitemap(body: bytes | Unpacked, url: str, limit: int = MAX_ENTRIES) -> Sitemap | None:
    """Reads a sitemap: XML, or text with one URL per line, plain or gzip.

    All URLs that a crawler could fetch are returned, of other hosts too: robots.txt may name a sitemap on one host for
    another. The caller checks the scope.

    Args:
        body: the file without content coding, as a whole or in blocks; gzip is recognised, and unpacked up to 50 MB.
        url: where it was found; base of addresses that are relative against the rules.
        limit: entries (of text: lines) read at most.

    Returns:
        None if it is no sitemap.

    >>> read_sitemap(b"https://example.com/a", "https://example.com/sitemap.txt").entries
    (Entry(url='https://example.com/a', lastmod=None),)
    """
    plain = Unpacked(body, "gzip", MAX_BYTES)
    found = _EntryCollector(url, limit)
    head, blocks = _peek(plain)
    if _TEXT.match(head):
        found.take((line, None) for line in _lines(blocks))
        return Sitemap("urlset", found.entries, found.full or _truncation(plain))
    stream = XmlStream(blocks, roots=("urlset", "sitemapindex"), items=("url", "sitemap"))
    found.take(_url_entries(stream))
    if not stream.root:
        return None
    kind: Literal["urlset", "index"] = "urlset" if stream.root == "urlset" else "index"
    left_out = "" if stream.complete else _truncation(plain) or "it is no whole XML"
    return Sitemap(kind, found.entries, found.full or left_out)


class _EntryCollector:
    """Collects entries up to the limits; `full` names the limit that was reached, or is ""."""

    def __init__(self, base: str, limit: int) -> None:
        self._base = base
        self._limit = limit
        self._entries: dict[str, SitemapEntry] = {}
        self.full = ""

    @property
    def entries(self) -> tuple[SitemapEntry, ...]:
        return tuple(self._entries.values())

    def take(self, named: Iterable[tuple[str, str | None]]) -> None:
        """Takes (address, lastmod) in the order of the file."""
        chars = 0
        for number, (loc, lastmod) in enumerate(named):
            if number >= self._limit:
                self.full = f"it has more than {self._limit:,} entries"
                return
            found = canonical(loc, self._base) if loc else None
            if found is None or found in self._entries:
                continue
            chars += len(found)
            if chars > _MAX_CHARS:
                self.full = f"its addresses have more than {_MAX_CHARS >> 20} M characters"
                return
            self._entries[found] = SitemapEntry(found, _lastmod(lastmod) if lastmod else None)


def _url_entries(stream: "XmlStream") -> Iterator[tuple[str, str | None]]:
    for element in stream:
        is_entry = local_name(element) == ("url" if stream.root == "urlset" else "sitemap")
        yield (text_of(element, "loc"), text_of(element, "lastmod")) if is_entry else ("", None)


def _peek(plain: Unpacked) -> tuple[bytes, Iterator[bytes]]:
    """Returns the beginning of a file, and all its blocks."""
    blocks, head = iter(plain), b""
    while len(head) < _HEAD and (block := next(blocks, b"")):
        head += block
    return head, itertools.chain((head,), blocks)


def _lines(blocks: Iterable[bytes]) -> Iterator[str]:
    """Yields the addresses of a text file; of longer lines than an address has, nothing."""
    left = b""
    for block in itertools.chain(blocks, (b"\n",)):
        *lines, left = (left + block).split(b"\n")
        left = left[: MAX_CRAWLED_URL + 1]
        for line in lines:
            short = line.removeprefix(b"\xef\xbb\xbf") if len(line) <= MAX_CRAWLED_URL else b""
            text = short.decode("utf-8", "replace").strip()
            yield text if text[:4].lower() == "http" else ""


def _truncation(plain: Unpacked) -> str:
    return "" if plain.complete else f"it is cut off, or has more than {MAX_BYTES >> 20} MB"


def _lastmod(text: str) -> datetime | None:
    """Reads a W3C date: a year, a month, a day or a moment; without a zone it counts as UTC."""
    try:
        month = _MONTH.fullmatch(text)
        if month:
            return datetime(int(month[1]), int(month[2] or 1), 1, tzinfo=UTC)
        date = datetime.fromisoformat(text)
        return date.astimezone(UTC) if date.tzinfo else date.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def read_feed(body: bytes, url: str) -> tuple[str, ...] | None:
    """Returns the canonical addresses of a feed's entries in its order, or None if it is no feed.

    Reads RSS 0.9x, 1.0 and 2.0, Atom, and JSON Feed; at most 4 MiB and 5,000 entries of it.

    Args:
        body: the file without content coding.
        url: where it was found; base of relative addresses.

    >>> read_feed(b"<rss><channel><item><link>/a</link></item></channel></rss>", "https://example.com/feed")
    ('https://example.com/a',)
    """
    body = body[:MAX_FEED_BYTES]
    if body.lstrip()[:1] == b"{":
        return _read_json(body, url)
    stream = XmlStream([body], roots=("rss", "RDF", "feed"), items=("item", "entry"))
    links = _canonical_links(_feed_entry(element, url) for element in stream)
    return links if stream.root else None


def _feed_entry(element: Any, url: str) -> tuple[str, str]:
    """Returns (address, base) of one entry; the address is "" where it has none."""
    if local_name(element) == "entry":
        # xml:base is what Atom feeds resolve relative addresses against.
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
    found = [item.get("url") for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    return _canonical_links((href, url) for href in found if isinstance(href, str))


def _canonical_links(found: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    links = [canonical(href, base) for href, base in islice(found, MAX_FEED_ENTRIES) if href]
    return tuple(dict.fromkeys(link for link in links if link is not None))


class XmlStream:
    """One element of an untrusted XML file at a time; to be iterated over once.

    Dangerous features are switched off or refused: no DTD is loaded, nothing is fetched, entities are not expanded, a
    file that declares some is not read, libxml2's limits on nesting (256) and on the length of one text (10 MB) apply,
    and parsed elements are freed at once. Common errors (bare ampersands, HTML entities, references to half a
    character, wrong bytes, a cut end) are skipped. 50,000 URLs take 0.7 s.

    Args:
        blocks: the file, in any pieces.
        roots: local names the outermost element may have, in any namespace; with another one nothing is read.
        items: local names of the elements to yield.

    Attributes:
        root: local name of the outermost element; "" before it is read, or if it is none of `roots`.
        complete: whether the file was read up to the end of its outermost element.
    """

    def __init__(self, blocks: Iterable[bytes], roots: Collection[str], items: Collection[str]) -> None:
        self._blocks = blocks
        self._roots = roots
        self._items = items
        self._top: Any = None
        self.root = ""
        self.complete = False

    def __iter__(self) -> Iterator[Any]:
        """Yields matching elements when they end; each is cleared when the next one is requested."""
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
                    self._forget(self._top)
        except (etree.XMLSyntaxError, UnicodeDecodeError):  # the latter where a name contains half a character
            return

    def _begins(self, element: Any) -> bool:
        """Checks the outermost element; returns False if the file is of another kind or declares entities."""
        declared = element.getroottree().docinfo.internalDTD
        if declared is not None and any(True for _ in declared.iterentities()):
            return False
        if element.getparent() is None and local_name(element) in self._roots:
            self.root = local_name(element)
            self._top = element
        return bool(self.root)

    def _forget(self, node: Any) -> None:
        """Frees finished elements; an item that is still open keeps its children, unless they are too many."""
        while len(node) and (local_name(node) not in self._items or len(node) > _MAX_CHILDREN):
            del node[:-1]
            node = node[0]


def _repair_ampersands(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Repairs ampersands at which the parser would drop the surrounding text.

    Bare ones, with the parameter's name behind them; references to what is no character, with the whole attribute.
    """
    literal, left, ampersands = False, b"", 0
    for block in _pieces(blocks):
        data = left + block
        # UTF-16 is left unchanged, and so is text that consists of ampersands.
        ampersands += data.count(b"&") if b"\0" not in data else _MAX_AMPERSANDS
        if ampersands >= _MAX_AMPERSANDS:
            yield data
            left = b""
            continue
        unfinished = _UNFINISHED.search(data, max(0, len(data) - 40))
        end = unfinished.start() if unfinished else len(data)
        data, left = data[:end], data[end:]
        parts = []
        while data:
            if literal:
                text, mark, data = data.partition(b"]]>")
                parts.append(text + mark)
            else:
                text, mark, data = data.partition(b"<![CDATA[")
                text = _BARE_AMPERSAND.sub(b"&amp;", text)
                parts.append((_REFERENCE.sub(_character, text) if b"&#" in text else text) + mark)
            literal ^= bool(mark)
        yield b"".join(parts)
    yield left


def _character(reference: re.Match[bytes]) -> bytes:
    hexadecimal, decimal = reference.groups()
    code = int(hexadecimal, 16) if hexadecimal else int(decimal)
    # The production Char of XML 1.0.
    known = code in (9, 10, 13) or 0x20 <= code < 0xD800 or 0xE000 <= code < 0xFFFE or 0x10000 <= code <= 0x10FFFF
    return reference[0] if known else b"&#xFFFD;"


def _pieces(blocks: Iterable[bytes]) -> Iterator[bytes]:
    for block in blocks:
        yield from (block[at : at + _BLOCK] for at in range(0, len(block), _BLOCK))


def local_name(element: Any) -> str:
    """Returns the name of an element without its namespace; "" for other nodes."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def text_of(parent: Any, name: str) -> str:
    """Returns the text of the first child with that local name; "" if there is none or it is not plain text."""
    child = parent.find(f"{{*}}{name}")
    return own_text(child) if child is not None and not len(child) else ""


def own_text(element: Any) -> str:
    """Returns the text that an element begins with, without blanks around it; "" where it is no text at all."""
    try:
        return (element.text or "").strip()
    except UnicodeDecodeError:  # a reference to half a character ("&#xD800;")
        return ""


def attribute(element: Any, name: str) -> str:
    """Returns the value of an attribute; "" where it has none that is text."""
    try:
        return element.get(name) or ""
    except UnicodeDecodeError:
        return ""


def base_of(element: Any) -> str:
    """Returns the address that relative ones within an element are meant from (xml:base), or ""."""
    try:
        return element.base or ""
    except UnicodeDecodeError:
        return ""
