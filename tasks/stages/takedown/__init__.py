"""Stage takedown: a request and the earlier takedowns -> all tombstones in force, and a report.

The settings are one request, from a form or the command line.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import Field, field_validator

from tasks.core.config import Config, Problems
from tasks.core.stage_spec import PreviousInput, StageSpec, Takedowns

MOST_LINES = 10_000
"""Maximum number of lines in a field of a request."""
MOST_CHARACTERS = 5_000
"""Maximum number of characters in a line: more than the longest URL that a crawl follows."""

VERSION_FORMAT = "%Y.%m.%d-%H%M%S"
"""Format of a takedown's version, from the date of its request: 2026.11.21-093015."""


class TakedownConfig(Config):
    """One request. A multi-line text is read as the list of its lines; blank lines are counted and ignored."""

    urls: tuple[str, ...] = ()
    """Pages: http and https, with and without "www."; and documents from folders: file:// URLs, as `trace` prints
    them."""
    domains: tuple[str, ...] = ()
    """Host names; each includes all names below it."""
    documents: tuple[str, ...] = ()
    """Document ids: 32 hex digits."""
    lift: tuple[str, ...] = ()
    """URLs, domains and document ids whose takedown ends, as they were requested or as `audit` prints them."""
    reason: str = Field(default="", max_length=1_000)
    """Reason, as text."""
    requested_by: str = Field(default="", max_length=300)
    """Person or organization that requested it."""
    date: str = ""
    """Time of the request, ISO 8601; "": unknown."""
    from_crawl: bool = False
    """Also takes down pages that sites have withdrawn since their capture, from the list of the newest crawl cycle."""

    @field_validator("urls", "domains", "documents", "lift", mode="before")
    @classmethod
    def _lines(cls, value: Any) -> Any:
        lines = (value.rstrip("\n").split("\n") if value else ()) if isinstance(value, str) else value
        if isinstance(lines, list | tuple):
            if len(lines) > MOST_LINES:
                raise Problems([f"{len(lines):,} lines are more than {MOST_LINES:,}: split them into several requests"])
            for number, line in enumerate(lines, 1):
                if isinstance(line, str) and len(line) > MOST_CHARACTERS:
                    raise Problems(
                        [f"line {number} has {len(line):,} characters: at most {MOST_CHARACTERS:,} are allowed"]
                    )
            return tuple(lines)  # pydantic refuses entries that are not text
        return lines

    @field_validator("reason", "requested_by")
    @classmethod
    def _is_printable(cls, value: str) -> str:
        # It is printed in terminals, which interpret control characters.
        if not value.isprintable():
            raise Problems(["it has a line break or another unprintable character: write a single line of plain text"])
        return value

    @field_validator("date")
    @classmethod
    def _is_date(cls, value: str) -> str:
        if value:
            datetime.fromisoformat(value)
        return value


def dated(moment: datetime) -> Mapping[str, str]:
    """Returns the override for the date of a request."""
    return {"takedown.date": moment.isoformat(timespec="seconds")}


STAGES = (
    StageSpec(
        "takedown",
        dag="takedown",
        output="takedown",
        config=TakedownConfig,
        previous={"warc": PreviousInput("warc", completed_by="warc", when="takedown.from_crawl")},
        takedowns=Takedowns("previous"),
    ),
)
