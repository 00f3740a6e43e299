"""Parser of feeds (RSS, Atom, JSON Feed): the newest pages of a site.

Pure functions over untrusted bytes.
"""

import json
from collections.abc import Iterable
from itertools import islice
from typing import Any

from tasks.formats.web.canonical_url import canonical
from tasks.stages.crawl.page.xml_stream import XmlStream, attribute, base_of, local_name, own_text, text_of

MAX_BYTES = 4 << 20
MAX_ENTRIES = 5000
_JSON_FEED = "https://jsonfeed.org/version/"


def read_feed(body: bytes, url: str) -> tuple[str, ...] | None:
    """Returns the canonical addresses of a feed's entries in its order, or None if it is no feed.

    Reads RSS 0.9x, 1.0 and 2.0, Atom, and JSON Feed; at most 4 MiB and 5,000 entries of it.

    Args:
        body: the file without content coding.
        url: where it was found; base of relative addresses.

    >>> read_feed(b"<rss><channel><item><link>/a</link></item></channel></rss>", "https://example.com/feed")
    ('https://example.com/a',)
    """
    body = body[:MAX_BYTES]
    if body.lstrip()[:1] == b"{":
        return _read_json(body, url)
    stream = XmlStream([body], roots=("rss", "RDF", "feed"), items=("item", "entry"))
    links = _canonical(_entry(element, url) for element in stream)
    return links if stream.root else None


def _entry(element: Any, url: str) -> tuple[str, str]:
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
    return _canonical((href, url) for href in found if isinstance(href, str))


def _canonical(found: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    links = [canonical(href, base) for href, base in islice(found, MAX_ENTRIES) if href]
    return tuple(dict.fromkeys(link for link in links if link is not None))
