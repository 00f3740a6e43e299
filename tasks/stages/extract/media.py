"""Media type of a body, and the reason if it gives no document.

The number of reasons is bounded: a server can invent any number of media types.
"""

import re

from tasks.formats.web import content_encoding

HTML_TYPES = frozenset(("text/html", "application/xhtml+xml"))

# Possessive and atomic, here and below: a page must not be able to cause backtracking.
# The start of a page whose server named no type (WHATWG MIME Sniffing Standard, section 7.1, the tags that are common).
_HTML_START = re.compile(
    rb"\s*+(?>(?:<!--.*?-->\s*+)*)<(?:!doctype html|html|head|body|title|meta|div|h1|p|table)[\s>]", re.I | re.S
)
_XML_ROOT = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*+(?>(?:(?:<\?.*?\?>|<!--.*?-->|<!DOCTYPE[^>]*+>)\s*+)*)<(?:\w++:)?(\w++)[\s>]", re.I | re.S
)
_ROOTS = {b"urlset": "sitemap", b"sitemapindex": "sitemap", b"rss": "feed", b"feed": "feed", b"rdf": "feed"}
_GZIP = b"\x1f\x8b"
_HEAD = 4096
# Types that get a reason of their own in the funnel.
_NAMED_TYPES = frozenset(
    (
        *("application/pdf", "application/json", "application/javascript", "application/xml", "application/zip"),
        *("application/rss+xml", "application/atom+xml", "application/octet-stream", "application/gzip"),
        *("text/css", "text/javascript", "text/xml"),
        *("image/gif", "image/jpeg", "image/png", "image/svg+xml", "image/webp"),
    )
)
_SAME = {"application/x-gzip": "application/gzip"}
_TOP_LEVEL = frozenset(("application", "audio", "font", "image", "message", "model", "multipart", "text", "video"))
_BINARY = (b"%PDF-", b"\x89PNG", b"GIF8", b"\xff\xd8\xff", b"PK\x03\x04", b"\x7fELF", _GZIP)


def refusal(data: bytes, kind: str) -> str:
    """Returns the reason why a body of the media type `kind` gives no document, or "".

    Sitemaps and feeds, which a crawl stores like pages, are detected by their content, with or without gzip: servers
    send them under any type, and as text they would be lists of URLs.
    """
    if found := _listing(data, kind):
        return found
    if kind not in HTML_TYPES and kind != "text/plain":
        return mime_reason(kind)
    return "mime_mismatch" if data.startswith(_BINARY) else ""


def media_type(content_type: str) -> str:
    """Returns the media type of a Content-Type header, or "" where it names none."""
    return content_type.partition(";")[0].strip().lower()


def sniffed(data: bytes) -> str:
    """Returns the media type of a body whose server named none: "text/html", or "missing" for any other."""
    return "text/html" if _HTML_START.match(data[:2048]) else "missing"


def mime_reason(kind: str) -> str:
    """Returns the reason for a media type that gives no document.

    >>> mime_reason("application/pdf"), mime_reason("image/x-odd"), mime_reason("junk")
    ('mime_application_pdf', 'mime_image_other', 'mime_other')
    """
    kind = _SAME.get(kind, kind)
    if kind in _NAMED_TYPES or kind == "missing":
        return "mime_" + re.sub(r"[^a-z0-9]+", "_", kind)
    top = kind.partition("/")[0]
    return f"mime_{top}_other" if top in _TOP_LEVEL else "mime_other"


def _listing(data: bytes, kind: str) -> str:
    head = content_encoding.decode(data, "gzip", _HEAD).data if data.startswith(_GZIP) else data[:_HEAD]
    if root := _XML_ROOT.match(head):
        return _ROOTS.get(root[1].lower(), "")
    # A sitemap may also be a text file with a URL per line (sitemaps.org, "Text file").
    if kind == "text/plain" and head.startswith((b"http://", b"https://")):
        lines = data.split(b"\n")
        return "sitemap" if all(_is_url(line) for line in lines) else ""
    return ""


def _is_url(line: bytes) -> bool:
    line = line.strip()
    return not line or (line.startswith((b"http://", b"https://")) and b" " not in line)
