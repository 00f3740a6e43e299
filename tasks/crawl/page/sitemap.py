"""Sitemaps: the URLs that a site names itself (sitemaps.org protocol).

Used by visit for what robots.txt names as sitemap. Pure functions over untrusted bytes.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO
from typing import Literal

from tasks.codings import decode
from tasks.crawl.page.xml_stream import XmlStream, local_name, text_of
from tasks.crawl.url import MAX_URL, canonical

# The protocol's own limits: 50,000 URLs and 50 MB without compression.
MAX_ENTRIES = 50_000
MAX_BYTES = 50 << 20
_TEXT = re.compile(rb"(?:\xef\xbb\xbf)?\s{0,100}https?://", re.I)
_MONTH = re.compile(r"(\d{4})(?:-(\d{2}))?")


@dataclass(frozen=True)
class Entry:
    """One URL of a sitemap.

    Attributes:
        url: canonical.
        lastmod: when the site says it changed last, UTC; None where it says nothing that can be read.
    """

    url: str
    lastmod: datetime | None


@dataclass(frozen=True)
class Sitemap:
    """What a sitemap holds.

    Attributes:
        kind: "urlset" names pages, "index" names sitemaps.
        entries: in the order of the file, each URL once.
        complete: False where the file was cut, broken, or longer than the limits.
    """

    kind: Literal["urlset", "index"]
    entries: tuple[Entry, ...]
    complete: bool


def read_sitemap(body: bytes, url: str, limit: int = MAX_ENTRIES) -> Sitemap | None:
    """Reads a sitemap: XML, or text with one URL per line, plain or gzip.

    All URLs that a crawler could fetch are returned, of other hosts too: robots.txt may name a sitemap on one host for
    another. What the crawl covers is for the caller to say.

    Args:
        body: the file without content coding; gzip is recognised, and unpacked up to 50 MB.
        url: where it was found; base of addresses that are relative against the rules.
        limit: entries (of text: lines) read at most.

    Returns:
        None if it is no sitemap.

    >>> read_sitemap(b"https://example.com/a", "https://example.com/sitemap.txt").entries
    (Entry(url='https://example.com/a', lastmod=None),)
    """
    plain = decode(body, "gzip", MAX_BYTES)
    whole = plain.complete
    if _TEXT.match(plain.data):
        return _read_text(plain.data, url, limit, whole)
    stream = XmlStream([plain.data], roots=("urlset", "sitemapindex"), items=("url", "sitemap"))
    entries: dict[str, Entry] = {}
    for number, element in enumerate(stream):
        if number >= limit:
            whole = False
            break
        if local_name(element) == ("url" if stream.root == "urlset" else "sitemap"):
            _add(entries, text_of(element, "loc"), url, _lastmod(text_of(element, "lastmod")))
    if not stream.root:
        return None
    kind: Literal["urlset", "index"] = "urlset" if stream.root == "urlset" else "index"
    return Sitemap(kind, tuple(entries.values()), whole and stream.complete)


def _read_text(data: bytes, url: str, limit: int, whole: bool) -> Sitemap:
    entries: dict[str, Entry] = {}
    for number, line in enumerate(BytesIO(data.removeprefix(b"\xef\xbb\xbf"))):
        if number >= limit:
            whole = False
            break
        text = line[:MAX_URL].decode("utf-8", "replace").strip()
        if text[:4].lower() == "http":
            _add(entries, text, url, None)
    return Sitemap("urlset", tuple(entries.values()), whole)


def _add(entries: dict[str, Entry], loc: str, base: str, lastmod: datetime | None) -> None:
    found = canonical(loc, base) if loc else None
    if found is not None and found not in entries:
        entries[found] = Entry(found, lastmod)


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
