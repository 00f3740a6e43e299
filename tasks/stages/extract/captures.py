"""Reads the captures of a WARC or ARC file as rows, with rejections by headers; `content` extracts the texts.

Every record with captured content is a row, and so is every damaged position; other records (request, metadata,
warcinfo) are skipped. A resource record has a page or file without HTTP headers (warcit writes whole sites so). Those
of Browsertrix under urn: addresses describe a page that is a response of its own, and are rejected with a reason. A
conversion record is derived from a page: its text (WET files of Common Crawl), or the page as rendered by a browser.
"""

import logging
import re
from collections.abc import Iterator
from functools import partial
from typing import BinaryIO

from fastwarc import WarcRecordType

from tasks.formats.documents.text import clean
from tasks.formats.warc.reader import read_records
from tasks.formats.warc.record import PAGE_STATUSES, Damage, Digest, Record
from tasks.formats.web.media_type import HTML_TYPES, media_type
from tasks.formats.web.url import MAX_CAPTURED_URL, web_parts
from tasks.stages.extract.config import ExtractConfig
from tasks.stages.extract.content import BodyHeaders, extract_capture
from tasks.stages.extract.row import ExtractOptions, InputRow, no_content

log = logging.getLogger("sluice.extract")

# Matches nearly all URLs, in a twentieth of the time of parsing them.
_PLAIN_URL = re.compile(r"https?://[a-z0-9.-]+/(?!robots\.txt)[!-~]*")

# Types whose records are rejected with a reason.
_UNREAD = (
    (WarcRecordType.revisit, "revisit"),
    (WarcRecordType.continuation, "continuation"),
    (WarcRecordType.unknown, "warc_type_unknown"),
)
# Resources that are not at a web address, and the names of those with a reason of their own.
_NO_PAGE = re.compile(r"(?!https?:)((?:urn:)?[a-z0-9+.-]+):", re.I)
_RESOURCES = frozenset(("urn_text", "urn_pageinfo", "urn_view", "urn_thumbnail", "dns", "file"))


def read_warc(
    file: BinaryIO, name: str, source: str, config: ExtractConfig, *, quick: bool = False, own: bool = False
) -> Iterator[InputRow]:
    """Yields the captures of a WARC file in file order.

    Args:
        file: the file, seekable.
        name: name of the file in documents (`warc_file`).
        source: source of its documents.
        config: settings of the extraction.
        quick: whether only identities are needed: rows have no content, and digests by `quick_digest`.
        own: whether the file was written by our own crawler, whose declared digests are trusted.
    """
    options = config.options()
    digest: Digest = "quick" if quick else "declared" if own else "computed"
    for entry in read_records(file, config.max_payload_bytes + 1, digest=digest):
        if isinstance(entry, Damage):
            log.warning("%s: %s at or after byte %d (%s)", name, entry.reason, entry.offset, entry.detail)
            place = f"{name}#{entry.offset}"
            yield InputRow(place, source, warc_file=name, warc_offset=entry.offset, refused=entry.reason, damaged=True)
        else:
            if entry.short:
                log.warning("%s: the record of %s is damaged, or declares a wrong length", name, entry.url)
            yield _row(entry, name, source, config, None if quick else options)


def _row(record: Record, name: str, source: str, config: ExtractConfig, options: ExtractOptions | None) -> InputRow:
    url = capture_url(record.url)
    is_conversion = record.kind == WarcRecordType.conversion
    # A quick row has no content, so its HTTP headers are not needed.
    headers = (
        _response_headers(record, url, with_http=options is not None)
        if record.kind == WarcRecordType.response
        else _record_headers(record, url)
    )
    return InputRow(
        url=url,
        source=source,
        content=partial(extract_capture, record.payload, headers, options) if options else no_content,
        size=len(record.payload),
        payload_digest=record.payload_digest,
        record_id=clean(record.record_id),
        fetched_at=record.date,
        warc_file=name,
        warc_offset=record.offset,
        refused=_refusal(record, url, config),
        rendered=is_conversion and media_type(headers.content_type).essence in HTML_TYPES,
        damaged=record.short,
    )


def _response_headers(record: Record, url: str, *, with_http: bool) -> BodyHeaders:
    # Names of HTTP headers are case-insensitive and may occur several times.
    values: dict[str, list[str]] = {}
    for name, value in (record.http or ()) if with_http else ():
        values.setdefault(name.lower(), []).append(value)
    return BodyHeaders(
        url=url,
        content_type=tuple(values.get("content-type", ())),
        coding=",".join(values.get("content-encoding", ())),
        language=values.get("content-language", [""])[-1],
        robots=tuple(values.get("x-robots-tag", ())),
        fetched_at=record.date,
    )


def _record_headers(record: Record, url: str) -> BodyHeaders:
    # Common Crawl lists the identified languages, the most frequent first: "eng,fra".
    language = str(record.headers.get("WARC-Identified-Content-Language") or "").partition(",")[0].strip()
    kind = str(record.headers.get("Content-Type") or "")
    return BodyHeaders(url=url, content_type=(kind,), language=language, fetched_at=record.date)


def _refusal(record: Record, url: str, config: ExtractConfig) -> str:
    if record.kind == WarcRecordType.response:
        if record.http is None:
            return "warc_truncated" if record.short else "not_http"
        if record.status is None or not 100 <= record.status <= 599:
            return "http_status_invalid"
        if record.status not in PAGE_STATUSES:
            return f"http_{record.status}"
    elif reason := _unread(record, url):
        return reason
    if record.short:
        return "warc_truncated"
    if record.size > config.max_payload_bytes:
        return "too_large"
    return url_refusal(url)


def _unread(record: Record, url: str) -> str:
    """Returns why a record other than a response is not read as a page, or ""."""
    if record.kind == WarcRecordType.resource and (scheme := _NO_PAGE.match(url)):
        name = scheme[1].lower().replace(":", "_")
        return f"resource_{name}" if name in _RESOURCES else "resource_other"
    return next((reason for kind, reason in _UNREAD if record.kind == kind), "")


def capture_url(uri: str) -> str:
    """Returns the URL of a capture as in documents; a longer URL is truncated to one character above the limit."""
    return clean(uri[: MAX_CAPTURED_URL + 1])


def url_refusal(url: str) -> str:
    """Returns the reason why captures of a URL give no document: "url_invalid", "robots_txt", or ""."""
    if len(url) > MAX_CAPTURED_URL:
        return "url_invalid"
    if _PLAIN_URL.fullmatch(url):
        return ""
    parts = web_parts(url)
    if parts is None:
        return "url_invalid"
    return "robots_txt" if parts.path == "/robots.txt" else ""
