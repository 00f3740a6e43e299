"""Captures of a WARC file as rows: what their headers refuse, and how the rest becomes text.

Reads one WARC file, used by `stage` and `files`. Every response and revisit record is one row, and so is every damaged
place; the other records (request, metadata, warcinfo) describe rows and are none.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import BinaryIO
from urllib.parse import urlsplit

import fastwarc

from tasks import archive
from tasks.extract.charset import decode
from tasks.extract.config import ExtractConfig
from tasks.extract.html import forbids_index, read_page
from tasks.extract.records import Captured, Damage, read_records, sha1_label
from tasks.extract.row import Content, Rejected, Row
from tasks.text import clean

DAMAGED = "warc_damaged"

_HTML_TYPES = frozenset(("text/html", "application/xhtml+xml"))
# The start of a page whose server named no type (WHATWG MIME Sniffing Standard, section 7.1, the tags that are common).
# Possessive and atomic, here and below: a header or page must not be able to make the search try again and again.
_HTML_START = re.compile(
    rb"\s*+(?>(?:<!--.*?-->\s*+)*)<(?:!doctype html|html|head|body|title|meta|div|h1|p|table)[\s>]", re.I | re.S
)
_CHARSET = re.compile(r"charset\s*+=\s*+[\"']?\s*+([A-Za-z0-9_.:-]++)", re.I)
# Types that get a reason of their own in the funnel; a server can invent any number of others.
_NAMED_TYPES = frozenset(
    (
        *("application/pdf", "application/json", "application/javascript", "application/xml", "application/zip"),
        *("application/rss+xml", "application/atom+xml", "application/octet-stream"),
        *("text/css", "text/javascript", "text/xml"),
        *("image/gif", "image/jpeg", "image/png", "image/svg+xml", "image/webp"),
    )
)
_TOP_LEVEL = frozenset(("application", "audio", "font", "image", "message", "model", "multipart", "text", "video"))
_BINARY = (b"%PDF-", b"\x89PNG", b"GIF8", b"\xff\xd8\xff", b"PK\x03\x04", b"\x7fELF", b"\x1f\x8b")


def read_warc(file: BinaryIO, name: str, source: str, config: ExtractConfig) -> Iterator[Row]:
    """Yields the captures of a WARC file in file order.

    Args:
        file: the file, at its beginning.
        name: what documents call this file (`warc_file`).
        source: the source that its documents belong to.
        config: limits and choices of the extraction.
    """
    for found in read_records(file, config.max_payload_bytes + 1):
        if isinstance(found, Damage):
            yield Row(name, source, warc_file=name, warc_offset=found.after, refused=DAMAGED)
        else:
            yield _row(found, name, source, config)


def _row(captured: Captured, name: str, source: str, config: ExtractConfig) -> Row:
    record, payload = captured.record, captured.payload
    url = clean((record.headers.get("WARC-Target-URI") or "").strip("<> "))
    http = _Headers(captured.http.to_tuples() if captured.http is not None else ())
    return Row(
        url=url,
        source=source,
        content=partial(_content, payload, http, config),
        payload_digest=captured.payload_digest,
        record_id=clean((record.record_id or "").strip("<>")),
        fetched_at=record.record_date,
        warc_file=name,
        warc_offset=record.stream_pos,
        refused=_refusal(captured, url, config),
    )


def payload_digest(payload: bytes) -> str:
    """Returns "sha1:" and the Base32 SHA-1 of a payload."""
    return sha1_label(hashlib.sha1(payload, usedforsecurity=False).digest())


def _refusal(captured: Captured, url: str, config: ExtractConfig) -> str:
    if captured.record.record_type == fastwarc.WarcRecordType.revisit:
        return "revisit"
    if captured.http is None:
        return "not_http"
    status = captured.http.status_code
    if status is None or not 100 <= status <= 599:
        return "http_status_invalid"
    if status != 200:
        return f"http_{status}"
    if captured.short:
        return "warc_truncated"
    if captured.size > config.max_payload_bytes:
        return "too_large"
    return _url_refusal(url)


def _url_refusal(url: str) -> str:
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return "url_invalid"
    if parts.scheme not in ("http", "https") or not host:
        return "url_invalid"
    return "robots_txt" if parts.path == "/robots.txt" else ""


class _Headers:
    """HTTP headers, names in any case, a name perhaps several times."""

    def __init__(self, sent: Iterable[tuple[str, str]]) -> None:
        self._sent = [(name.lower(), value) for name, value in sent]

    def all(self, name: str) -> list[str]:
        return [value for sent, value in self._sent if sent == name]

    def last(self, name: str) -> str:
        return (self.all(name) or [""])[-1]


def _content(payload: bytes, http: _Headers, config: ExtractConfig) -> Content:
    if config.honour_noindex and any(map(forbids_index, http.all("x-robots-tag"))):
        raise Rejected("noindex")
    data = _body(payload, ",".join(http.all("content-encoding")), config.max_payload_bytes)
    declared = http.last("content-type")
    kind = declared.partition(";")[0].strip().lower() or _sniffed(data)
    if kind not in _HTML_TYPES and kind != "text/plain":
        raise Rejected(mime_reason(kind))
    if data.startswith(_BINARY):
        raise Rejected("mime_mismatch")
    charset = _CHARSET.search(declared)
    text = decode(data, charset[1] if charset else None)
    if kind == "text/plain":
        return Content(text=clean(text))
    main = config.extractor == "resiliparse"
    page = read_page(text, main=main, comments=config.comments, min_main_share=config.min_main_share)
    if page.noindex and config.honour_noindex:
        raise Rejected("noindex")
    return Content(page.text, page.title, page.language or http.last("content-language")[:35])


def _body(payload: bytes, coding: str, limit: int) -> bytes:
    body = archive.decode(payload, coding, limit)
    if body.complete:
        return body.data
    if len(body.data) >= limit:
        raise Rejected("too_large")
    if not body.data:
        raise Rejected("content_coding")
    return body.data  # a cut-off stream gives what it holds, as in a browser


def _sniffed(data: bytes) -> str:
    return "text/html" if _HTML_START.match(data[:2048]) else "missing"


def mime_reason(kind: str) -> str:
    """Returns the reason for a media type that gives no document; the number of reasons is bounded.

    >>> mime_reason("application/pdf"), mime_reason("image/x-odd"), mime_reason("junk")
    ('mime_application_pdf', 'mime_image_other', 'mime_other')
    """
    if kind in _NAMED_TYPES or kind == "missing":
        return "mime_" + re.sub(r"[^a-z0-9]+", "_", kind)
    top = kind.partition("/")[0]
    return f"mime_{top}_other" if top in _TOP_LEVEL else "mime_other"
