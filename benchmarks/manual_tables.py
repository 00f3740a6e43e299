"""Tables of manuals: how many of their cells an extractor keeps, and how many cells of navigation.

Reads the HTML pages of manuals from Debian packages: `apt-get download PACKAGE`, then `dpkg -x PACKAGE.deb
FOLDER/PACKAGE` for each of `MANUALS`. The templates of the manuals tell what is content and what navigation.

A data table is in the content of a page and has at least two rows of at least two cells. A page is aligned, word by
word and in order, with the text of an extractor (Ratcliff and Obershelp matching, `difflib`); a cell is kept if all of
its words are in aligned runs of at least three words. So a word of a dropped table that also occurs in a sentence does
not count.
"""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import lxml.etree
import lxml.html

from benchmarks.page_kinds import words_of
from tasks.formats.documents.text import hash64
from tasks.formats.web.charset import decode

PAGES = 30
"""Pages with data tables that are read of each manual."""
_LONGEST = 300_000  # bytes; the alignment of longer pages takes seconds
_SHORTEST_RUN = 3
_SILENT = frozenset(("script", "style", "template", "noscript", "head"))


class Template(NamedTuple):
    """Where a manual has its content and its navigation.

    Attributes:
        content: id or class of the element around the content; "" for the whole body.
        navigation: ids and classes of navigation, wherever it is.
        path: a part of the paths of its pages.
    """

    content: str
    navigation: frozenset[str]
    path: str = ""


MANUALS = {
    "apache2-doc": Template("page-content", frozenset(("quickview", "path")), "/en/"),
    "cppreference-doc-en-html": Template("mw-content-text", frozenset(("t-navbar", "toc"))),
    "postgresql-doc-15": Template("", frozenset(("navheader", "navfooter", "toc"))),
    "python-django-doc": Template("yui-main", frozenset(("nav", "sidebar"))),
    "libglib2.0-doc": Template("", frozenset(("navigation", "toc"))),
}


@dataclass(frozen=True)
class ManualPage:
    """A page of a manual with data tables.

    Attributes:
        host: name of the manual.
        words: of the page, in order.
        cells: ranges of words of the cells of data tables.
        navigation: ranges of words of the cells of tables of navigation.
    """

    host: str
    html: str
    words: list[str]
    cells: list[range]
    navigation: list[range]


def read_manuals(folder: Path, number: int = PAGES) -> list[ManualPage]:
    """Reads some pages with data tables of each manual that the folder has, the same on each call."""
    found: list[ManualPage] = []
    for name, template in MANUALS.items():
        paths = [path for path in sorted((folder / name).rglob("*.html")) if template.path in path.as_posix()]
        pages = _pages_with_tables(name, template, sorted(paths, key=lambda path: hash64(path.name)))
        found += [page for page, _ in zip(pages, range(number), strict=False)]
    return found


def _pages_with_tables(name: str, template: Template, paths: Sequence[Path]) -> Iterator[ManualPage]:
    for path in paths:
        raw = path.read_bytes() if path.is_file() and path.stat().st_size <= _LONGEST else b""
        if b"<table" in raw:
            page = read_manual_page(name, decode(raw), template)
            if page.cells:
                yield page


def read_manual_page(name: str, html: str, template: Template) -> ManualPage:
    """Reads the words, cells and navigation of one page."""
    parser = lxml.html.HTMLParser(encoding="utf-8")
    root = lxml.html.document_fromstring(html.encode("utf-8", "replace"), parser=parser)
    data, navigation = _cells(root, template)
    words: list[str] = []
    starts: dict[Any, int] = {}
    ranges: dict[Any, range] = {}
    silent = 0
    for event, element in lxml.etree.iterwalk(root, events=("start", "end", "comment", "pi")):
        skipped = element.tag in _SILENT
        if event == "start":
            starts[element] = len(words)
            silent += skipped
            text = element.text
        else:
            if event == "end":
                ranges[element] = range(starts.pop(element), len(words))
                silent -= skipped
            text = element.tail
        if text and not silent:
            words += words_of(text)
    held = [[ranges[cell] for cell in cells if len(ranges[cell])] for cells in (data, navigation)]
    return ManualPage(name, html, words, *held)


def _cells(root: Any, template: Template) -> tuple[list[Any], list[Any]]:
    """Returns the cells of data tables, and those of tables of navigation, both without cells around other tables."""
    data: list[Any] = []
    navigation: list[Any] = []
    for table in root.iter("table"):
        if any(inner is not table for inner in table.iter("table")):
            continue
        rows = [row.xpath("./td | ./th") for row in table.iter("tr")]
        cells = [cell for row in rows for cell in row]
        around = [name for one in (table, *table.iterancestors()) for name in _names(one)]
        if template.navigation.intersection(around):
            navigation += cells
        elif sum(len(row) > 1 for row in rows) > 1 and (not template.content or template.content in around):
            data += cells
    return data, navigation


def _names(element: Any) -> list[str]:
    return [element.get("id") or "", *(element.get("class") or "").split()]


def kept(page: ManualPage, text: str) -> tuple[int, int]:
    """Returns how many cells of data tables, and of navigation, a text has."""
    aligned = bytearray(len(page.words))
    matcher = difflib.SequenceMatcher(None, page.words, words_of(text), autojunk=False)
    for start, _, length in matcher.get_matching_blocks():
        if length >= _SHORTEST_RUN:
            aligned[start : start + length] = b"\1" * length
    return sum(all(aligned[of.start : of.stop]) for of in page.cells), sum(
        all(aligned[of.start : of.stop]) for of in page.navigation
    )


def kept_shares(pages: Sequence[ManualPage], texts: Sequence[str]) -> dict[str, Any]:
    """Returns the kept cells of each manual and of all, in the format of the result file."""
    counts = [(page, *kept(page, text)) for page, text in zip(pages, texts, strict=True)]
    found: dict[str, Any] = {}
    for name in (*sorted({page.host for page in pages}), "all"):
        held = [one for one in counts if name in (one[0].host, "all")]
        cells, links = (sum(len(getattr(page, of)) for page, *_ in held) for of in ("cells", "navigation"))
        found[name] = {
            "pages": len(held),
            "cells": cells,
            "cells_kept": round(sum(one[1] for one in held) / max(1, cells), 4),
            "navigation_cells": links,
            "navigation_kept": round(sum(one[2] for one in held) / max(1, links), 4),
        }
    return found
