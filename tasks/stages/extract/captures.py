"""Captures of a WARC or ARC file as rows, and what their headers refuse; `content` makes texts of the rest.

Reads one file. Every response, revisit and conversion record is one row, and so is every damaged place; the other
records (request, metadata, warcinfo) describe rows and are none. A conversion record holds what somebody has made of a
page: its text (the WET files of Common Crawl), or the page as a browser has drawn it.
"""

import logging
import re
from collections.abc import Iterator
from functools import partial
from typing import BinaryIO

from fastwarc import WarcRecordType

from tasks.formats.text import clean
from tasks.formats.url import MAX_CAPTURED_URL, web_parts
from tasks.formats.warc.payload import Digest
from tasks.formats.warc.reader import read_records
from tasks.formats.warc.record import Damage, Record
from tasks.stages.extract.choices import Choices
from tasks.stages.extract.config import ExtractConfig
from tasks.stages.extract.content import Sent, captured
from tasks.stages.extract.media import HTML_TYPES, media_type
from tasks.stages.extract.row import Row, no_content

log = logging.getLogger("sluice.extract")

# As nearly all are; it tells in a twentieth of the time that there is nothing to look at more closely.
_PLAIN_URL = re.compile(r"https?://[a-z0-9.-]+/(?!robots\.txt)[!-~]*")


def read_warc(
    file: BinaryIO, name: str, source: str, config: ExtractConfig, *, quick: bool = False, own: bool = False
) -> Iterator[Row]:
    """Yields the captures of a WARC file in file order.

    Args:
        file: the file, seekable.
        name: what documents call this file (`warc_file`).
        source: the source that its documents belong to.
        config: limits and choices of the extraction.
        quick: rows that only tell identities: without content, their digests as `payload.quick_digest` makes them.
        own: the file of our own crawler, whose digests are believed.
    """
    choices = Choices.of(config)
    digest: Digest = "quick" if quick else "declared" if own else "computed"
    for found in read_records(file, config.max_payload_bytes + 1, digest=digest):
        if isinstance(found, Damage):
            log.warning("%s: %s at byte %d or behind it (%s)", name, found.reason, found.offset, found.detail)
            place = f"{name}#{found.offset}"
            yield Row(place, source, warc_file=name, warc_offset=found.offset, refused=found.reason, damaged=True)
        else:
            if found.short:
                log.warning("%s: the record of %s is damaged, or declares a wrong length", name, found.url)
            yield _row(found, name, source, config, None if quick else choices)


def _row(record: Record, name: str, source: str, config: ExtractConfig, choices: Choices | None) -> Row:
    url = capture_url(record.url)
    converted = record.kind == WarcRecordType.conversion
    # A quick row has no content, so what the server said of a response is of no use to it.
    sent = _of_conversion(record, url) if converted else _of_response(record, url, headers=choices is not None)
    return Row(
        url=url,
        source=source,
        content=partial(captured, record.payload, sent, choices) if choices else no_content,
        size=len(record.payload),
        payload_digest=record.payload_digest,
        record_id=clean(record.record_id),
        fetched_at=record.date,
        warc_file=name,
        warc_offset=record.offset,
        refused=_refusal(record, url, config),
        rendered=converted and media_type(sent.content_type) in HTML_TYPES,
        damaged=record.short,
    )


def _of_response(record: Record, url: str, *, headers: bool) -> Sent:
    # HTTP headers: names in any case, a name perhaps several times.
    sent: dict[str, list[str]] = {}
    for name, value in (record.http or ()) if headers else ():
        sent.setdefault(name.lower(), []).append(value)
    return Sent(
        url=url,
        content_type=sent.get("content-type", [""])[-1],
        coding=",".join(sent.get("content-encoding", ())),
        language=sent.get("content-language", [""])[-1],
        robots=tuple(sent.get("x-robots-tag", ())),
        fetched_at=record.date,
    )


def _of_conversion(record: Record, url: str) -> Sent:
    # Common Crawl names the languages it has found, the most frequent first: "eng,fra".
    language = str(record.headers.get("WARC-Identified-Content-Language") or "").partition(",")[0].strip()
    kind = str(record.headers.get("Content-Type") or "")
    return Sent(url=url, content_type=kind, language=language, fetched_at=record.date)


def _refusal(record: Record, url: str, config: ExtractConfig) -> str:
    if record.kind == WarcRecordType.revisit:
        return "revisit"
    if record.kind == WarcRecordType.response:
        if record.http is None:
            return "warc_truncated" if record.short else "not_http"
        if record.status is None or not 100 <= record.status <= 599:
            return "http_status_invalid"
        if record.status != 200:
            return f"http_{record.status}"
    if record.short:
        return "warc_truncated"
    if record.size > config.max_payload_bytes:
        return "too_large"
    return url_refusal(url)


def capture_url(written: str) -> str:
    """Returns the address of a capture as documents carry it; of one that is too long, enough to tell that it is."""
    return clean(written[: MAX_CAPTURED_URL + 1])


def url_refusal(url: str) -> str:
    """Returns why captures of an address give no document, or ""."""
    if len(url) > MAX_CAPTURED_URL:
        return "url_invalid"
    if _PLAIN_URL.fullmatch(url):
        return ""
    parts = web_parts(url)
    if parts is None:
        return "url_invalid"
    return "robots_txt" if parts.path == "/robots.txt" else ""
