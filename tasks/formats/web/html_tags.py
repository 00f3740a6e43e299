"""Tags of a page's source, found with NumPy at 20 million tags per second: names, open elements, formatting weight.

Reads the source of a page, in UTF-8 or any superset of ASCII, before it is parsed. Import this module only for pages
long enough to have many tags, because importing NumPy takes longer than a hundred small pages.

`TagFinder` compares the first three letters of a name, which distinguish most names; other names with the same prefix
match as well. `TagNames` compares names as 64-bit numbers, so an element with a name of more than eight letters
(`blockquote`, `figcaption`) counts as nested and never closed; otherwise the result is exact. The weight of an element
is 1, plus 1 for every four attributes: the amount that a parser copies each time it reopens the element.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FORMATTING = (b"a", b"b", b"i", b"s", b"u", b"tt", b"em", b"big", b"cod", b"fon", b"nob", b"sma", b"str")
"""Prefixes of the formatting elements, which a parser reopens after a block that closed them (HTML Living Standard,
section 13.2.4.3). No other HTML element has one of these prefixes."""

# A tag that starts this close to the end has no more than a name.
_TAIL = 4
_AFTER_NAME = b"\t\n\f\r />"

_LETTERS = 8
_FIRST_LETTER = ord("a")
# Maps letters to lower case, digits to themselves, and bytes that end a name to 0.
_NAME_BYTE = np.array([ord(chr(code).lower()) * (code < 128 and chr(code).isalnum()) for code in range(256)], np.uint8)
_LOW_BITS, _HIGH_BITS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
# No ASCII letter has this bit. It distinguishes a longer name from its first eight letters.
_LONG = np.uint64(1 << 63)
# The golden ratio in 64 bits: its product's upper bits are well mixed (Knuth, TAOCP 3, section 6.4).
_MIXER = np.uint64(0x9E3779B97F4A7C15)

_KINDS = {begin: number for number, begin in enumerate(FORMATTING, 1)}
# Of `a` and `nobr` only one element each can be open.
_LINKS = (_KINDS[b"a"], _KINDS[b"nob"])
# Length of the names, by kind: a, b, i, s, u, tt, em, big, code, font, nobr, small, and strong or strike.
_NAME_LENGTHS = np.array((0, 1, 1, 1, 1, 1, 2, 2, 3, 4, 4, 4, 5, 6))
_PER_WEIGHT = 4


class Tags(NamedTuple):
    """All candidate tags of a page.

    Attributes:
        at: offsets of the names, after "<" or "</", shape (tags,).
        ends: whether each is an end tag, shape (tags,).
        starts: number of start tags.
    """

    at: NDArray[np.intp]
    ends: NDArray[np.bool_]
    starts: int


def all_tags(source: bytes) -> Tags:
    """Finds every "<" of a page, except in the last four bytes."""
    octets = np.frombuffer(source, np.uint8)
    at = (octets[:-_TAIL] == ord("<")).nonzero()[0]
    at += 1
    ends = octets.take(at) == ord("/")
    at += ends
    return Tags(at, ends, len(at) - int(np.count_nonzero(ends)))


class TagFinder:
    """Finds the tags with certain names.

    Args:
        kinds: maps the first three letters of a name (all of a shorter name) to a number from 1 to 255. No two keys
            have the same first two letters.
    """

    def __init__(self, kinds: Mapping[bytes, int]) -> None:
        self._kinds = np.zeros(1 << 16, np.uint8)
        self._thirds = np.zeros((256, 256), np.bool_)
        for begin, kind in kinds.items():
            letters = [*((letter, letter ^ 32) for letter in begin), _AFTER_NAME, range(256)]
            for first in letters[0]:
                for second in letters[1]:
                    self._kinds[first | second << 8] = kind
            self._thirds[kind, list(letters[2])] = True

    def find(self, source: bytes, tags: Tags) -> tuple[NDArray[np.intp], NDArray[np.uint8]]:
        """Returns the indices of the tags with one of the names, and their kinds."""
        if not len(tags.at):
            return np.zeros(0, np.intp), np.zeros(0, np.uint8)
        kinds = self._kinds.take(np.ndarray(len(source) - 1, "<u2", source, strides=(1,))[tags.at])
        named = kinds.nonzero()[0]
        kinds = kinds.take(named)
        matches = self._thirds[kinds, np.frombuffer(source, np.uint8).take(tags.at.take(named) + 2)]
        return named[matches], kinds[matches]


class OpenElements(NamedTuple):
    """Upper bounds on the number of elements open at one time, and the number of start tags.

    Attributes:
        nested: nesting elements.
        formatting: elements with the requested names.
        starts: number of start tags.
    """

    nested: int
    formatting: int
    starts: int


class TagNames:
    """The tags of a page.

    Args:
        source: the page in UTF-8 or any superset of ASCII; it may be truncated.
    """

    def __init__(self, source: bytes) -> None:
        self._keys, self._ends = _tag_names(source)

    def starts(self, name: str) -> int:
        """Returns the number of start tags with a name of at most eight letters."""
        return int(np.count_nonzero((self._keys == _key(name)) & ~self._ends))

    def most_open(self, flat: Iterable[str], formatting: Iterable[str]) -> OpenElements:
        """Returns the maximum number of elements open at one time.

        Args:
            flat: names of elements that do not nest, at most eight letters each.
            formatting: names to count separately as well, at most eight letters each.
        """
        if not len(self._keys):
            return OpenElements(0, 0, 0)
        groups = _TagGroups(self._keys, self._ends)
        starts = int(np.count_nonzero(~self._ends))
        return OpenElements(groups.most_open(~groups.are(flat)), groups.most_open(groups.are(formatting)), starts)


class _TagGroups:
    """Tags grouped by name, each group in page order; requires at least one tag."""

    def __init__(self, keys: NDArray[np.uint64], ends: NDArray[np.bool_]) -> None:
        self._order = _grouped(keys)
        keys = keys[self._order]
        begins = np.ones(len(keys), dtype=bool)
        np.not_equal(keys[1:], keys[:-1], out=begins[1:])
        self._names = keys[begins]
        self._group = np.cumsum(begins) - 1
        self._first = np.flatnonzero(begins)
        self._step = 1 - 2 * ends[self._order].astype(np.int64)
        self._change = self._changes()

    def are(self, names: Iterable[str]) -> NDArray[np.bool_]:
        """Returns a mask of the groups with one of the names, shape (groups,)."""
        keys = set(map(_key, names))
        return np.array([key in keys for key in self._names.tolist()], dtype=bool)

    def _changes(self) -> NDArray[np.int64]:
        """Returns the change of the number of open elements of the same name at each tag, in group order.

        An end tag closes an element of its name if one is open, so the number of open elements is the cumulative sum
        of all steps minus its running minimum. All groups are computed in one pass: each starts far below the previous
        one.
        """
        below = -self._group * (2 * len(self._step) + 1)
        total = np.cumsum(self._step)
        before = total[self._first] - self._step[self._first]
        total += below - before[self._group]
        total -= np.minimum.accumulate(np.minimum(total, below))
        change = np.diff(total, prepend=0)
        change[self._first] = total[self._first]
        return change

    def most_open(self, selected: NDArray[np.bool_]) -> int:
        """Returns the maximum number of open elements of the selected groups."""
        if not selected.any():
            return 0
        in_page = np.empty_like(self._change)
        in_page[self._order] = self._change * selected[self._group]
        return int(np.cumsum(in_page).max())


def _key(name: str) -> int:
    return int.from_bytes(name.encode().ljust(_LETTERS, b"\0"), "little")


def _tag_names(source: bytes) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Returns the name of each tag as a number, and whether it is an end tag; for long names only the start tags.

    Names are in lower case, the first letter in the lowest byte; long ones are their first letters and `_LONG`.
    """
    data = np.frombuffer(source + bytes(_LETTERS + 2), np.uint8)
    at = np.flatnonzero(data == ord("<")) + 1
    ends = data[at] == ord("/")
    at += ends
    following = np.ndarray(len(data) - _LETTERS + 1, "<u8", data, strides=(1,))[at]
    keys = _NAME_BYTE[following.view(np.uint8)].view(np.dtype("<u8"))
    # Mycroft's zero-byte test finds the first byte that is 0; the bytes below it are the name.
    zeros = (keys - _LOW_BITS) & ~keys & _HIGH_BITS
    lowest = zeros & (~zeros + np.uint64(1))
    keys &= (lowest >> np.uint64(7)) - np.uint64(1)
    is_tag = keys.view(np.uint8)[::_LETTERS] >= _FIRST_LETTER
    full = np.flatnonzero(lowest == 0)
    long = full[_NAME_BYTE[data[at[full] + _LETTERS]] != 0]
    keys[long] |= _LONG
    is_tag[long] &= ~ends[long]
    return keys[is_tag], ends[is_tag]


