"""Extraction of text from a body, in the child process of `guard`.

Reads the bytes of captures and files. Every worker starts such a process, so imports are few: modules that few bodies
need are imported on first use.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tasks.formats.documents.text import clean
from tasks.formats.web import content_encoding
from tasks.formats.web.charset import decode, with_source
from tasks.formats.web.robots_tag import directives
from tasks.stages.extract.html import read_page
from tasks.stages.extract.media import media_type, refusal, sniffed
from tasks.stages.extract.page_metadata import absolute
from tasks.stages.extract.row import Choices, Content, Rejected

_PDF = b"%PDF-"
# What servers say of files whose type they do not know (WHATWG MIME Sniffing Standard, section 7).
_UNNAMED = frozenset(("missing", "application/octet-stream", "binary/octet-stream", "application/x-pdf"))
# Possessive: a header must not be able to cause backtracking.
_CHARSET = re.compile(r"charset\s*+=\s*+[\"']?\s*+([A-Za-z0-9_.:-]++)", re.I)
_MAX_LANGUAGE = 35
# Fetch time if it is unknown: directives that expire have not expired yet.
_NO_TIME = datetime(1, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Sent:
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


def captured(payload: bytes, sent: Sent, choices: Choices) -> Content:
    """Returns the content of a captured body; raises Rejected with the reason if it gives no document."""
    if choices.honour_noindex and _noindex(sent.robots, sent, names=True):
        raise Rejected("noindex")
    data = _body(payload, sent.coding, choices.max_payload_bytes)
    kind = media_type(sent.content_type) or sniffed(data)
    if kind in _UNNAMED and data.startswith(_PDF) and "application/pdf" in choices.parsers:
        kind = "application/pdf"
    if reader := choices.parsers.get(kind):
        from tasks.stages.extract.parser import parsed

        content = parsed(*reader, data, sent.url)
        return replace(content, language_hint=content.language_hint or clean(sent.language)[:_MAX_LANGUAGE])
    if reason := refusal(data, kind):
        raise Rejected(reason)
    charset = _CHARSET.search(sent.content_type)
    text, source, _ = with_source(data, charset[1] if charset else None)
    language = clean(sent.language)[:_MAX_LANGUAGE]
    if kind == "text/plain":
        return Content(text=clean(text), language_hint=language)
    page = read_page(text, choices, source, sent.url)
    page_metadata = page.about
    if choices.honour_noindex and _noindex(page_metadata.robots, sent, names=False):
        raise Rejected("noindex")
    return Content(
        text=page.text,
        title=page_metadata.title,
        language_hint=page_metadata.language or language,
        published=page_metadata.published,
        canonical=absolute(page_metadata.canonical, page_metadata.base, sent.url),
        licence=page_metadata.licence,
        author=page_metadata.author,
        site=page_metadata.site,
    )


def _noindex(robots: Sequence[str], sent: Sent, *, names: bool) -> bool:
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


def plain(data: bytes, name: str) -> Content:
    """Returns the text of a file; raises Rejected for a binary file."""
    text = decode(data)
    if "\0" in text:
        raise Rejected("binary")
    return Content(text=clean(text), title=clean(name))


def metadata(data: bytes, name: str) -> Content:
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


def row_text(text: str) -> Content:
    """Returns the text of a row of a dump."""
    return Content(text=clean(text))
