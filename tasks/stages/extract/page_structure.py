"""Structure of a page: the units that are main text as a whole or not at all, and the kept blocks with their kinds.

Reads the blocks of `page_blocks`. A unit is a data table with its caption, or the code of one `pre` element: `units`
finds them, `whole` makes one decision for each. `structure` gives the kept blocks as blocks of a document.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tasks.formats.documents.structure import BLANK, Block, Kind
from tasks.formats.documents.text import clean, clean_code
from tasks.stages.extract.page_blocks import TAG_NAMES, Blocks
from tasks.stages.extract.rendering.code_listings import code_language
from tasks.stages.extract.tables import Table, data_table

_HEADINGS = {TAG_NAMES.index(f"h{level}"): level for level in range(1, 7)}
_TABLE, _PRE, _LI, _OL, _DT, _DD, _QUOTE = (
    TAG_NAMES.index(name) for name in ("table", "pre", "li", "ol", "dt", "dd", "blockquote")
)
_LISTS = frozenset((_OL, TAG_NAMES.index("ul"), TAG_NAMES.index("menu")))
_KINDS: dict[int, Kind] = {
    **{_PRE: "code", _LI: "item", _DT: "term", _DD: "definition", _QUOTE: "quote"},
    **{TAG_NAMES.index(name): "caption" for name in ("figcaption", "caption")},
}
_DISPLAYED = re.compile(r"\$\$(?:(?!\$\$).)++\$\$|\\\[(?:(?!\\\]).)++\\\]", re.DOTALL)
_START = re.compile(r'\sstart="(\d{1,9})"')
_CLASS = re.compile(r'\s(?:class|data-lang|data-language)="([^"]{1,200})"')
_CODE = re.compile(r'\s*+<code\b[^>"]*+(?:"[^"]*+"[^>"]*+)*+>')
_MOST, _ENOUGH = 0.5, 30
_LANGUAGE_AROUND = 2  # elements around `pre` whose class may name the language
NEVER = -9.0
"""Log odds of blocks that are not classified."""

T = TypeVar("T")


@dataclass(frozen=True)
class Unit:
    """Consecutive blocks that are kept or dropped together.

    Attributes:
        first, last: indices of its first block, and after its last block.
        element: index of the `table` or `pre` element.
        table: the data, for a table; None for code.
    """

    first: int
    last: int
    element: int
    table: Table | None


def units(page: Blocks, most_rows: int | None = None) -> list[Unit]:
    """Returns the units of a page in order.

    Args:
        page: the blocks of the page.
        most_rows: rows of a table that are kept; a note replaces the others. None for all.
    """
    names = np.array(page.names, np.int64)
    found: list[Unit] = []
    tables = np.flatnonzero(names == _TABLE)
    opened, closed = page.opened[tables], page.closed[tables]
    innermost = np.append(opened[1:], len(page.source)) >= closed
    for element in tables[innermost].tolist():
        table = data_table(page.source[page.opened[element] : page.closed[element]], most_rows)
        if table is not None:
            found.append(Unit(int(page.first[element]), int(page.last[element]), element, table))
    in_table = np.zeros(len(page) + 1, np.bool_)
    for unit in found:
        in_table[unit.first : unit.last] = True
    for element in np.flatnonzero(names == _PRE).tolist():
        first, last = int(page.first[element]), int(page.last[element])
        if last - first > 1 and not in_table[first]:
            found.append(Unit(first, last, element, None))
    return sorted(found, key=lambda unit: unit.first)


def whole(page: Blocks, found: list[Unit], odds: NDArray[np.float64], words: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Returns a mask of the main text in which units are whole, shape (blocks,).

    A unit is main text if the mean of the odds of its blocks, weighted by their words, says so; a table with a header
    also if most of the text around it is (`_most_around`). A term of a definition list is main text if the block after
    it is.

    Args:
        page: the blocks of the page.
        found: its units.
        odds: log odds of each block, shape (blocks,); `NEVER` for blocks that were not classified.
        words: words of each block, shape (blocks,).
    """
    mask: NDArray[np.bool_] = odds > 0
    for unit in found:
        span = slice(unit.first, unit.last)
        mask[span] = _is_main(odds[span], words[span])
    weight = words.astype(np.float64) + 1
    sums = np.zeros((2, len(page) + 1))
    np.cumsum([weight, weight * mask], axis=1, out=sums[:, 1:])
    for unit in found:
        if unit.table is not None and unit.table.is_clear and not mask[unit.first]:
            mask[unit.first : unit.last] = _most_around(page, unit, sums)
    name = np.append(np.array(page.names, np.int64), -1)[page.element]
    for index in np.flatnonzero(name[:-1] == _DT)[::-1].tolist():
        mask[index] |= mask[index + 1] and name[index + 1] in (_DT, _DD)
    return mask


def _most_around(page: Blocks, unit: Unit, sums: NDArray[np.float64]) -> bool:
    """Returns whether most words beside a dropped unit, in the smallest element with `_ENOUGH` others, are main text.

    Args:
        page: the blocks of the page.
        unit: the unit.
        sums: words, and words of main text, before each block and in all; shape (2, blocks + 1).
    """
    element = unit.element
    while element >= 0:
        first, last = page.first[element], page.last[element]
        total, main = sums[:, last] - sums[:, first] - (sums[:, unit.last] - sums[:, unit.first])
        if total >= _ENOUGH:
            return bool(main > _MOST * total)
        element = int(page.parent[element])
    return False


