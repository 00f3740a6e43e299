"""Blocks of a page's text, the elements around them, and the words by which publishing systems name parts of a page.

Reads a parsed page through its serialization, in which every element is closed and every attribute is quoted. All tags
are looked at together, in NumPy: a visit of each node of the tree takes ten times as long.

A block is text that no block-level element interrupts: a paragraph, an item, a heading, a cell. Two line breaks in a
row end a block, too. Menus, footers and controls have no blocks.
"""

import functools
import html
import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from resiliparse.parse.html import HTMLTree

# Groups of names of elements: what furniture is made of, and what stories are.
_TAG_WORDS = {
    "a": "a",
    "aside": "aside",
    "header": "header hgroup",
    "article": "article",
    "main": "main",
    "form": "form fieldset label legend",
    "list": "ul ol dl menu",
    "item": "li dd dt",
    "table": "table",
    "cell": "td th",
    "quote": "blockquote q",
    "figure": "figure",
    "figcaption": "figcaption",
    "h1": "h1",
    "h2": "h2",
    "h3": "h3",
    "h_small": "h4 h5 h6",
    "p": "p",
    "pre": "pre code samp kbd",
    "bold": "b strong",
    "italic": "i em cite",
    "time": "time",
    "section": "section",
    "font": "font center u",
    "hidden": "hidden",
}
# Groups of parts of classes, ids, roles and item properties, in the languages of the pages trained on.
_NAME_WORDS = {
    "comment": "comment kommentar disqus respond reply discussion livefyre leserbrief trackback pingback",
    "share": """
        share sharing social teilen facebook twitter addthis addtoany sociable shariff follow bookmark tweet""",
    "related": """
        related recommend similar verwandt weitere outbrain taboola yarpp read-more readmore read-also more-""",
    "sidebar": """
        sidebar side-bar widget rightcol leftcol right-col left-col secondary complementary seitenleiste
        marginal""",
    "navigation": "nav menu breadcrumb crumb jump skip topbar tabs toolbar",
    "pages": "pagination pager paging prev next page-links",
    "footer": "foot bottom imprint impressum colophon contentinfo",
    "header": "header masthead banner branding logo claim",
    "meta": """
        meta byline author autor posted publish datum date time entry-info postinfo post-info dateline details
        infos kicker dachzeile ressort""",
    "tags": "tag categor kategorie schlagw keyword topic rubrik label filed",
    "caption": "caption credit bildunter legend copyright bildquelle quelle source attachment",
    "newsletter": "newsletter subscri signup sign-up abo- abonn optin opt-in mailing",
    "ads": "advert anzeige werbung sponsor promo adsense ad- ads banner- -ad cta affiliate",
    "cookie": "cookie consent gdpr privacy datenschutz notice hinweis",
    "popup": "popup modal overlay lightbox hidden invisible sr-only screen-reader visually tooltip dropdown",
    "teaser": """
        teaser excerpt preview card- tile latest recent archive popular trending top- most- newest mostread
        meist featured""",
    "summary": "summary lead intro vorspann subtitle sub-title standfirst deck dek abstract subline anleser",
    "content": "content inhalt body",
    "entry": "entry article artikel post- hentry beitrag blogpost single",
    "story": """
        story richtext articlebody entry-content post-content post-body entry-body articletext article-text
        article-body text-""",
    "text": "text copy para absatz",
    "title": "title titel headline heading ueberschrift",
    "media": """
        gallery galerie slide carousel image bild photo foto thumb picture video player audio media figure
        lightbox""",
    "box": "box panel callout infobox factbox block-",
    "tools": "print mail pdf drucken rss feed tools action button btn",
    "search": "search suche login log-in register user account profil form",
    "toc": "toc table-of-contents inhaltsverzeichnis index anchor",
    "quote": "quote zitat pull",
    "notes": "footnote fussnote reference reflist bibliograph literatur endnote",
    "shop": "product price cart shop preis warenkorb add-to checkout",
    "bio": "bio vita about avatar gravatar vcard author-box authorbox author-info",
    "rating": "rating vote like star review bewertung",
    "donate": "donat spend support patreon paypal flattr steady vgwort paywall",
    "event": "event calendar kalender termin weather wetter poll quiz umfrage",
    "wrapper": "wrap container layout grid row col- column main page site",
    "list": "list liste",
    "first": "first last",
}  # fmt: skip
GROUPS = (*(f"tag_{name}" for name in _TAG_WORDS), *(f"named_{name}" for name in _NAME_WORDS))
"""Names of the groups, in order."""
NAMED = {tag: (number,) for number, tags in enumerate(_TAG_WORDS.values()) for tag in tags.split()}
"""Groups of the name of an element."""
_OF_WORD = {
    word: len(_TAG_WORDS) + number
    for number, words in reversed(list(enumerate(_NAME_WORDS.values())))
    for word in words.split()
}

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
_OTHER = len(_KNOWN)
TAG_NAMES = (*_KNOWN, "")
_BR, _A, _IMG, _PRE = (TAG_NAMES.index(name) for name in ("br", "a", "img", "pre"))
_TAG_GROUPS = tuple(NAMED.get(name, ()) for name in TAG_NAMES)

