"""Blocks of a page's text and the elements around them.

Reads a parsed page through its serialization, in which every element is closed and every attribute is quoted. All tags
are looked at together, in NumPy: a visit of each node of the tree takes ten times as long.

A block is text that no block-level element interrupts: a paragraph, an item, a heading, a cell. Two line breaks in a
row end a block, too. Menus, footers and controls have no blocks.
"""

import functools
import html
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from resiliparse.parse.html import HTMLTree

from tasks.stages.extract.block_words import NAMED, groups_of

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]
_Elements = tuple[list[str], list[int], list[tuple[int, ...]], Numbers, Numbers, Numbers]

# What the serialization does not escape, and no reader sees.
_RAW = re.compile(
    "|".join(
        (
            r"<!--[^-]*+(?:-(?!->)[^-]*+)*+-->",
            *(
                rf"<{name}\b[^<]*+(?:<(?!/{name}>)[^<]*+)*+</{name}>"
                for name in ("script", "style", "iframe", "xmp", "noembed", "noframes", "plaintext")
            ),
        )
    )
)
_TAG = re.compile(r'<[^>"]*+(?:"[^"]*+"[^>"]*+)*+>')
_NAMES = re.compile(r'\s(?:class|id|role|itemprop)="([^"]+)"')
_HIDDEN = re.compile(r'\shidden[=>\s]|\sstyle="[^"]*?display:\s*none|\saria-hidden="true"')
_ANY_TAG = re.compile(r"<[^>]*>")
_LONGEST = 8  # letters of a name that are compared
_LONGEST_KEPT = 300  # characters of a tag or a class that is remembered
_BARE_TAG = 8  # characters of a tag without attributes, at most

_VOID = "area base br col embed hr img input link meta param source track wbr"
_BLOCK = (
    "address article aside blockquote body caption center dd details dialog dir div dl dt fieldset figcaption figure"
    " footer form h1 h2 h3 h4 h5 h6 header hgroup hr html legend li main menu nav ol p pre search section summary table"
    " tbody td tfoot th thead tr ul"
)
_INLINE = "a b i em strong span font small q cite code time u sub sup label"
_SKIPPED = "nav footer noscript template svg object audio video canvas select textarea button head"
_HOLE = re.compile(rf"<({'|'.join(_SKIPPED.split())})\b.*?</\1>", re.DOTALL)
_LINES = "li dd dt tr summary ul ol dl tbody thead"
_CELLS = "td th"
_KNOWN = sorted({*_VOID.split(), *_BLOCK.split(), *_SKIPPED.split(), *_INLINE.split()})
MOST_BLOCKS = 20_000
# Longer pages are lists or malicious; what is measured would take many times their memory.
_MOST_CHARACTERS, _MOST_TAGS = 10_000_000, 200_000


def _code(name: str) -> int:
    return int.from_bytes(name[:_LONGEST].encode("ascii"), "little")


_CODES = np.array([_code(name) for name in _KNOWN], np.uint64)
_ORDER = np.argsort(_CODES)
_SORTED = _CODES[_ORDER]
_OTHER = len(_KNOWN)
TAG_NAMES = (*_KNOWN, "")


def _are(names: str) -> Mask:
    held = frozenset(names.split())
    return np.array([name in held for name in TAG_NAMES])


_IS_VOID, _IS_BLOCK, _IS_SKIPPED = _are(_VOID), _are(_BLOCK), _are(_SKIPPED)
_IS_LINE, _IS_CELL = _are(_LINES), _are(_CELLS)
_BR, _A, _IMG, _PRE = (TAG_NAMES.index(name) for name in ("br", "a", "img", "pre"))
_TAG_GROUPS = tuple(NAMED.get(name, ()) for name in TAG_NAMES)

_LAST = 0xFFFF
_LETTER = np.zeros(128, np.uint64)
for _letter in "abcdefghijklmnopqrstuvwxyz0123456789":
    _LETTER[ord(_letter)] = ord(_letter)
