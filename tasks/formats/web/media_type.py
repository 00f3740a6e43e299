"""Media type of a body by its headers, and whether it is a sitemap or feed by its first bytes.

The crawler and the extraction read the same bodies, so both use these functions. Sitemaps and feeds are known by their
content, because servers send them with various media types.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from tasks.formats.web.content_encoding import decode

XHTML = "application/xhtml+xml"
HTML_TYPES = frozenset(("text/html", XHTML))

# An element of a comma-separated list; commas in quoted strings do not separate.
_PART = re.compile(r'(?:[^",]|"[^"]*(?:"|$))+')
_TYPE = re.compile(r"(?!\*/\*)([\w!#$%&'*+.^`|~-]+/[\w!#$%&'*+.^`|~-]+)[ \t]*(?:;|$)", re.ASCII)
# Possessive, so that a header cannot cause backtracking.
_CHARSET = re.compile(r"charset\s*+=\s*+[\"']?\s*+([A-Za-z0-9_.:-]++)", re.I)


_GZIP = b"\x1f\x8b"
_HEAD = 4096
# Possessive and atomic, so that a body cannot cause backtracking.
_XML_ROOT = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*+(?>(?:(?:<\?.*?\?>|<!--.*?-->|<!DOCTYPE[^>]*+>)\s*+)*)<(?:\w++:)?(\w++)[\s>]", re.I | re.S
)
_ROOTS = {b"urlset": "sitemap", b"sitemapindex": "sitemap", b"rss": "feed", b"feed": "feed", b"rdf": "feed"}


class MediaType(NamedTuple):
    """A media type.

    Attributes:
        essence: type and subtype in lower case, without parameters; "" if no header states one. Of headers without any
            valid type, the last as stated.
        charset: the parameter, or "".
    """

    essence: str
    charset: str


def media_type(values: Iterable[str]) -> MediaType:
    """Returns the media type of a body, as browsers do (Fetch Standard, "extract a MIME type").

    That is the last valid type of all Content-Type headers; if it has no charset, that of an equal type before it.

    Args:
        values: the headers, in their order.

    >>> media_type(["text/plain", "*/*, text/html; charset=koi8-r", "Text/HTML"])
    MediaType(essence='text/html', charset='koi8-r')
    """
    essence = charset = other = ""
    for value in values:
        for part in map(str.strip, _PART.findall(value)):
            match = _TYPE.match(part)
            if match is None:
                other = part
                continue
            stated = _CHARSET.search(part, match.end())
            same = match[1].lower() == essence
            essence = match[1].lower()
            charset = stated[1] if stated else charset if same else ""
    if essence:
        return MediaType(essence, charset)
    stated = _CHARSET.search(other)
    return MediaType(other.partition(";")[0].strip().lower(), stated[1] if stated else "")


def listing_of(data: bytes) -> str:
    """Returns "sitemap" or "feed" if a body is an XML file with the root element of one, with or without gzip, else "".

    >>> listing_of(b'<?xml version="1.0"?><rss version="2.0"></rss>'), listing_of(b"<html></html>")
    ('feed', '')
    """
    root = _XML_ROOT.match(unpacked_head(data))
    return _ROOTS.get(root[1].lower(), "") if root else ""


def unpacked_head(data: bytes) -> bytes:
    """Returns the first bytes of a body, without gzip."""
    return decode(data, "gzip", _HEAD).data if data.startswith(_GZIP) else data[:_HEAD]
