"""Splits the text of a page into blocks, with the elements around them and the groups of their class names.

Reads the serialization of a parsed page, in which every element is closed and every attribute is quoted. NumPy
processes all tags at once: a traversal of the nodes of the tree takes ten times as long.

A block is text that no block-level element interrupts: a paragraph, an item, a heading, a cell. Two consecutive line
breaks end a block as well. Menus, footers and controls have no blocks.
"""

import functools
import html
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from resiliparse.parse.html import HTMLTree

# Groups of element names that are typical of boilerplate or of articles.
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
# Groups of parts of classes, ids, roles and item properties, in the languages of the training data.
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
"""Groups by element name."""
_OF_WORD = {
    word: len(_TAG_WORDS) + number
    for number, words in reversed(list(enumerate(_NAME_WORDS.values())))
    for word in words.split()
}

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]

# Invisible content that the serialization does not escape.
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
# Attributes by name: the word "hidden" in the value of another one hides nothing.
_HIDES = r'\s(?:hidden(?!="until-found")[=>\s]|style="(?:[^"]*?[;\s])?display\s*+:\s*+none|aria-hidden="true")'
# The name of an attribute without a value, by which a script finds an element. Sites whose classes are hashes have it
# where others have a class.
_POPUP = re.compile(r'\sdata-((?:(?!popup)[a-z-])*+popup[a-z-]*+)=""')
_HIDDEN = re.compile(rf'<[^\s>]++(?:(?!{_HIDES})\s++[^\s=">]*+(?:="[^"]*+")?+)*+{_HIDES}')
_ANY_TAG = re.compile(r"<[^>]*>")
_BREAK = "\x1e"  # stands for a line break while white space is collapsed
_LONGEST = 8  # compared letters of an element name
_LONGEST_CACHED = 300  # maximum characters of a cached tag or class name
_BARE_TAG = 8  # maximum characters of a tag without attributes

_VOID = "area base br col embed hr img input link meta param source track wbr"
_BLOCK = (
    "address article aside blockquote body caption center dd details dialog dir div dl dt fieldset figcaption figure"
    " footer form h1 h2 h3 h4 h5 h6 header hgroup hr html legend li main menu nav ol p pre search section summary table"
    " tbody td tfoot th thead tr ul"
)
_INLINE = "a b i em strong span font small q cite code time u sub sup label"
_SKIPPED = "nav footer noscript template svg object audio video canvas select textarea button head"
_HOLE = re.compile(rf"<({'|'.join(_SKIPPED.split())})\b.*?</\1>", re.DOTALL)
_BLOCK_TAG = re.compile(rf"</?(?:br|{'|'.join(_BLOCK.split())})\b[^>]*+>")
_LINES = "li dd dt tr summary ul ol dl tbody thead"
_CELLS = "td th"
_KNOWN = sorted({*_VOID.split(), *_BLOCK.split(), *_SKIPPED.split(), *_INLINE.split()})
MOST_BLOCKS = 20_000
# Longer pages are lists or malicious; their features would take many times their memory.
_MOST_CHARACTERS, _MOST_TAGS = 10_000_000, 200_000
_OTHER = len(_KNOWN)
TAG_NAMES = (*_KNOWN, "")
_BR, _A, _IMG, _PRE = (TAG_NAMES.index(name) for name in ("br", "a", "img", "pre"))
_TAG_GROUPS = tuple(NAMED.get(name, ()) for name in TAG_NAMES)

_LAST = 0xFFFF
_NO_BREAK = 0xA0
# Eight letters of a name are one integer, whose bytes are compared at once.
_EACH = np.uint64(0x0101010101010101)
_HIGH, _LOW = _EACH * np.uint64(0x80), _EACH * np.uint64(0x7F)
_FROM_A, _BEHIND_Z, _FROM_0, _BEHIND_9 = (_EACH * np.uint64(0x80 - ord(letter)) for letter in "a{0:")


def _longest_of(words: Iterable[str]) -> str:
    """Returns a pattern that matches the longest of some words at a position.

    Words share prefixes in the pattern: a plain alternation of 400 words takes five times as long.
    """
    optional, suffixes = "", dict[str, list[str]]()
    for word in words:
        if word:
            suffixes.setdefault(word[0], []).append(word[1:])
        else:
            optional = "?"
    pattern = "|".join(re.escape(letter) + _longest_of(rest) for letter, rest in sorted(suffixes.items()))
    return f"(?:{pattern}){optional}" if pattern else ""


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
    selected = frozenset(names.split())
    return np.array([name in selected for name in TAG_NAMES])


