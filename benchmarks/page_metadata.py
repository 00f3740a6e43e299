"""Metadata of pages: titles, authors and dates of Sluice and trafilatura against the manual annotation.

    python -m benchmarks.page_metadata --segments FOLDER [--kinds FOLDER]

The pages of `--segments` have title, author, date and name of the site where an annotator found them; those of
`--kinds` are news in 19 languages with what the tests of the publisher's parser state. Counted are equal values,
ignoring case, punctuation and the order of several authors. Dates are compared by the day in UTC. trafilatura is
measured only if it is installed. Writes `page_metadata.json`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from resiliparse.parse.html import HTMLTree

from benchmarks.extraction import read_segments, versions
from benchmarks.harness import json_lines, keep, parser
from tasks.stages.extract.page_metadata import read_page_metadata

_PEER = "trafilatura"
_FIELDS = ("title", "author", "date", "sitename")


@dataclass(frozen=True)
class StatedPage:
    """A page with annotated metadata: values by the names in `_FIELDS`, where they are known."""

    url: str
    html: str
    stated: dict[str, Any]


def read_stated(folder: Path) -> list[StatedPage]:
    """Reads the pages with segments of a folder."""
    return [StatedPage(page.url, page.html, page.stated) for page in read_segments(folder)]


def read_news(folder: Path) -> list[StatedPage]:
    """Reads the news with metadata of a folder with pages by kind."""
    rows = [row for row in json_lines(folder / "pages.jsonl.zst") if row["kind"] == "news" and row["meta"]]
    return [
        StatedPage(row["url"], row["html"], row["meta"] | {"date": (row["meta"].get("date") or "")[:10]})
        for row in rows
    ]


def right(pages: Sequence[StatedPage], *, peer: bool = True) -> dict[str, dict[str, dict[str, int]]]:
    """Returns, by reader and field, how many pages are annotated, have a value, and have the right one.

    `peer` measures trafilatura, too, if it is installed.
    """

    def ours(page: StatedPage) -> tuple[str, ...]:
        found = read_page_metadata(HTMLTree.parse(page.html), page.url)
        day = found.published.date().isoformat() if found.published else ""
        return found.title, found.author, day, found.site

    readers: dict[str, Callable[[StatedPage], tuple[str, ...]]] = {"sluice": ours}
    if peer and find_spec(_PEER):
        import trafilatura

        def theirs(page: StatedPage) -> tuple[str, ...]:
            found = trafilatura.extract_metadata(page.html, default_url=page.url)
            return found.title or "", found.author or "", found.date or "", found.sitename or ""

        readers[_PEER] = theirs
    return {name: _right(pages, [reader(page) for page in pages]) for name, reader in readers.items()}


def _right(pages: Sequence[StatedPage], found: Sequence[tuple[str, ...]]) -> dict[str, dict[str, int]]:
    result: dict[str, dict[str, int]] = {}
    for place, name in enumerate(_FIELDS):
        both = [
            (page.stated[name], one[place]) for page, one in zip(pages, found, strict=True) if page.stated.get(name)
        ]
        equal = sum(bool(value) and is_equal(name, expected, value) for expected, value in both)
        result[name] = {"pages": len(both), "given": sum(bool(value) for _, value in both), "right": equal}
    return result


def is_equal(field: str, expected: str | list[str], value: str) -> bool:
    """Whether a value equals the annotated one, ignoring case, punctuation and the order of several authors.

    >>> is_equal("author", ["Eva Roth", "Wei Li"], "WEI LI; Eva Roth")
    True
    """
    if field == "author" or isinstance(expected, list):
        return _authors(expected) == _authors(value)
    return _plain(expected) == _plain(value)


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))


def _authors(names: str | list[str]) -> list[str]:
    joined = "; ".join(names) if isinstance(names, list) else names
    return sorted(map(_plain, re.split(r"[;,/&]|\b(?:und|and|et|y)\b", joined)))


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--segments", required=True, type=Path, help="folder with html/ and pages.jsonl")
    options.add_argument("--kinds", type=Path, help="folder with pages.jsonl.zst")
    given = options.parse_args()
    sets = {"annotated": read_stated(given.segments)}
    if given.kinds:
        sets["news"] = read_news(given.kinds)
    result = {"libraries": versions("resiliparse", _PEER), **{name: right(pages) for name, pages in sets.items()}}
    keep("page_metadata", result)


if __name__ == "__main__":
    main()
