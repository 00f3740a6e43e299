"""Rows of the input, their content, and what the child process of `guard` needs to extract it.

A row has its provenance, and a callable that extracts the content. The identity of a row needs no extraction, so that
duplicates within an artifact are found in a first cheap pass over the input. Settings reach the child as plain values
(`ExtractOptions`), without pydantic, whose import takes as long as all other imports of the child together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from tasks.formats.documents.layout import LayoutSpan, PageScore

if TYPE_CHECKING:
    from tasks.stages.extract.config import ExtractConfig


class Rejected(Exception):
    """A row yields no document, for a reason in machine words; `pages` are the scores of its pages, if it has any."""

    def __init__(self, reason: str, pages: tuple[PageScore, ...] = ()) -> None:
        super().__init__(reason, pages)
        self.reason = reason
        self.pages = pages


class Poison(Exception):
    """A row could not be processed.

    Args:
        reason: `timeout`, `memory`, `crash` (the process died) or `error`.
        detail: what happened.
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
        text: plain text as stored.
        title: "" where there is none, like the other texts here.
        language_hint: the language that the page or its server names.
        published: when the page says that it was published, in UTC.
        canonical: the address that the page calls its own, absolute.
        licence: URL or text of the licence that the page names.
        author: names of the authors, "; " between them.
        site: name of the site.
        layout: where the blocks of a paged file stand in `text`.
        pages: scores of the pages of such a file.
    """

    text: str
    title: str = ""
    language_hint: str = ""
    published: datetime | None = None
    canonical: str = ""
    licence: str = ""
    author: str = ""
    site: str = ""
    layout: tuple[LayoutSpan, ...] = ()
    pages: tuple[PageScore, ...] = ()


def no_content() -> Content:
    """Raises Rejected: the content of a row that is read for its identity only, or has none."""
    raise Rejected("empty")


@dataclass(frozen=True)
class InputRow:
    """One capture or one file.

    `refused` is the reason if the headers suffice to reject it. `content` extracts it: picklable, called in the process
    of `guard`, raises `Rejected` for expected reasons and any other exception for a poison row. `metadata` has the
    other fields of a row of a dump as JSON, "" for none; `left_out` is whether one of them was too long. `size` is its
    approximate size in bytes. A `rendered` row is a page as rendered by a browser, which replaces the capture of the
    page. A `damaged` row is incomplete.
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
    left_out: bool = False
    refused: str = ""
    rendered: bool = False
    damaged: bool = False


@dataclass(frozen=True)
class ExtractOptions:
    """Settings of tasks.stages.extract.config.ExtractConfig under the same names; see there."""

    extractor: str
    comments: bool
    min_main_share: float
    max_payload_bytes: int
    honour_noindex: bool
    parsers: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Name of the parser and its settings as JSON, by media type."""

    @classmethod
    def of(cls, config: ExtractConfig) -> ExtractOptions:
        """Returns the choices of some settings."""
        from tasks.stages.extract.parser import by_media_type

        return cls(
            *(config.extractor, config.comments, config.min_main_share, config.max_payload_bytes),
            *(config.honour_noindex, by_media_type(config.parsers)),
        )
