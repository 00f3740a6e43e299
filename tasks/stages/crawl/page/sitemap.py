"""Parser of sitemaps (sitemaps.org protocol).

Pure functions over untrusted bytes. A file is read in blocks; only its URLs are in memory, 32 MB at most.
"""

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.content_encoding import Unpacked
from tasks.formats.web.url import MAX_CRAWLED_URL
from tasks.stages.crawl.page.xml_stream import XmlStream, local_name, text_of

# The protocol's own limits: 50,000 URLs and 50 MB without compression.
MAX_ENTRIES = 50_000
MAX_BYTES = 50 << 20
# All URLs together: a usual list of 50,000 has a tenth of it.
_MAX_CHARS = 32 << 20
_HEAD = 128
_TEXT = re.compile(rb"(?:\xef\xbb\xbf)?\s{0,100}https?://", re.I)
_MONTH = re.compile(r"(\d{4})(?:-(\d{2}))?")


@dataclass(frozen=True)
class Entry:
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
    entries: tuple[Entry, ...]
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
    found = _Entries(url, limit)
    head, blocks = _peeked(plain)
    if _TEXT.match(head):
        found.take((line, None) for line in _lines(blocks))
        return Sitemap("urlset", found.entries, found.full or _cut(plain))
    stream = XmlStream(blocks, roots=("urlset", "sitemapindex"), items=("url", "sitemap"))
    found.take(_named(stream))
    if not stream.root:
        return None
    kind: Literal["urlset", "index"] = "urlset" if stream.root == "urlset" else "index"
    left_out = "" if stream.complete else _cut(plain) or "it is no whole XML"
    return Sitemap(kind, found.entries, found.full or left_out)


class _Entries:
    """Collects entries up to the limits; `full` names the limit that was reached, or is ""."""

    def __init__(self, base: str, limit: int) -> None:
        self._base = base
        self._limit = limit
        self._entries: dict[str, Entry] = {}
        self.full = ""

    @property
    def entries(self) -> tuple[Entry, ...]:
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
            self._entries[found] = Entry(found, _lastmod(lastmod) if lastmod else None)


def _named(stream: XmlStream) -> Iterator[tuple[str, str | None]]:
    for element in stream:
        is_entry = local_name(element) == ("url" if stream.root == "urlset" else "sitemap")
        yield (text_of(element, "loc"), text_of(element, "lastmod")) if is_entry else ("", None)


def _peeked(plain: Unpacked) -> tuple[bytes, Iterator[bytes]]:
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


def _cut(plain: Unpacked) -> str:
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
