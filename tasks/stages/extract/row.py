"""The row between reading and extraction: where it comes from, and how to get its text when it is wanted.

Made by `captures` and `files`. Identity is known without extraction, so that duplicates inside an artifact are found in
a first cheap pass over the input.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime


class Rejected(Exception):
    """A row yields no document, for a reason in machine words."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


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
    """What extraction found.

    Attributes:
        text: plain text as stored.
        title: "" where there is none, like the other texts here.
        language_hint: the language that the page or its server names.
        published: when the page says that it was published, in UTC.
        canonical: the address that the page calls its own, absolute.
        licence: the address or the words of the licence that the page names.
    """

    text: str
    title: str = ""
    language_hint: str = ""
    published: datetime | None = None
    canonical: str = ""
    licence: str = ""


def no_content() -> Content:
    """Raises Rejected: the content of a row that is read for its identity only, or has none."""
    raise Rejected("empty")


@dataclass(frozen=True)
class Row:
    """One capture or one file.

    `refused` holds the reason when the headers alone tell that there is no document. `content` extracts; it can be
    pickled, is called in the process of `guard`, and raises `Rejected` for reasons that were foreseen, anything
    else for a poison row. `metadata` is what a row of a dump holds beside it, as JSON, "" where it holds nothing,
    and `left_out` says that a field of it was too long. `size` is about the bytes that it holds. A `rendered` row
    is a page as a browser has drawn it, which stands for the capture that it was made from. A `damaged` one is not
    whole.
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
