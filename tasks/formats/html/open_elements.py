"""Maximum number of open elements of a page, computed with NumPy at 20 million tags a second.

Reads the source of a page. Imported only for pages long enough to have many tags: loading NumPy takes longer than a
hundred small pages. Tag names are compared as 64-bit numbers, so an element with a name of more than eight letters
(`blockquote`, `figcaption`) counts as nested and as never closed; the result is exact otherwise.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_LETTERS = 8
_FIRST_LETTER = ord("a")
# Letters in lower case, digits as they are, 0 for everything at which a name ends.
_NAME_BYTE = np.array([ord(chr(code).lower()) * (code < 128 and chr(code).isalnum()) for code in range(256)], np.uint8)
_LOW_BITS, _HIGH_BITS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
# No letter has this bit. It distinguishes a longer name from the name that is its first eight letters.
_LONG = np.uint64(1 << 63)
# The golden ratio in 64 bits: its product's upper bits are well mixed (Knuth, TAOCP 3, section 6.4).
_MIXER = np.uint64(0x9E3779B97F4A7C15)


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


class Tags:
    """The tags of a page.

    Args:
        source: the page in UTF-8, or any encoding in which ASCII is ASCII; it may end anywhere.
    """

    def __init__(self, source: bytes) -> None:
        self._keys, self._ends = _tags(source)

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


def _tags(source: bytes) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
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
