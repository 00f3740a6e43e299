"""The row between reading and extraction: where it comes from, and how to get its text when it is wanted.

Made by `captures` and `files`, used by `stage`. Identity is known without extraction, so that duplicates
inside an artifact are found in a first cheap pass over the input.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime


class Rejected(Exception):
    """A row yields no document, for a reason in machine words."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Content:
    """What extraction found: plain text as stored, title and language hint ("" where there is none)."""

    text: str
    title: str = ""
    language_hint: str = ""


def _no_content() -> Content:
    raise Rejected("empty")


@dataclass(frozen=True)
class Row:
    """One capture or one file.

    `refused` holds the reason when the headers alone tell that there is no document. `content` extracts; it
    raises `Rejected` for reasons that were foreseen, and anything else for a poison row. A `rendered` row is a page as
    a browser has drawn it, which stands for the capture that it was made from. A `damaged` one is not whole.
    """

    url: str
    source: str
    content: Callable[[], Content] = _no_content
    payload_digest: str = ""
    record_id: str = ""
    fetched_at: datetime | None = None
    warc_file: str = ""
    warc_offset: int | None = None
    refused: str = ""
    rendered: bool = False
    damaged: bool = False
