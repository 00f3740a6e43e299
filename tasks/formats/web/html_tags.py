"""Tags of a page's source, found with NumPy at 20 million tags a second: names, open elements, weight of formatting.

Reads the source of a page, in UTF-8 or any encoding in which ASCII is ASCII, before it is parsed. Imported only for
pages long enough to have many tags: loading NumPy takes longer than a hundred small pages.

`Names` compares the first three letters of a name, which distinguish most names; other names with the same prefix match
as well. `TagNames` compares names as 64-bit numbers, so an element with a name of more than eight letters
(`blockquote`, `figcaption`) counts as nested and as never closed; the result is exact otherwise. The weight of an
element is 1, and 1 more for every four attributes: what a parser copies each time that it opens it again.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FORMATTING = (b"a", b"b", b"i", b"s", b"u", b"tt", b"em", b"big", b"cod", b"fon", b"nob", b"sma", b"str")
"""Prefixes of the formatting elements, which a parser reopens after a block that has closed them (HTML Living
Standard, section 13.2.4.3). No other HTML element has one of these prefixes."""

# A tag that starts this close to the end has at most a name.
_TAIL = 4
_BEHIND_NAME = b"\t\n\f\r />"

_LETTERS = 8
_FIRST_LETTER = ord("a")
# Letters in lower case, digits as they are, 0 for everything at which a name ends.
_NAME_BYTE = np.array([ord(chr(code).lower()) * (code < 128 and chr(code).isalnum()) for code in range(256)], np.uint8)
_LOW_BITS, _HIGH_BITS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
# No letter has this bit. It distinguishes a longer name from the name that is its first eight letters.
_LONG = np.uint64(1 << 63)
# The golden ratio in 64 bits: its product's upper bits are well mixed (Knuth, TAOCP 3, section 6.4).
_MIXER = np.uint64(0x9E3779B97F4A7C15)

_KINDS = {begin: number for number, begin in enumerate(FORMATTING, 1)}
# `nobr` is like `a`: of each one may be left open.
_LINKS = (_KINDS[b"a"], _KINDS[b"nob"])
# Letters of the names, by kind: a, b, i, s, u, tt, em, big, code, font, nobr, small, and strong or strike.
_NAME_LENGTHS = np.array((0, 1, 1, 1, 1, 1, 2, 2, 3, 4, 4, 4, 5, 6))
_PER_WEIGHT = 4


class Tags(NamedTuple):
    """All candidates for tags.

    Attributes:
        at: where names begin, behind "<" or "</".
        ends: whether it is an end tag.
        starts: number of start tags.
    """

    at: NDArray[np.intp]
    ends: NDArray[np.bool_]
    starts: int


def all_tags(source: bytes) -> Tags:
    """Finds every "<" of a page, but for the last four bytes."""
    octets = np.frombuffer(source, np.uint8)
    at = (octets[:-_TAIL] == ord("<")).nonzero()[0]
    at += 1
    ends = octets.take(at) == ord("/")
    at += ends
    return Tags(at, ends, len(at) - int(np.count_nonzero(ends)))


class Names:
    """Finds the tags of some names.

    Args:
        kinds: by the beginning of a name, one letter for a name of one, two for one of two, else three: a number from 1
            to 255. No two begin with the same two letters.
    """

    def __init__(self, kinds: Mapping[bytes, int]) -> None:
        self._kinds = np.zeros(1 << 16, np.uint8)
        self._thirds = np.zeros((256, 256), np.bool_)
        for begin, kind in kinds.items():
            letters = [*((letter, letter ^ 32) for letter in begin), _BEHIND_NAME, range(256)]
            for one in letters[0]:
                for two in letters[1]:
                    self._kinds[one | two << 8] = kind
            self._thirds[kind, list(letters[2])] = True

    def find(self, source: bytes, tags: Tags) -> tuple[NDArray[np.intp], NDArray[np.uint8]]:
        """Returns which of a page's tags have one of the names, and their kinds."""
        if not len(tags.at):
            return np.zeros(0, np.intp), np.zeros(0, np.uint8)
        kinds = self._kinds.take(np.ndarray(len(source) - 1, "<u2", source, strides=(1,))[tags.at])
        named = kinds.nonzero()[0]
        kinds = kinds.take(named)
        known = self._thirds[kinds, np.frombuffer(source, np.uint8).take(tags.at.take(named) + 2)]
        return named[known], kinds[known]


class Open(NamedTuple):
    """Maximum numbers of open elements, and the number of start tags; an upper bound of an exact count.

    Attributes:
        nested: elements that nest.
        formatting: elements of the requested names.
        starts: start tags.
    """

    nested: int
    formatting: int
    starts: int