_IS_VOID, _IS_BLOCK, _IS_SKIPPED = _tag_mask(_VOID), _tag_mask(_BLOCK), _tag_mask(_SKIPPED)
_IS_LINE, _IS_CELL = _tag_mask(_LINES), _tag_mask(_CELLS)


@dataclass(frozen=True)
class Blocks:
    """The blocks of a page and the elements that contain them, both in document order.

    The first attributes after `source` have one value per block, those from `tags` on one per element, and those from
    `text_codes` on describe the runs of text.

    Attributes:
        source: the serialized page.
        begin: offset in `source` at which the text of the block begins.
        end: offset in `source` at which the text of the block ends.
        element: index of the innermost block-level element around the block; -1 for none.
        separator: 0 for a block that begins a cell, 1 for a line, 2 for a paragraph.
        layout: whether the block is preformatted.
        linked: number of code points in links, without white space.
        links: number of links that begin in the block.
        breaks: number of line breaks in the block.
        holes: number of skipped elements in the block.
        images: number of images in the block, or between it and the block before.
        tags: start tag of the element.
        names: index of the element's name in `TAG_NAMES`.
        groups: indices in `GROUPS` of the groups of the element.
        parent: index of the block-level element around the element; -1 for none.
        opened: offset in `source` of the start tag of the element.
        closed: offset in `source` after its end tag.
        first: index of the first block in the element.
        last: index after the last block in the element.
        text_codes: code points of all runs of text in blocks, concatenated; code points above 0xFFFF are 0xFFFF.
        text_length: length of each run.
        text_block: index of the block of each run.
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
    opened: Numbers
    closed: Numbers
    first: Numbers
    last: Numbers
    text_codes: NDArray[np.uint16]
    text_length: Numbers
    text_block: Numbers

    def __len__(self) -> int:
        return len(self.begin)

    def text(self, index: int) -> str:
        """Returns the text of a block; white space is collapsed, except in preformatted text."""
        text = self.source[self.begin[index] : self.end[index]]
        if "<" in text:
            if self.holes[index]:
                text = _HOLE.sub("", text)
            if self.breaks[index]:
                text = text.replace("<br>", _BREAK)
            text = _ANY_TAG.sub("", text)
        return _unescaped(text, layout=bool(self.layout[index]))


def visible(markup: str) -> str:
    """Returns the text of some markup of `Blocks.source` on one line; its blocks are separated by spaces."""
    if "<" in markup:
        markup = _ANY_TAG.sub("", _BLOCK_TAG.sub(" ", _HOLE.sub("", markup)))
    return " ".join(_unescaped(markup, layout=False).split())


def _unescaped(text: str, *, layout: bool) -> str:
    """Returns a text with its character references decoded, and with line breaks where it has `_BREAK`."""
    if "&" in text:
        text = html.unescape(text)
    if layout:
        return text.replace(_BREAK, "\n").strip("\n")
    if _BREAK in text:
        return "\n".join([" ".join(line.split()) for line in text.split(_BREAK)]).strip()
    return " ".join(text.split())


def read_blocks(tree: HTMLTree) -> Blocks | None:
    """Returns the blocks of a page; None for a page without text, or with too many blocks, tags or characters."""
    body = tree.body
    if body is None:
        return None
    source = _RAW.sub("", body.html).replace("&nbsp;", "\xa0")
    if len(source) > _MOST_CHARACTERS or source.count("<") > _MOST_TAGS:
        return None
    # Markup is ASCII. Other characters become question marks, which are visible and do not end a name either.
    octets = source.encode("latin-1", "replace") + bytes(_LONGEST)
    begin, end = _tags(source, np.frombuffer(octets, np.uint8))
    return _BlockReader(source, octets, begin, end).read() if len(begin) else None


def _tags(source: str, octets: NDArray[np.uint8]) -> tuple[Numbers, Numbers]:
    """Returns the offsets at which tags begin, and those after their ends."""
    at = np.flatnonzero((octets == ord("<")) | (octets == ord(">")) | (octets == ord('"')))
    mark = octets[at]
    begin, ends = np.flatnonzero(mark == ord("<")), np.flatnonzero(mark == ord(">"))
    if len(begin) and len(ends) and begin[-1] < ends[-1]:
        end = ends[np.searchsorted(ends, begin)]
        quotes = np.cumsum(mark == ord('"'))
        if not ((quotes[end] - quotes[begin]) & 1).any():
            return at[begin], at[end] + 1
    # An attribute value contains "<" or ">".
    spans = [match.span() for match in _TAG.finditer(source)]
    table = np.array(spans, np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


class _Elements(NamedTuple):
    """The fields of `Blocks` that describe elements."""

    tags: list[str]
    names: list[int]
    groups: list[tuple[int, ...]]
    parent: Numbers
    opened: Numbers
    closed: Numbers
    first: Numbers
    last: Numbers


class _BlockReader:
    """Reads the blocks of one page; arrays have one row for each tag outside of skipped elements."""

    def __init__(self, source: str, octets: bytes, begin: Numbers, end: Numbers) -> None:
        self.source = source
        letters = np.frombuffer(octets, np.uint8)
        closing = letters[begin + 1] == ord("/")
        name = _tag_name_indices(octets, begin + 1 + closing)
        following = np.append(begin[1:], len(source))
        not_void = ~_IS_VOID[name]
        opening = ~closing & not_void
        closing &= not_void
        skipped = _IS_SKIPPED[name]
        inside = np.cumsum((opening & skipped).view(np.int8) - (closing & skipped).view(np.int8), dtype=np.int64)
        included = np.flatnonzero(inside == 0)
        self.begin, self.end, self.following, self.name = (
            begin[included],
            end[included],
            following[included],
            name[included],
        )
        self.size = len(included) + 1
        self.skipped = skipped[included]
        self.opening, self.closing = opening[included], closing[included] & ~self.skipped
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
        in_block = of_tag >= 0

        def count(mask: Mask, weights: Numbers | None = None) -> Numbers:
            tags = mask & in_block
            sums = np.bincount(of_tag[tags], None if weights is None else weights[tags], minlength=number)
            return sums.astype(np.int64)

        elements = self._elements(first_run)
        codes, lengths, letters = self._text(runs)
        images = np.searchsorted(np.flatnonzero(name == _IMG), last_run, "right")
        return Blocks(
            source=self.source,
            begin=self.end[first_run],
            end=self.following[last_run],
            element=self._around(self.depths[first_run], first_run),
            separator=self._separators(is_block, first_run),
            layout=self._is_inside(_PRE)[first_run],
            linked=count(self._is_inside(_A) & has_text, letters),
            links=count(self.opening & (name == _A)),
            breaks=count(name == _BR),
            holes=count(self.skipped),
            images=np.diff(images, prepend=0),
            **elements._asdict(),
            text_codes=codes,
            text_length=lengths,
            text_block=of_tag[runs],
        )

    def _text(self, runs: Numbers) -> tuple[NDArray[np.uint16], Numbers, Numbers]:
        """Returns the code points of runs of text, the length of each run, and the number of letters after each tag."""
        begin, end, source = self.end[runs], self.following[runs], self.source
        text = "".join([source[at:to] for at, to in zip(begin.tolist(), end.tolist(), strict=True)])
        wide = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        codes = np.minimum(wide, _LAST).astype(np.uint16)
        lengths = end - begin
        letters = np.zeros(len(self.name), np.int64)
        visible = (codes > ord(" ")) & (codes != _NO_BREAK)
        letters[runs] = np.add.reduceat(visible, np.cumsum(lengths) - lengths, dtype=np.int64)
        return codes, lengths, letters

    def _is_inside(self, name: int) -> Mask:
        """Returns a mask of the tags after which the text is inside an element with that index in `TAG_NAMES`."""
        is_named = self.name == name
        return np.cumsum((self.opening & is_named).astype(np.int64) - (self.closing & is_named)) > 0

    def _paragraph_breaks(self) -> Mask:
        """Returns a mask of the tags that are the second of two consecutive line breaks."""
        is_break = self.name == _BR
        mask = np.zeros(len(is_break), np.bool_)
        mask[1:] = is_break[1:] & is_break[:-1] & ~self.has_text[:-1]
        return mask

    def _elements(self, first_run: Numbers) -> _Elements:
        """Returns the elements around text; builds the index for `_around`."""
        begins = np.zeros(self.size, np.int64)
        begins[first_run + 1] = 1
        first = np.cumsum(begins)[:-1]  # blocks before each tag
        closing = self._closed_by()
        last = first[closing]
        block = _IS_BLOCK[self.name]
        # Only elements around text are useful, and of inline elements those with a known name or attributes.
        is_useful = block | (self.end - self.begin > _BARE_TAG) | (self.name != _OTHER)
        elements = np.flatnonzero(self.opening & (last > first) & is_useful)
        source, names = self.source, self.name[elements].tolist()
        begin, end = self.begin[elements].tolist(), self.end[elements].tolist()
        tags = [source[at:to] for at, to in zip(begin, end, strict=True)]
        groups = [
            _link_groups(tag)
            if name == _A
            else (_short_tag if len(tag) <= _LONGEST_CACHED else _read_groups)(tag, name)
            for tag, name in zip(tags, names, strict=True)
        ]
        of_blocks = block[elements]
        self._index(elements, of_blocks)
        parent = self._around(self.depths[elements] - of_blocks, elements)
        return _Elements(
            tags=tags,
            names=names,
            groups=groups,
            parent=parent,
            opened=self.begin[elements],
            closed=self.end[closing[elements]],
            first=first[elements],
            last=last[elements],
        )

    def _closed_by(self) -> Numbers:
        """Returns the index of the closing tag of each opening tag."""
        depth = np.cumsum(self.opening.astype(np.int64) - self.closing) + self.closing
        tags = np.flatnonzero(self.opening | self.closing)
        # At each depth, opening and closing tags alternate.
        depths = depth[tags]
        # The stable sort of 16-bit integers is a radix sort, which takes a fraction of the time.
        short = depths.astype(np.int16) if len(tags) <= np.iinfo(np.int16).max else depths
        order = tags[np.argsort(short, kind="stable")]
        closing = np.full(len(self.name), len(self.name) - 1)
        closing[order[:-1]] = order[1:]
        return closing

    def _index(self, elements: Numbers, of_blocks: Mask) -> None:
        """Builds the index for `_around`: block-level elements by depth and position."""
        block = _IS_BLOCK[self.name]
        self.depths = np.cumsum((self.opening & block).astype(np.int64) - (self.closing & block))
        starts = elements[of_blocks]
        keys = self.depths[starts] * self.size + starts
        order = np.argsort(keys)
        self.keys, self.indices = keys[order], np.flatnonzero(of_blocks)[order]

    def _around(self, depth: Numbers, at: Numbers) -> Numbers:
        """Returns the last block-level element of a depth that begins at or before a tag; -1 if there is none."""
        if not len(self.keys):
            return np.full(len(at), -1)
        row = np.searchsorted(self.keys, depth * self.size + at, "right") - 1
        exists = (row >= 0) & (self.keys[row] // self.size == depth)
        return np.where(exists, self.indices[row], -1)

    def _separators(self, is_block: Mask, first_run: Numbers) -> Numbers:
        """Returns for each block the widest separator of the tags since the previous block."""
        name = self.name
        of_tags = np.where(_IS_CELL[name], 0, np.where(_IS_LINE[name], 1, 2)) * is_block
        widest: Numbers = np.maximum.reduceat(of_tags, np.append(0, first_run[:-1] + 1))
        return widest


def _tag_name_indices(octets: bytes, at: Numbers) -> Numbers:
    """Returns the indices in `TAG_NAMES` of the names at some offsets; `octets` ends with `_LONGEST` NULs."""
    windows = np.ndarray((len(octets) - _LONGEST + 1,), "<u8", octets, strides=(1,))
    words = windows[np.minimum(at, len(windows) - 1)].astype(np.uint64)
    seven = words & _LOW
    letter = (seven + _FROM_A) & ~(seven + _BEHIND_Z)
    digit = (seven + _FROM_0) & ~(seven + _BEHIND_9)
    others = (~(letter | digit) | words) & _HIGH
    # The lowest bit of the first byte that is neither letter nor digit, minus one, is a mask of all bits before it; if
    # there is no such byte, it is a mask of all bits.
    names = words & (((others & -others) >> np.uint64(7)) - np.uint64(1))
    rank = np.minimum(np.searchsorted(_SORTED, names), len(_SORTED) - 1)
    return np.where(_SORTED[rank] == names, _ORDER[rank], _OTHER)


@functools.lru_cache(1 << 14)
def _short_tag(tag: str, name: int) -> tuple[int, ...]:
    """Returns the groups of a start tag. Long tags are not cached, so that a page cannot fill the memory."""
    return _read_groups(tag, name)


def _read_groups(tag: str, name: int) -> tuple[int, ...]:
    groups: tuple[int, ...] = _TAG_GROUPS[name]
    if '="' in tag:
        groups += _attribute_groups(tag)
        if ("hidden" in tag or "none" in tag) and _HIDDEN.match(tag):
            groups += NAMED["hidden"]
        if "popup" in tag and (popup := _POPUP.search(tag)):
            groups += groups_of(popup[1][:_LONGEST_CACHED])
    return groups


def _link_groups(tag: str) -> tuple[int, ...]:
    # Not cached, because nearly every link has a different address.
    return NAMED["a"] + (_attribute_groups(tag) if 'class="' in tag else ())


def _attribute_groups(tag: str) -> tuple[int, ...]:
    groups: set[int] = set()
    for value in _NAMES.findall(tag):
        for word in value.split():
            groups.update(groups_of(word[:_LONGEST_CACHED]))
    return tuple(sorted(groups))