def _is_main(odds: NDArray[np.float64], words: NDArray[np.float32]) -> bool:
    classified = odds > NEVER
    if not classified.any():
        return False
    return float(np.average(odds[classified], weights=words[classified] + 1)) > 0


def structure(page: Blocks, mask: NDArray[np.bool_], found: list[Unit]) -> list[Block]:
    """Returns the kept blocks as blocks of a document.

    Args:
        page: the blocks of the page.
        mask: which blocks are kept, shape (blocks,).
        found: the units of the page.
    """
    indices = np.flatnonzero(mask)
    if not len(indices):
        return []
    # The widest separator since the previous kept block.
    widest = np.maximum.reduceat(page.separator[: indices[-1] + 1], np.append(0, indices[:-1] + 1)).tolist()
    starts = {unit.first: unit for unit in found}
    reader, blocks, until = _KindReader(page), list[Block](), 0
    for index, gap in zip(indices.tolist(), widest, strict=True):
        if index < until:
            continue
        if unit := starts.get(index):
            until = unit.last
            blocks += _unit(page, unit, reader)
        elif text := page.text(index):
            blocks.append(reader.block(index, text, gap))
    return blocks


def _unit(page: Blocks, unit: Unit, reader: "_KindReader") -> list[Block]:
    if unit.table is None:
        lines = [page.text(index) for index in range(unit.first, unit.last)]
        return [reader.block(unit.first, "\n".join(lines), BLANK)]
    caption = [Block("caption", clean(unit.table.caption))] if unit.table.caption else []
    return [*caption, Block("table", rows=unit.table.rows, header=unit.table.header)]


class _KindReader:
    """Finds the kind of a block by the elements around it."""

    def __init__(self, page: Blocks) -> None:
        self.page = page
        self.parents: list[int] = page.parent.tolist()
        self.kinds: dict[int, tuple[Kind, int]] = {}
        self.lists: dict[int, int] = {}
        self.levels: dict[int, int] = {}
        """Number of lists around each list with items."""
        self.begun: set[int] = set()
        """Items and definitions whose first block was read."""
        self.numbers: dict[int, int] = {}
        """Number of the last item of each ordered list."""

    def block(self, index: int, text: str, gap: int) -> Block:
        """Returns a block of the page as a block of a document."""
        kind, element = self._kind(int(self.page.element[index]))
        if kind == "code":
            return Block("code", clean_code(text), language=self._language(element))
        text = clean(text)
        if kind == "heading":
            return Block("heading", " ".join(text.split()), _HEADINGS[self.page.names[element]], gap=gap)
        if kind in ("item", "definition"):
            if element in self.begun:
                return Block("paragraph", text, gap=gap)
            self.begun.add(element)
            if kind == "item":
                level, number = self._place(element)
                return Block("item", text, level, number, gap=gap)
        if kind == "paragraph" and text.startswith(("$$", "\\[")) and _DISPLAYED.fullmatch(text):
            kind = "formula"
        return Block(kind, text, gap=gap)

    def _kind(self, element: int) -> tuple[Kind, int]:
        """Returns the kind of blocks in an element, and the element around them that determines it."""
        return self._nearest(element, self.kinds, self._own_kind, ("paragraph", -1))

    def _own_kind(self, element: int) -> tuple[Kind, int] | None:
        name = self.page.names[element]
        if name in _HEADINGS:
            return "heading", element
        kind = _KINDS.get(name)
        return (kind, element) if kind else None

    def _place(self, item: int) -> tuple[int, int | None]:
        """Returns the number of lists around that of an item, and the item's number in an ordered list."""
        around = self._nearest(item, self.lists, self._own_list, -1)
        if around < 0:
            return 0, None
        if around not in self.levels:
            outer = self._nearest(self.parents[around], self.lists, self._own_list, -1)
            self.levels[around] = self.levels.get(outer, -1) + 1
        level = self.levels[around]
        if self.page.names[around] != _OL:
            return level, None
        if around not in self.numbers:
            start = _START.search(self.page.tags[around])
            self.numbers[around] = int(start[1]) - 1 if start else 0
        self.numbers[around] += 1
        return level, self.numbers[around]

    def _own_list(self, element: int) -> int | None:
        return element if self.page.names[element] in _LISTS else None

    def _nearest(self, element: int, known: dict[int, T], own: Callable[[int], T | None], none: T) -> T:
        """Returns what the nearest element at or around an element has of its own; `known` has earlier results."""
        path: list[int] = []
        found: T | None = None
        while element >= 0 and found is None:
            path.append(element)
            found = known.get(element)
            found = own(element) if found is None else found
            element = self.parents[element]
        result = none if found is None else found
        known.update(dict.fromkeys(path, result))
        return result

    def _language(self, element: int) -> str:
        """Returns the programming language that the classes of a `pre` element, or around or in it, name; or ""."""
        page = self.page
        start = page.opened[element] + len(page.tags[element])
        inner = _CODE.match(page.source, int(start), int(start) + 1_000)
        tags = [inner[0] if inner else "", page.tags[element]]
        around = self.parents[element]
        for _ in range(_LANGUAGE_AROUND):
            if around >= 0:
                tags.append(page.tags[around])
                around = self.parents[around]
        for tag in tags:
            for value in _CLASS.findall(tag):
                if language := code_language(value):
                    return language
        return ""