_NO_BREAK = 0xA0


@dataclass(frozen=True)
class Blocks:
    """The blocks of a page and the elements that hold them, both in document order.

    Attributes:
        source: the serialized page.
        codes: its code points, at most 0xFFFF.
        begin: of blocks, where their text begins in `source`.
        end: and ends.
        element: index of the innermost block-level element of each; -1 for none.
        separator: 0 for a block that begins a cell, 1 a line, 2 a paragraph.
        layout: whether it is preformatted.
        linked: code points of it in links, without white space.
        links: number of links that begin in it.
        breaks: line breaks in it.
        holes: skipped elements in it.
        images: pictures between the text before and it, or in it.
        tags: start tags of elements.
        names: index of each one's name in `TAG_NAMES`.
        groups: rows of `block_words.GROUPS` that each one belongs to.
        parent: index of the block-level element around each; -1 for none.
        first: index of the first block in each.
        last: index behind the last block in each.
        text_begin: of all runs of text in blocks, where they begin.
        text_length: their length.
        text_block: the block of each.
    """

    source: str
    codes: NDArray[np.uint32]
    begin: Numbers
    end: Numbers
    element: Numbers
    separator: Numbers
    layout: Mask
    linked: Numbers
    links: Numbers
    breaks: Numbers
    holes: Numbers
    images: Numbers
    tags: list[str]
    names: list[int]
    groups: list[tuple[int, ...]]
    parent: Numbers
    first: Numbers
    last: Numbers
    text_begin: Numbers
    text_length: Numbers
    text_block: Numbers

    def __len__(self) -> int:
        return len(self.begin)

    def text(self, index: int) -> str:
        """Returns the text of a block, with white space squeezed but in preformatted text."""
        text = self.source[self.begin[index] : self.end[index]]
        if "<" in text:
            if self.holes[index]:
                text = _HOLE.sub("", text)
            if self.breaks[index]:
                text = text.replace("<br>", "\x1e")
            text = _ANY_TAG.sub("", text)
        if "&" in text:
            text = html.unescape(text)
        if self.layout[index]:
            return text.replace("\x1e", "\n").strip("\n")
        if "\x1e" in text:
            return "\n".join([" ".join(line.split()) for line in text.split("\x1e")]).strip()
        return " ".join(text.split())


def read_blocks(tree: HTMLTree) -> Blocks | None:
    """Returns the blocks of a page; None for one without text and for one with too many blocks, tags or characters."""
    body = tree.body
    if body is None:
        return None
    source = _RAW.sub("", body.html).replace("&nbsp;", "\xa0")
    if len(source) > _MOST_CHARACTERS or source.count("<") > _MOST_TAGS:
        return None
    codes = np.minimum(np.frombuffer(source.encode("utf-32-le", "surrogatepass"), np.uint32), _LAST)
    begin, end = _tags(source, codes)
    return _Reader(source, codes, begin, end).read() if len(begin) else None


