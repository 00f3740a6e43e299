"""Captures of a WARC file as rows: what their headers refuse, and how the rest becomes text.

Reads one WARC file, used by `stage` and `files`. Every response, revisit and conversion record is one row, and so is
every damaged place; the other records (request, metadata, warcinfo) describe rows and are none. A conversion record
holds what somebody has made of a page: its text (the WET files of Common Crawl), or the page as a browser has drawn it.
"""

import logging
import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import BinaryIO
from urllib.parse import urlsplit

from fastwarc import WarcRecordType

from tasks import archive
from tasks.charset import decode
from tasks.extract.config import ExtractConfig
from tasks.extract.html import forbids_index, read_page
from tasks.extract.media import HTML_TYPES, refusal, sniffed
from tasks.extract.row import Content, Rejected, Row
from tasks.text import clean
from tasks.warc_reader import Damage, Record, read_records

log = logging.getLogger("sluice.extract")

# Possessive: a header must not be able to make the search try again and again.
_CHARSET = re.compile(r"charset\s*+=\s*+[\"']?\s*+([A-Za-z0-9_.:-]++)", re.I)
_MAX_LANGUAGE = 35


def read_warc(file: BinaryIO, name: str, source: str, config: ExtractConfig) -> Iterator[Row]:
    """Yields the captures of a WARC file in file order.

    Args:
        file: the file, seekable.
        name: what documents call this file (`warc_file`).
        source: the source that its documents belong to.
        config: limits and choices of the extraction.
    """
    for found in read_records(file, config.max_payload_bytes + 1):
        if isinstance(found, Damage):
            log.warning("%s: %s at byte %d or behind it (%s)", name, found.reason, found.offset, found.detail)
            place = f"{name}#{found.offset}"
            yield Row(place, source, warc_file=name, warc_offset=found.offset, refused=found.reason, damaged=True)
        else:
            if found.short:
                log.warning("%s: the record at byte %d lacks bytes that it declares", name, found.offset)
            yield _row(found, name, source, config)


def _row(record: Record, name: str, source: str, config: ExtractConfig) -> Row:
    url = clean(record.url)
    converted = record.kind == WarcRecordType.conversion
    sent = _Headers(record.http or ())
    content_type = str(record.headers.get("Content-Type") or "") if converted else sent.last("content-type")
    return Row(
        url=url,
        source=source,
        content=partial(_converted, record, content_type, config)
        if converted
        else partial(_captured, record.payload, sent, config),
        payload_digest=record.payload_digest,
        record_id=clean(record.record_id),
        fetched_at=record.date,
        warc_file=name,
        warc_offset=record.offset,
        refused=_refusal(record, url, config),
        rendered=converted and _media_type(content_type) in HTML_TYPES,
        damaged=record.short,
    )


def _refusal(record: Record, url: str, config: ExtractConfig) -> str:
    if record.kind == WarcRecordType.revisit:
        return "revisit"
    if record.kind == WarcRecordType.response:
        if record.http is None:
            return "not_http"
        if record.status is None or not 100 <= record.status <= 599:
            return "http_status_invalid"
        if record.status != 200:
            return f"http_{record.status}"
    if record.short:
        return "warc_truncated"
    if record.size > config.max_payload_bytes:
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


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _captured(payload: bytes, http: _Headers, config: ExtractConfig) -> Content:
    if config.honour_noindex and any(map(forbids_index, http.all("x-robots-tag"))):
        raise Rejected("noindex")
    data = _body(payload, ",".join(http.all("content-encoding")), config.max_payload_bytes)
    return _text(data, http.last("content-type"), http.last("content-language"), config)


def _converted(record: Record, content_type: str, config: ExtractConfig) -> Content:
    # Common Crawl names the languages it has found, the most frequent first: "eng,fra".
    language = str(record.headers.get("WARC-Identified-Content-Language") or "").partition(",")[0].strip()
    return _text(record.payload, content_type, language, config)


def _text(data: bytes, content_type: str, language: str, config: ExtractConfig) -> Content:
    kind = _media_type(content_type) or sniffed(data)
    if reason := refusal(data, kind):
        raise Rejected(reason)
    charset = _CHARSET.search(content_type)
    text = decode(data, charset[1] if charset else None)
    language = clean(language)[:_MAX_LANGUAGE]
    if kind == "text/plain":
        return Content(text=clean(text), language_hint=language)
    main = config.extractor == "resiliparse"
    page = read_page(text, main=main, comments=config.comments, min_main_share=config.min_main_share)
    if page.noindex and config.honour_noindex:
        raise Rejected("noindex")
    return Content(page.text, page.title, page.language or language)


def _body(payload: bytes, coding: str, limit: int) -> bytes:
    body = archive.decode(payload, coding, limit)
    if body.complete:
        return body.data
    if len(body.data) >= limit:
        raise Rejected("too_large")
    if not body.data:
        raise Rejected("content_coding")
    return body.data  # a cut-off stream gives what it holds, as in a browser