_LAST = 0xFFFF
_NO_BREAK = 0xA0
# Eight letters of a name are one number, whose bytes are compared at once.
_EACH = np.uint64(0x0101010101010101)
_HIGH, _LOW = _EACH * np.uint64(0x80), _EACH * np.uint64(0x7F)
_FROM_A, _BEHIND_Z, _FROM_0, _BEHIND_9 = (_EACH * np.uint64(0x80 - ord(letter)) for letter in "a{0:")


def _longest_of(words: Iterable[str]) -> str:
    """Returns a pattern of the longest word at a place.

    Beginnings are shared: an alternation that tries each of 400 words at each letter takes five times as long.
    """
    ends, behind = "", dict[str, list[str]]()
    for word in words:
        if word:
            behind.setdefault(word[0], []).append(word[1:])
        else:
            ends = "?"
    pattern = "|".join(re.escape(letter) + _longest_of(rest) for letter, rest in sorted(behind.items()))
    return f"(?:{pattern}){ends}" if pattern else ""


_NAME_WORD = re.compile(_longest_of(_OF_WORD))


@functools.lru_cache(1 << 14)
def groups_of(names: str) -> tuple[int, ...]:
    """Returns the groups of a class, id, role or item property."""
    return tuple({_OF_WORD[word] for word in _NAME_WORD.findall(names.lower())})


def _code(name: str) -> int:
    return int.from_bytes(name[:_LONGEST].encode("ascii"), "little")


_CODES = np.array([_code(name) for name in _KNOWN], np.uint64)
_ORDER = np.argsort(_CODES)
_SORTED = _CODES[_ORDER]


def _tag_mask(names: str) -> Mask:
    held = frozenset(names.split())
    return np.array([name in held for name in TAG_NAMES])


_IS_VOID, _IS_BLOCK, _IS_SKIPPED = _tag_mask(_VOID), _tag_mask(_BLOCK), _tag_mask(_SKIPPED)
_IS_LINE, _IS_CELL = _tag_mask(_LINES), _tag_mask(_CELLS)


@dataclass(frozen=True)
class Blocks:
    """The blocks of a page and the elements that hold them, both in document order.

    Attributes:
        source: the serialized page.
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
        groups: rows of `GROUPS` that each one belongs to.
        parent: index of the block-level element around each; -1 for none.
        first: index of the first block in each.
        last: index behind the last block in each.
        text_codes: code points of all runs of text in blocks, at most 0xFFFF, one run after the other.
        text_length: of runs, their length.
        text_block: the block of each.
    """

    source: str
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
    text_codes: NDArray[np.uint16]
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
    # Markup is ASCII. What no byte can hold becomes a question mark: a visible character, too, which ends no name.
    held = source.encode("latin-1", "replace") + bytes(_LONGEST)
    begin, end = _tags(source, np.frombuffer(held, np.uint8))
    return _BlockReader(source, held, begin, end).read() if len(begin) else None