def _grouped(keys: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Returns a permutation that groups equal keys, each group in page order."""
    short = (keys * _MIXER >> np.uint64(48)).astype(np.uint16)
    order = np.argsort(short, kind="stable")  # a radix sort, for 16 bits
    same = short[order][1:] == short[order][:-1]
    if (same & (keys[order][1:] != keys[order][:-1])).any():
        return np.argsort(keys, kind="stable")  # a hash collision: rare, except in crafted pages
    return order


_FORMATTING_NAMES = TagFinder(_KINDS)


class FormattingTags(NamedTuple):
    """Start tags of the formatting elements of a page.

    Attributes:
        number: number of start tags, excluding links.
        unequal: number of these with attributes.
        heaviest: largest weight of these.
        heaviest_link: largest weight of a link, among links that may exceed the limit.
    """

    number: int
    unequal: int
    heaviest: int
    heaviest_link: int


def formatting_tags(source: bytes, tags: Tags, most: int) -> FormattingTags:
    """Counts and weighs the formatting elements of a page, including closed ones.

    Args:
        source: the page.
        tags: all its tags.
        most: maximum allowed weight of a link; links too short to exceed it are skipped.
    """
    named, kinds = _FORMATTING_NAMES.find(source, tags)
    starts = ~tags.ends[named]
    named, kinds = named[starts], kinds[starts]
    links = (kinds == _LINKS[0]) | (kinds == _LINKS[1])
    after = tags.at[named] + _NAME_LENGTHS[kinds]
    octets = np.frombuffer(source, np.uint8)
    unequal = after[~links & (octets.take(after, mode="clip") != ord(">"))]
    nexts = np.append(tags.at, len(source)).take(named[links] + 1)
    # An attribute takes at least two bytes.
    long = after[links][nexts - after[links] > 2 * _PER_WEIGHT * most]
    number = len(named) - int(np.count_nonzero(links))
    return FormattingTags(number, len(unequal), _heaviest(source, unequal), _heaviest(source, long))


def _heaviest(source: bytes, names: NDArray[np.intp]) -> int:
    """Returns the largest weight of the tags whose names end at the given offsets."""
    return 1 + max((_attributes(source, end) for end in names.tolist()), default=0) // _PER_WEIGHT


def _attributes(source: bytes, begin: int) -> int:
    end = source.find(b">", begin)
    inside = source[begin : end if end >= 0 else len(source)]
    return max(inside.count(b"="), len(inside.split()))
