"""Stage takedown: a request and the takedowns before it -> all tombstones in force, and a report.

The settings are one request, as a form or the shell gives it.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import Field, field_validator

from tasks.core.config import Config, Problems
from tasks.core.stage_spec import PreviousInput, StageSpec, Takedowns

MOST_LINES = 10_000
"""Lines of one field of a request."""
MOST_CHARACTERS = 5_000
"""Characters of a line: more than the longest URL that a crawl follows."""

VERSION_FORMAT = "%Y.%m.%d-%H%M%S"
"""Version of a takedown, from the date of its request: 2026.11.21-093015."""


class TakedownConfig(Config):
    """One request. Text of several lines stands for a list of its lines; blank ones count as lines and say nothing."""

    urls: tuple[str, ...] = ()
    """Pages: http and https, with and without "www."."""
    domains: tuple[str, ...] = ()
    """Host names, each with all names below it."""
    documents: tuple[str, ...] = ()
    """Document ids: 32 hex digits."""
    lift: tuple[str, ...] = ()
    """What is no longer taken down: URLs, domains and document ids as they were given, or as `audit` prints them."""
    reason: str = Field(default="", max_length=1_000)
    """Why, in words."""
    requested_by: str = Field(default="", max_length=300)
    """Who asked for it."""
    date: str = ""
    """Moment of the request, ISO 8601; "": not known."""
    from_crawl: bool = False
    """Also take down what sites have withdrawn since it was captured: the list of the newest crawl cycle."""

    @field_validator("urls", "domains", "documents", "lift", mode="before")
    @classmethod
    def _lines(cls, given: Any) -> Any:
        lines = (given.rstrip("\n").split("\n") if given else ()) if isinstance(given, str) else given
        if isinstance(lines, list | tuple):
            if len(lines) > MOST_LINES:
                raise Problems([f"{len(lines):,} lines are more than {MOST_LINES:,}: make several requests of them"])
            for number, line in enumerate(lines, 1):
                if isinstance(line, str) and len(line) > MOST_CHARACTERS:
                    raise Problems(
                        [f"line {number} has {len(line):,} characters: at most {MOST_CHARACTERS:,} are read"]
                    )
            return tuple(lines)  # what is no text among them is refused as such
        return lines

    @field_validator("reason", "requested_by")
    @classmethod
    def _is_printable(cls, given: str) -> str:
        # It is shown in terminals, where control characters are commands.
        if not given.isprintable():
            raise Problems(["it has a line break, or another character that cannot be printed: write one plain line"])
        return given

    @field_validator("date")
    @classmethod
    def _is_date(cls, given: str) -> str:
        if given:
            datetime.fromisoformat(given)
        return given


def dated(moment: datetime) -> Mapping[str, str]:
    """Returns the overrides of a request at a moment."""
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