class TagNames:
    """The tags of a page.

    Args:
        source: the page in UTF-8, or any encoding in which ASCII is ASCII; it may end anywhere.
    """

    def __init__(self, source: bytes) -> None:
        self._keys, self._ends = _tag_names(source)

    def starts(self, name: str) -> int:
        """Counts the start tags of one name, of at most eight letters."""
        return int(np.count_nonzero((self._keys == _key(name)) & ~self._ends))

    def most_open(self, flat: Iterable[str], formatting: Iterable[str]) -> Open:
        """Returns how many elements are open at one time.

        Args:
            flat: names of elements that do not nest, of at most eight letters.
            formatting: names that are also counted by themselves, of at most eight letters.
        """
        if not len(self._keys):
            return Open(0, 0, 0)
        groups = _Groups(self._keys, self._ends)
        starts = int(np.count_nonzero(~self._ends))
        return Open(groups.most_open(~groups.are(flat)), groups.most_open(groups.are(formatting)), starts)


class _Groups:
    """Tags grouped by name, each group in the order of the page; there is at least one."""

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
        """Returns for each group whether its name is one of these, shape (groups,)."""
        keys = set(map(_key, names))
        return np.array([key in keys for key in self._names.tolist()], dtype=bool)

    def _changes(self) -> NDArray[np.int64]:
        """Returns by how much each tag, in the order of the groups, changes how many of its name are open.

        An end tag closes an element of its name if one is open. So the number of open elements is the sum of
        all steps minus its running minimum. All groups are computed in one pass: each starts far below the previous
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
    """Returns the name of each tag as a number, and whether it is an end tag; of long names only the start tags.

    Names are in lower case, the first letter in the lowest byte; long ones are their first letters and `_LONG`.
    """
    data = np.frombuffer(source + bytes(_LETTERS + 2), np.uint8)
    at = np.flatnonzero(data == ord("<")) + 1
    ends = data[at] == ord("/")
    at += ends
    following = np.ndarray(len(data) - _LETTERS + 1, "<u8", data, strides=(1,))[at]
    keys = _NAME_BYTE[following.view(np.uint8)].view(np.dtype("<u8"))
    # The first byte that is 0, by Mycroft's zero-byte test; the bytes below it are the name.
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
    """Returns a permutation that groups equal keys, each group in the order of the page."""
    short = (keys * _MIXER >> np.uint64(48)).astype(np.uint16)
    order = np.argsort(short, kind="stable")  # a radix sort, for 16 bits
    same = short[order][1:] == short[order][:-1]
    if (same & (keys[order][1:] != keys[order][:-1])).any():
        return np.argsort(keys, kind="stable")  # two names with one hash: rare, unless constructed
    return order


_FORMATTING_NAMES = Names(_KINDS)


class Formats(NamedTuple):
    """The start tags of formatting elements of a page.

    Attributes:
        number: how many there are, links left out.
        unequal: how many of them have attributes.
        heaviest: the weight of the heaviest.
        heaviest_link: the weight of the heaviest link, of those that may pass the limit.
    """

    number: int
    unequal: int
    heaviest: int
    heaviest_link: int


def formats_in(source: bytes, tags: Tags, most: int) -> Formats:
    """Counts and weighs the formatting elements of a page, closed ones as well.

    Args:
        source: the page.
        tags: all its tags.
        most: what links may weigh; those that are too short for it are not looked at.
    """
    named, kinds = _FORMATTING_NAMES.find(source, tags)
    starts = ~tags.ends[named]
    named, kinds = named[starts], kinds[starts]
    links = (kinds == _LINKS[0]) | (kinds == _LINKS[1])
    behind = tags.at[named] + _NAME_LENGTHS[kinds]
    octets = np.frombuffer(source, np.uint8)
    unequal = behind[~links & (octets.take(behind, mode="clip") != ord(">"))]
    nexts = np.append(tags.at, len(source)).take(named[links] + 1)
    # An attribute takes two bytes at least.
    long = behind[links][nexts - behind[links] > 2 * _PER_WEIGHT * most]
    number = len(named) - int(np.count_nonzero(links))
    return Formats(number, len(unequal), _heaviest(source, unequal), _heaviest(source, long))


def _heaviest(source: bytes, names: NDArray[np.intp]) -> int:
    """Returns the most that any tag weighs whose name ends at one of these places."""
    return 1 + max((_attributes(source, end) for end in names.tolist()), default=0) // _PER_WEIGHT


def _attributes(source: bytes, begin: int) -> int:
    end = source.find(b">", begin)
    inside = source[begin : end if end >= 0 else len(source)]
    return max(inside.count(b"="), len(inside.split()))
