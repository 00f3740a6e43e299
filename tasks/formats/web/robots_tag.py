"""Parser of X-Robots-Tag headers and robots meta elements.

The directives are those of Google's robots meta specification (noindex, nofollow, none, noarchive, unavailable_after)
and those that artists' sites introduced in 2022 to refuse AI training (noai, noimageai, noml). They are separated by
commas; some pages use semicolons or blanks ("noindex nofollow").
"""

import operator
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

# Directives with a value after a colon; any other name before a colon is that of a crawler.
_VALUED = frozenset({"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"})
_ITEM_END = re.compile(r"[,;]")
# The comma after a weekday is part of the date; weekday and comma can be removed without changing the date.
_WEEKDAY = re.compile(r"(unavailable_after\s{0,9}:)\s{0,9}[a-z]{3,9}\s{0,9},")
_NOAI = frozenset({"noai", "noml"})


class Directives(NamedTuple):
    """Directives of robots meta tags or X-Robots-Tag headers; each prohibits one use of the page.

    Attributes:
        noindex: storing the page.
        nofollow: following its links.
        noarchive: showing it from an archive.
        noai: training on it.
        noimageai: training on its images; has no effect, because only text is kept.
    """

    noindex: bool = False
    nofollow: bool = False
    noarchive: bool = False
    noai: bool = False
    noimageai: bool = False

    def __or__(self, other: "Directives") -> "Directives":
        return Directives(*map(operator.or_, self, other))


_NOTHING = Directives()


def directives(values: Iterable[str], agent: str, now: datetime | None = None, *, names: bool = True) -> Directives:
    """Parses X-Robots-Tag headers or robots meta contents.

    Within one header a crawler's name ("otherbot: noindex, nofollow") applies to all directives up to the next name;
    "*" applies to all crawlers. The strictest directive wins. An `unavailable_after` before `now` is a noindex; one
    that cannot be parsed is ignored.

    Args:
        values: values of the headers or content attributes.
        agent: our product token, or "" for none.
        now: time of the request; the current time by default.
        names: whether a value may name crawlers: True for headers, False for meta elements.

    >>> directives(["noarchive", "googlebot: noindex", "nofollow"], "sluice")
    Directives(noindex=False, nofollow=True, noarchive=True, noai=False, noimageai=False)
    """
    words: set[str] = set()
    expired = False
    for word, value in _ours(values, agent.lower(), names):
        words.add(word)
        if word == "unavailable_after":
            date = _date(value)
            expired = expired or (date is not None and date <= (now or datetime.now(UTC)))
    if not words:
        return _NOTHING
    none = "none" in words
    return Directives(
        noindex=none or expired or "noindex" in words,
        nofollow=none or "nofollow" in words,
        noarchive="noarchive" in words,
        noai=not _NOAI.isdisjoint(words),
        noimageai="noimageai" in words,
    )


def _ours(values: Iterable[str], agent: str, names: bool) -> Iterator[tuple[str, str]]:
    """Yields (name, value) of the directives for all crawlers or for `agent`."""
    for text in values:
        ours = True
        for rest in _ITEM_END.split(_WEEKDAY.sub(r"\1", text.lower())):
            while rest:
                before, colon, rest = rest.partition(":")
                words = before.split()
                name = words.pop() if colon and words else ""
                valued = name in _VALUED
                if ours:
                    yield from ((word, "") for word in words)
                    yield from _valued(name, rest) if valued else ()
                if name and names and not valued:
                    ours = name in (agent, "*")
                elif name:
                    break  # dates contain colons


def _valued(name: str, value: str) -> Iterator[tuple[str, str]]:
    """Yields a directive with its value, and the directives after it that lack a comma."""
    yield name, value.strip()
    # The first word is the value, never a directive: "max-image-preview: none".
    yield from ((word, "") for word in value.split()[1:])


def _date(text: str) -> datetime | None:
    """Parses a date in the format of RFC 822, RFC 850 or ISO 8601; UTC if it has no time zone."""
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            date = parse(text.upper())
        except (ValueError, TypeError, IndexError, OverflowError):
            continue
        return date if date.tzinfo else date.replace(tzinfo=UTC)
    return None