def _tags(source: str, codes: NDArray[np.uint32]) -> tuple[Numbers, Numbers]:
    """Returns where tags begin, and where the text behind them does."""
    begin, ends = np.flatnonzero(codes == ord("<")), np.flatnonzero(codes == ord(">"))
    quotes = np.flatnonzero(codes == ord('"'))
    if len(begin) and len(ends) and begin[-1] < ends[-1]:
        end = ends[np.searchsorted(ends, begin)]
        if not ((np.searchsorted(quotes, end) - np.searchsorted(quotes, begin)) & 1).any():
            return begin, end + 1
    # An attribute holds one of these characters.
    spans = [found.span() for found in _TAG.finditer(source)]
    both = np.array(spans, np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


class _Reader:
    """Reads one page; arrays have a row for each tag outside of what is skipped."""

    def __init__(self, source: str, codes: NDArray[np.uint32], begin: Numbers, end: Numbers) -> None:
        self.source, self.codes = source, codes
        closing = codes[begin + 1] == ord("/")
        name = _names(codes, begin + 1 + closing)
        following = np.append(begin[1:], len(codes))
        seen = np.zeros(len(codes) + 1, np.int32)
        np.cumsum((codes > ord(" ")) & (codes != _NO_BREAK), out=seen[1:])
        letters = seen[following] - seen[end]
        opening = ~closing & ~_IS_VOID[name]
        closing &= ~_IS_VOID[name]
        skipped = _IS_SKIPPED[name]
        inside = np.cumsum((opening & skipped).astype(np.int64) - (closing & skipped))
        letters[inside > 0] = 0
        read = np.flatnonzero(inside == 0)
        self.begin, self.end, self.following = begin[read], end[read], following[read]
        self.name, self.letters = name[read], letters[read]
        self.size = len(read) + 1
        self.skipped = skipped[read]
        self.opening, self.closing = opening[read], closing[read] & ~skipped[read]

    def read(self) -> Blocks | None:
        name, letters = self.name, self.letters
        has_text = letters > 0
        is_block = _IS_BLOCK[name] | self._paragraph_breaks()
        part = np.cumsum(is_block)
        runs = np.flatnonzero(has_text)
        if not len(runs):
            return None
        parts_of_runs = part[runs]
        new = np.append(True, parts_of_runs[1:] != parts_of_runs[:-1])
        first_run = runs[new]
        last_run = runs[np.append(new[1:], True)]
        number = len(first_run)
        if number > MOST_BLOCKS:
            return None
        block_of_part = np.full(part[-1] + 2, -1)
        block_of_part[part[first_run]] = np.arange(number)
        of_tag = block_of_part[part]
        linking = np.cumsum((self.opening & (name == _A)).astype(np.int64) - (self.closing & (name == _A))) > 0
        in_block = of_tag >= 0

        def counted(which: Mask, of: Numbers | None = None) -> Numbers:
            chosen = which & in_block
            return np.bincount(of_tag[chosen], None if of is None else of[chosen], minlength=number).astype(np.int64)

        tags, names, groups, parent, first, last = self._elements(first_run)
        held = runs[of_tag[runs] >= 0]
        images = np.searchsorted(np.flatnonzero(name == _IMG), last_run, "right")
        return Blocks(
            *(self.source, self.codes, self.end[first_run], self.following[last_run]),
            *(self._around(self.depths[first_run], first_run), self._separators(is_block, first_run)),
            np.cumsum((self.opening & (name == _PRE)).astype(np.int64) - (self.closing & (name == _PRE)))[first_run]
            > 0,
            *(counted(linking & has_text, letters), counted(self.opening & (name == _A)), counted(name == _BR)),
            counted(self.skipped),
            np.diff(images, prepend=0),
            tags=tags,
            names=names,
            groups=groups,
            parent=parent,
            first=first,
            last=last,
            text_begin=self.end[held],
            text_length=self.following[held] - self.end[held],
            text_block=of_tag[held],
        )

    def _paragraph_breaks(self) -> Mask:
        """Which tags are the second line break of two in a row."""
        is_break = self.name == _BR
        found = np.zeros(len(is_break), np.bool_)
        found[1:] = is_break[1:] & is_break[:-1] & (self.letters[:-1] == 0)
        return found

    def _elements(self, first_run: Numbers) -> _Elements:
        """Returns the fields of `Blocks` from `tags` to `last`."""
        first = np.searchsorted(first_run, np.arange(len(self.name)))
        last = first[self._closed_by()]
        block = _IS_BLOCK[self.name]
        # Only elements around text are of use, and inline ones with a meaning or attributes.
        known = block | (self.end - self.begin > _BARE_TAG) | (self.name != _OTHER)
        held = np.flatnonzero(self.opening & (last > first) & known)
        source, names = self.source, self.name[held].tolist()
        tags = [source[at:to] for at, to in zip(self.begin[held].tolist(), self.end[held].tolist(), strict=True)]
        groups = [_link_groups(tag) if of == _A else _groups(tag, of) for tag, of in zip(tags, names, strict=True)]
        of_blocks = block[held]
        self._index(held, of_blocks)
        parent = self._around(self.depths[held] - of_blocks, held)
        return tags, names, groups, parent, first[held], last[held]

    def _closed_by(self) -> Numbers:
        """Returns the closing tag of each opening one."""
        depth = np.cumsum(self.opening.astype(np.int64) - self.closing) + self.closing
        both = np.flatnonzero(self.opening | self.closing)
        # Of one depth, opening and closing tags take turns.
        order = both[np.argsort(depth[both], kind="stable")]
        found = np.full(len(self.name), len(self.name) - 1)
        found[order[:-1]] = order[1:]
        return found

    def _index(self, held: Numbers, of_blocks: Mask) -> None:
        """Prepares `_around`: block-level elements by depth, then by place."""
        block = _IS_BLOCK[self.name]
        self.depths = np.cumsum((self.opening & block).astype(np.int64) - (self.closing & block))
        starts = held[of_blocks]
        keys = self.depths[starts] * self.size + starts
        order = np.argsort(keys)
        self.keys, self.indices = keys[order], np.flatnonzero(of_blocks)[order]

    def _around(self, depth: Numbers, at: Numbers) -> Numbers:
        """Returns the last block-level element of a depth that begins at or before a tag; -1 if there is none."""
        if not len(self.keys):
            return np.full(len(at), -1)
        found = np.searchsorted(self.keys, depth * self.size + at, "right") - 1
        there = (found >= 0) & (self.keys[found] // self.size == depth)
        return np.where(there, self.indices[found], -1)

    def _separators(self, is_block: Mask, first_run: Numbers) -> Numbers:
        """Returns the widest separator that a tag since the block before asks for."""
        name = self.name
        asked = np.where(_IS_CELL[name], 0, np.where(_IS_LINE[name], 1, 2)) * is_block
        found: Numbers = np.maximum.reduceat(asked, np.append(0, first_run[:-1] + 1))
        return found


def _names(codes: NDArray[np.uint32], at: Numbers) -> Numbers:
    places = np.minimum(at[:, np.newaxis] + np.arange(_LONGEST), len(codes) - 1)
    letters = codes[places]
    values = _LETTER[np.minimum(letters, 127)]
    values[np.logical_or.accumulate(values == 0, axis=1)] = 0
    found = values @ (np.uint64(256) ** np.arange(_LONGEST, dtype=np.uint64))
    where = np.minimum(np.searchsorted(_SORTED, found), len(_SORTED) - 1)
    return np.where(_SORTED[where] == found, _ORDER[where], _OTHER)


def _groups(tag: str, name: int) -> tuple[int, ...]:
    """Returns the groups of a start tag; long tags are read each time, so that a page cannot fill the memory."""
    return _short_tag(tag, name) if len(tag) <= _LONGEST_KEPT else _read_groups(tag, name)


@functools.lru_cache(1 << 14)
def _short_tag(tag: str, name: int) -> tuple[int, ...]:
    return _read_groups(tag, name)


def _read_groups(tag: str, name: int) -> tuple[int, ...]:
    groups: tuple[int, ...] = _TAG_GROUPS[name]
    if '="' in tag:
        groups += _named(tag)
        if ("hidden" in tag or "none" in tag) and _HIDDEN.search(tag):
            groups += NAMED["hidden"]
    return groups


def _link_groups(tag: str) -> tuple[int, ...]:
    # Its address makes nearly every link a tag of its own.
    return NAMED["a"] + (_named(tag) if 'class="' in tag else ())


def _named(tag: str) -> tuple[int, ...]:
    groups: set[int] = set()
    for value in _NAMES.findall(tag):
        for word in value.split():
            groups.update(groups_of(word[:_LONGEST_KEPT]))
    return tuple(sorted(groups))
