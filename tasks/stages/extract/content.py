"""Extraction of text from a body, in the child process of `guard`.

Reads the bytes of captures and files. The media type of a body decides who reads it, or why it gives no document; the
number of reasons is bounded, while a server can invent any number of media types. Every worker starts such a process,
so imports are few: modules that few bodies need are imported on first use.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tasks.formats.documents.text import clean
from tasks.formats.web import content_encoding
from tasks.formats.web.charset import decode, decode_with_source
from tasks.formats.web.robots_tag import directives
from tasks.stages.extract.html import read_page
from tasks.stages.extract.row import Content, ExtractOptions, Rejected

_PDF = b"%PDF-"
# What servers say of files whose type they do not know (WHATWG MIME Sniffing Standard, section 7).
_UNNAMED = frozenset(("missing", "application/octet-stream", "binary/octet-stream", "application/x-pdf"))
# Possessive: a header must not be able to cause backtracking.
_CHARSET = re.compile(r"charset\s*+=\s*+[\"']?\s*+([A-Za-z0-9_.:-]++)", re.I)
_MAX_LANGUAGE = 35
# Fetch time if it is unknown: directives that expire have not expired yet.
_NO_TIME = datetime(1, 1, 1, tzinfo=UTC)

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


@dataclass(frozen=True)
class BodyHeaders:
    """Headers of a body that extraction needs; small, because they are sent to another process.

    Attributes:
        url: of the capture.
        content_type: the Content-Type header.
        coding: the content codings, comma-separated.
        language: Content-Language, or for a conversion the language identified by its creator.
        robots: the X-Robots-Tag headers.
        fetched_at: time of capture in UTC; None if it is unknown.
    """

    url: str
    content_type: str
    coding: str = ""
    language: str = ""
    robots: tuple[str, ...] = ()
    fetched_at: datetime | None = None


def extract_capture(payload: bytes, sent: BodyHeaders, choices: ExtractOptions) -> Content:
    """Returns the content of a captured body; raises Rejected with the reason if it gives no document."""
    if choices.honour_noindex and _noindex(sent.robots, sent, names=True):
        raise Rejected("noindex")
    data = _body(payload, sent.coding, choices.max_payload_bytes)
    kind = media_type(sent.content_type) or sniff_media_type(data)
    if kind in _UNNAMED and data.startswith(_PDF) and "application/pdf" in choices.parsers:
        kind = "application/pdf"
    if reader := choices.parsers.get(kind):
        from tasks.stages.extract.parser import parse_body

        content = parse_body(*reader, data, sent.url)
        return replace(content, language_hint=content.language_hint or clean(sent.language)[:_MAX_LANGUAGE])
    if reason := refusal(data, kind):
        raise Rejected(reason)
    charset = _CHARSET.search(sent.content_type)
    text, source, _ = decode_with_source(data, charset[1] if charset else None)
    language = clean(sent.language)[:_MAX_LANGUAGE]
    if kind == "text/plain":
        return Content(text=clean(text), language_hint=language)
    page = read_page(text, choices, source, sent.url)
    about = page.about
    if choices.honour_noindex and _noindex(about.robots, sent, names=False):
        raise Rejected("noindex")
    return Content(
        text=page.text,
        title=about.title,
        language_hint=about.language or language,
        published=about.published,
        canonical=about.canonical,
        licence=about.licence,
        author=about.author,
        site=about.site,
    )


def _noindex(robots: Sequence[str], sent: BodyHeaders, *, names: bool) -> bool:
    # A corpus has no user agent name that a page could address: only directives for all agents apply.
    return bool(robots) and directives(robots, "", sent.fetched_at or _NO_TIME, names=names).noindex


def _body(payload: bytes, coding: str, limit: int) -> bytes:
    if not coding:
        if len(payload) > limit:
            raise Rejected("too_large")
        return payload
    body = content_encoding.decode(payload, coding, limit)
    if body.complete:
        return body.data
    if len(body.data) >= limit:
        raise Rejected("too_large")
    if not body.data:
        raise Rejected("content_coding")
    return body.data  # a truncated stream gives the bytes before its end, as in a browser


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


def sniff_media_type(data: bytes) -> str:
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


def extract_text(data: bytes, name: str) -> Content:
    """Returns the text of a file; raises Rejected for a binary file."""
    text = decode(data)
    if "\0" in text:
        raise Rejected("binary")
    return Content(text=clean(text), title=clean(name))


def extract_metadata(data: bytes, name: str) -> Content:
    """Reads a `METADATA` file (core metadata, PEP 566): the summary, then the description as it is written."""
    import email.parser
    import email.policy

    message = email.parser.Parser(policy=email.policy.compat32).parsestr(decode(data, "utf-8"))
    body = message.get_payload()
    text = body if isinstance(body, str) and body.strip() else _unfolded(str(message.get("Description", "")))
    if not text.strip():
        raise Rejected("no_description")
    summary = str(message.get("Summary", ""))
    title = " ".join(str(message.get("Name", name)).split())
    return Content(text=clean(f"{title}: {summary}\n\n{text}" if summary else text), title=title)


def _unfolded(description: str) -> str:
    """Undoes the folding of a description in a header: eight spaces, or seven and a bar."""
    return "\n".join(line.removeprefix("       |").removeprefix("        ") for line in description.split("\n"))


def extract_row(text: str) -> Content:
    """Returns the text of a row of a dump."""
    return Content(text=clean(text))
