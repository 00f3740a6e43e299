"""Rows of the input, their content, and the settings that the child process of `guard` needs for extraction.

A row has provenance, and a callable that extracts its content. The identity of a row needs no extraction, so that a
first, cheap pass over the input finds the duplicates within an artifact. The child receives settings as plain values
(`ExtractOptions`), without pydantic, whose import takes as long as all other imports of the child together.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from tasks.formats.documents.layout import LayoutSpan, PageScore
from tasks.formats.documents.structure import Block, Form


class Rejected(Exception):
    """A row gives no document.

    Args:
        reason: the reason as an identifier, such as "too_large".
        pages: scores of the pages of a paged file.
    """

    def __init__(self, reason: str, pages: tuple[PageScore, ...] = ()) -> None:
        super().__init__(reason, pages)
        self.reason = reason
        self.pages = pages


class Poison(Exception):
    """A row could not be processed.

    Args:
        reason: "timeout", "memory", "crash" (the process died) or "error".
        detail: description of the error.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"


@dataclass(frozen=True)
class Content:
    """Result of the extraction of a row.

    Attributes:
        text: text as stored.
        title: title; like the other texts, "" if there is none.
        language_hint: language stated by the page or its server.
        published: date of publication stated by the page, in UTC.
        canonical: canonical URL stated by the page, absolute.
        licence: URL or text of the license stated by the page.
        author: names of the authors, separated by "; ".
        site: name of the site.
        form: form of the text; with "markdown" it has marks.
        blocks: for parsers: the blocks of which the text is to be written, instead of `text`.
        layout: positions of the blocks of a paged file in `text`.
        pages: scores of the pages of a paged file.
    """

    text: str
    title: str = ""
    language_hint: str = ""
    published: datetime | None = None
    canonical: str = ""
    licence: str = ""
    author: str = ""
    site: str = ""
    form: Form = "plain"
    blocks: tuple[Block, ...] = ()
    layout: tuple[LayoutSpan, ...] = ()
    pages: tuple[PageScore, ...] = ()


def no_content() -> Content:
    """Raises Rejected; the `content` of rows that are read for their identity only, or have no content."""
    raise Rejected("empty")


@dataclass(frozen=True)
class InputRow:
    """One capture, one file, or one row of a file of rows.

    Attributes:
        url: URL of the document.
        source: name of its source.
        content: extracts the content; picklable, called in the child process of `guard`. It raises `Rejected` for
            expected reasons, and any other exception for a poison row.
        size: approximate size in bytes.
        payload_digest: digest of the payload.
        record_id: WARC-Record-ID of a capture, or "".
        fetched_at: time of a capture in UTC.
        warc_file: name of the WARC file of a capture, or "".
        warc_offset: offset of the record in that file.
        metadata: the other fields of a row of a file as JSON, or "".
        left_out: why fields are not in `metadata`: they were too long (`metadata_cut`), or have no value that Python or
            JSON can hold (`metadata_unreadable`).
        refused: the reason if the row is rejected without extraction, or "".
        rendered: whether the row is a page as rendered by a browser, which replaces the capture of the page.
        damaged: whether the row is incomplete.
    """

    url: str
    source: str
    content: Callable[[], Content] = no_content
    size: int = 0
    payload_digest: str = ""
    record_id: str = ""
    fetched_at: datetime | None = None
    warc_file: str = ""
    warc_offset: int | None = None
    metadata: str = ""
    left_out: tuple[str, ...] = ()
    refused: str = ""
    rendered: bool = False
    damaged: bool = False


@dataclass(frozen=True)
class ExtractOptions:
    """The settings of `config.ExtractConfig` that the child process needs, under the same names."""

    extractor: str
    text: Form
    comments: bool
    min_main_share: float
    max_payload_bytes: int
    honour_noindex: bool
    max_table_rows: int
    parsers: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Name of the parser and its settings as JSON, by media type."""
