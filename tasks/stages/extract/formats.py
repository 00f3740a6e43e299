"""How heavy the formatting elements of a page are: what a parser copies each time that it opens one of them again.

Reads the source of a page; imported when one is long enough, because NumPy takes longer to load than a hundred small
pages take. The weight of an element is 1, and 1 more for every four attributes.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.formats.web.html_tags import FORMATTING, Names, Tags

_KINDS = {begin: number for number, begin in enumerate(FORMATTING, 1)}
_NAMES = Names(_KINDS)
# `nobr` is like `a`: of each one may be left open.
_LINKS = (_KINDS[b"a"], _KINDS[b"nob"])
# Letters of the names, by kind: a, b, i, s, u, tt, em, big, code, font, nobr, small, and strong or strike.
_LETTERS = np.array((0, 1, 1, 1, 1, 1, 2, 2, 3, 4, 4, 4, 5, 6))
_PER_WEIGHT = 4


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
    named, kinds = _NAMES.find(source, tags)
    starts = ~tags.ends[named]
    named, kinds = named[starts], kinds[starts]
    links = (kinds == _LINKS[0]) | (kinds == _LINKS[1])
    behind = tags.at[named] + _LETTERS[kinds]
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
