"""Extraction of text from a body, in the child process of `guard`.

Reads the bytes of captures and files. The media type of a body determines its reader, or the reason for its rejection;
the number of reasons is bounded, while servers can send any number of media types. Every worker starts such a process,
so imports are few: modules that few bodies need are imported on first use.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tasks.formats.documents.text import clean
from tasks.formats.web import content_encoding
from tasks.formats.web.charset import decode, decode_with_source
from tasks.formats.web.media_type import HTML_TYPES, XHTML, listing_of, media_type, unpacked_head
from tasks.formats.web.robots_tag import directives
from tasks.stages.extract.html import read_page
from tasks.stages.extract.row import Content, ExtractOptions, Rejected

_PDF = b"%PDF-"
_EPUB, _DOCX = "application/epub+zip", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
_ZIP, _MIMETYPE, _DOCX_MEMBER = b"PK\x03\x04", b"mimetype" + _EPUB.encode(), b"word/document.xml"
# A directory is at the end of a zip file; that of a document with a thousand pictures is as long.
_DIRECTORY = 1 << 17
# Types that servers send for files of unknown type (WHATWG MIME Sniffing Standard, section 7).
_UNNAMED = frozenset(
    ("missing", "application/octet-stream", "binary/octet-stream", "application/x-pdf", "application/zip")
)
_MAX_LANGUAGE = 35
# Used if the fetch time is unknown: no directive has expired at this time.
_NO_TIME = datetime(1, 1, 1, tzinfo=UTC)

# Possessive and atomic, here and below, so that a page cannot cause backtracking.
# The start of an HTML page without a Content-Type (WHATWG MIME Sniffing Standard, section 7.1, common tags only).
_HTML_START = re.compile(
    rb"\s*+(?>(?:<!--.*?-->\s*+)*)<(?:!doctype html|html|head|body|title|meta|div|h1|p|table)[\s>]", re.I | re.S
)
_GZIP = b"\x1f\x8b"
# Types with a reason of their own in the funnel report.
_NAMED_TYPES = frozenset(
    (
        *("application/pdf", "application/json", "application/javascript", "application/xml", "application/zip"),
        *("application/rss+xml", "application/atom+xml", "application/octet-stream", "application/gzip"),
        *("text/css", "text/javascript", "text/xml"),
        *("image/gif", "image/jpeg", "image/png", "image/svg+xml", "image/webp"),
    )
)
_ALIASES = {"application/x-gzip": "application/gzip"}
_TOP_LEVEL = frozenset(("application", "audio", "font", "image", "message", "model", "multipart", "text", "video"))
_BINARY = (b"%PDF-", b"\x89PNG", b"GIF8", b"\xff\xd8\xff", b"PK\x03\x04", b"\x7fELF", _GZIP)


@dataclass(frozen=True)
class BodyHeaders:
    """The headers of a body that extraction needs; small, because they are sent to the child process.

    Attributes:
        url: URL of the capture.
        content_type: values of Content-Type.
        coding: content codings, separated by commas.
        language: Content-Language; for a conversion the language that its creator identified.
        robots: values of X-Robots-Tag.
        fetched_at: time of the capture in UTC; None if unknown.
    """

    url: str
    content_type: tuple[str, ...]
    coding: str = ""
    language: str = ""
    robots: tuple[str, ...] = ()
    fetched_at: datetime | None = None


def extract_capture(payload: bytes, headers: BodyHeaders, options: ExtractOptions) -> Content:
    """Returns the content of a captured body; raises Rejected if it gives no document."""
    if options.honour_noindex and _noindex(headers.robots, headers, names=True):
        raise Rejected("noindex")
    data = _body(payload, headers.coding, options.max_payload_bytes)
    stated_type = media_type(headers.content_type)
    kind = stated_type.essence or sniff_media_type(data)
    if kind in _UNNAMED and (named := _sniff_file(data)) in options.parsers:
        kind = named
    if parser := options.parsers.get(kind):
        from tasks.stages.extract.parser import parse_body

        content = parse_body(*parser, data, headers.url, options.text, options.max_table_rows)
        return replace(content, language_hint=content.language_hint or clean(headers.language)[:_MAX_LANGUAGE])
    if reason := refusal(data, kind):
        raise Rejected(reason)
    text, source, _ = decode_with_source(data, stated_type.charset)
    language = clean(headers.language)[:_MAX_LANGUAGE]
    if kind == "text/plain":
        return Content(text=clean(text), language_hint=language)
    if kind == XHTML:
        from tasks.formats.web.xhtml import decoded_html

        text, source = decoded_html(text, source)
    page = read_page(text, options, source, headers.url, headers.fetched_at)
    stated = page.metadata
    if options.honour_noindex and _noindex(stated.robots, headers, names=False):
        raise Rejected("noindex")
    return Content(
        text=page.text,
        form=options.text,
        title=stated.title,
        language_hint=stated.language or language,
        published=stated.published,
        canonical=stated.canonical,
        licence=stated.licence,
        author=stated.author,
        site=stated.site,
    )


def _noindex(robots: Sequence[str], headers: BodyHeaders, *, names: bool) -> bool:
    # A corpus has no user agent name, so only directives for all agents apply.
    return bool(robots) and directives(robots, "", headers.fetched_at or _NO_TIME, names=names).noindex


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
    return body.data  # of a truncated stream the decoded bytes are used, as in browsers


def refusal(data: bytes, kind: str) -> str:
    """Returns the reason why a body of the media type `kind` gives no document, or "".

    Sitemaps and feeds, which a crawl stores like pages, are detected by their content, with or without gzip, because
    servers send them with various media types.
    """
    if listing := _listing(data, kind):
        return listing
    if kind not in HTML_TYPES and kind != "text/plain":
        return mime_reason(kind)
    return "mime_mismatch" if data.startswith(_BINARY) else ""


def sniff_media_type(data: bytes) -> str:
    """Returns the media type of a body without a Content-Type: "text/html", or "missing" for anything else."""
    return "text/html" if _HTML_START.match(data[:2048]) else "missing"


def _sniff_file(data: bytes) -> str:
    """Returns the media type of a file that a parser of Sluice may read, by its bytes; "" for another."""
    if data.startswith(_PDF):
        return "application/pdf"
    if not data.startswith(_ZIP):
        return ""
    # An EPUB begins with a stored member that names its type (EPUB 3.3, section 4.2.6.3).
    if data.startswith(_MIMETYPE, 30):
        return _EPUB
    return _DOCX if _DOCX_MEMBER in data[-_DIRECTORY:] else ""


def mime_reason(kind: str) -> str:
    """Returns the reason for a media type that gives no document.

    >>> mime_reason("application/pdf"), mime_reason("image/x-odd"), mime_reason("junk")
    ('mime_application_pdf', 'mime_image_other', 'mime_other')
    """
    kind = _ALIASES.get(kind, kind)
    if kind in _NAMED_TYPES or kind == "missing":
        return "mime_" + re.sub(r"[^a-z0-9]+", "_", kind)
    top = kind.partition("/")[0]
    return f"mime_{top}_other" if top in _TOP_LEVEL else "mime_other"


def _listing(data: bytes, kind: str) -> str:
    if listing := listing_of(data):
        return listing
    # A sitemap may also be a text file with a URL per line (sitemaps.org, "Text file").
    if kind == "text/plain" and unpacked_head(data).startswith((b"http://", b"https://")):
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
    """Extracts the summary and the description of a `METADATA` file (core metadata, PEP 566).

    Raises:
        Rejected: the file has no description.
    """
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
    """Returns a header's description without the indentation of folded lines: eight spaces, or seven and a bar."""
    return "\n".join(line.removeprefix("       |").removeprefix("        ") for line in description.split("\n"))


def extract_row(text: str) -> Content:
    """Returns the content of the text field of a row."""
    return Content(text=clean(text))