def _tags(source: str, held: NDArray[np.uint8]) -> tuple[Numbers, Numbers]:
    """Returns where tags begin, and where the text behind them does."""
    at = np.flatnonzero((held == ord("<")) | (held == ord(">")) | (held == ord('"')))
    mark = held[at]
    begin, ends = np.flatnonzero(mark == ord("<")), np.flatnonzero(mark == ord(">"))
    if len(begin) and len(ends) and begin[-1] < ends[-1]:
        end = ends[np.searchsorted(ends, begin)]
        quotes = np.cumsum(mark == ord('"'))
        if not ((quotes[end] - quotes[begin]) & 1).any():
            return at[begin], at[end] + 1
    # An attribute holds one of these characters.
    spans = [found.span() for found in _TAG.finditer(source)]
    both = np.array(spans, np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


class _BlockReader:
    """Reads one page; arrays have a row for each tag outside of what is skipped."""

    def __init__(self, source: str, held: bytes, begin: Numbers, end: Numbers) -> None:
        self.source = source
        letters = np.frombuffer(held, np.uint8)
        closing = letters[begin + 1] == ord("/")
        name = _tag_name_indices(held, begin + 1 + closing)
        following = np.append(begin[1:], len(source))
        not_void = ~_IS_VOID[name]
        opening = ~closing & not_void
        closing &= not_void
        skipped = _IS_SKIPPED[name]
        inside = np.cumsum((opening & skipped).view(np.int8) - (closing & skipped).view(np.int8), dtype=np.int64)
        read = np.flatnonzero(inside == 0)
        self.begin, self.end, self.following, self.name = begin[read], end[read], following[read], name[read]
        self.size = len(read) + 1
        self.skipped = skipped[read]
        self.opening, self.closing = opening[read], closing[read] & ~self.skipped
        visible = (letters > ord(" ")) & (letters != _NO_BREAK)
        spans = np.stack((self.end, self.following), axis=1).ravel()
        has_text = np.logical_or.reduceat(visible, spans)[::2] if len(spans) else np.zeros(0, np.bool_)
        self.has_text = has_text & (self.following > self.end)

    def read(self) -> Blocks | None:
        name, has_text = self.name, self.has_text
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
        codes, lengths, letters = self._text(runs)
        images = np.searchsorted(np.flatnonzero(name == _IMG), last_run, "right")
        return Blocks(
            *(self.source, self.end[first_run], self.following[last_run]),
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
            text_codes=codes,
            text_length=lengths,
            text_block=of_tag[runs],
        )

    def _text(self, runs: Numbers) -> tuple[NDArray[np.uint16], Numbers, Numbers]:
        """Returns the code points of runs of text and the length of each, and of all tags, the letters behind them."""
        begin, end, source = self.end[runs], self.following[runs], self.source
        text = "".join([source[at:to] for at, to in zip(begin.tolist(), end.tolist(), strict=True)])
        wide = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        codes = np.minimum(wide, _LAST).astype(np.uint16)
        lengths = end - begin
        letters = np.zeros(len(self.name), np.int64)
        visible = (codes > ord(" ")) & (codes != _NO_BREAK)
        letters[runs] = np.add.reduceat(visible, np.cumsum(lengths) - lengths, dtype=np.int64)
        return codes, lengths, letters

    def _paragraph_breaks(self) -> Mask:
        """Which tags are the second line break of two in a row."""
        is_break = self.name == _BR
        found = np.zeros(len(is_break), np.bool_)
        found[1:] = is_break[1:] & is_break[:-1] & ~self.has_text[:-1]
        return found

    def _elements(self, first_run: Numbers) -> _Elements:
        """Returns the fields of `Blocks` from `tags` to `last`."""
        begins = np.zeros(self.size, np.int64)
        begins[first_run + 1] = 1
        first = np.cumsum(begins)[:-1]  # blocks before each tag
        last = first[self._closed_by()]
        block = _IS_BLOCK[self.name]
        # Only elements around text are of use, and inline ones with a meaning or attributes.
        known = block | (self.end - self.begin > _BARE_TAG) | (self.name != _OTHER)
        held = np.flatnonzero(self.opening & (last > first) & known)
        source, names = self.source, self.name[held].tolist()
        tags = [source[at:to] for at, to in zip(self.begin[held].tolist(), self.end[held].tolist(), strict=True)]
        groups = [
            _link_groups(tag) if of == _A else (_short_tag if len(tag) <= _LONGEST_KEPT else _read_groups)(tag, of)
            for tag, of in zip(tags, names, strict=True)
        ]
        of_blocks = block[held]
        self._index(held, of_blocks)
        parent = self._around(self.depths[held] - of_blocks, held)
        return tags, names, groups, parent, first[held], last[held]

    def _closed_by(self) -> Numbers:
        """Returns the closing tag of each opening one."""
        depth = np.cumsum(self.opening.astype(np.int64) - self.closing) + self.closing
        both = np.flatnonzero(self.opening | self.closing)
        # Of one depth, opening and closing tags take turns.
        depths = depth[both]
        # A stable sort of short numbers counts them, which takes a fraction of the time.
        short = depths.astype(np.int16) if len(both) <= np.iinfo(np.int16).max else depths
        order = both[np.argsort(short, kind="stable")]
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


def _tag_name_indices(held: bytes, at: Numbers) -> Numbers:
    """Returns the indices in `TAG_NAMES` of the names at some places; `held` ends with `_LONGEST` NULs."""
    windows = np.ndarray((len(held) - _LONGEST + 1,), "<u8", held, strides=(1,))
    words = windows[np.minimum(at, len(windows) - 1)].astype(np.uint64)
    seven = words & _LOW
    letter = (seven + _FROM_A) & ~(seven + _BEHIND_Z)
    digit = (seven + _FROM_0) & ~(seven + _BEHIND_9)
    others = (~(letter | digit) | words) & _HIGH
    # The lowest bit of the first byte that is neither, less one: all bits before. Without one, it is all bits.
    found = words & (((others & -others) >> np.uint64(7)) - np.uint64(1))
    where = np.minimum(np.searchsorted(_SORTED, found), len(_SORTED) - 1)
    return np.where(_SORTED[where] == found, _ORDER[where], _OTHER)


@functools.lru_cache(1 << 14)
def _short_tag(tag: str, name: int) -> tuple[int, ...]:
    """Returns the groups of a start tag; long tags are read each time, so that a page cannot fill the memory."""
    return _read_groups(tag, name)


def _read_groups(tag: str, name: int) -> tuple[int, ...]:
    groups: tuple[int, ...] = _TAG_GROUPS[name]
    if '="' in tag:
        groups += _attribute_groups(tag)
        if ("hidden" in tag or "none" in tag) and _HIDDEN.search(tag):
            groups += NAMED["hidden"]
    return groups


def _link_groups(tag: str) -> tuple[int, ...]:
    # Its address makes nearly every link a tag of its own.
    return NAMED["a"] + (_attribute_groups(tag) if 'class="' in tag else ())


def _attribute_groups(tag: str) -> tuple[int, ...]:
    groups: set[int] = set()
    for value in _NAMES.findall(tag):
        for word in value.split():
            groups.update(groups_of(word[:_LONGEST_KEPT]))
    return tuple(sorted(groups))
