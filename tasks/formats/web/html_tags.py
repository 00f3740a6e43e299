"""Search for tags by the first letters of their names, with NumPy at 20 million tags a second.

Reads the source of a page, in UTF-8 or any encoding in which ASCII is ASCII. Three letters distinguish most names, so
names are given by prefix; other names with the same prefix match as well.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FORMATTING = (b"a", b"b", b"i", b"s", b"u", b"tt", b"em", b"big", b"cod", b"fon", b"nob", b"sma", b"str")
"""Prefixes of the formatting elements, which a parser reopens after a block that has closed them (HTML Living
Standard, section 13.2.4.3). No other HTML element has one of these prefixes."""

# A tag that starts this close to the end has at most a name.
_TAIL = 4
_BEHIND_NAME = b"\t\n\f\r />"


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
