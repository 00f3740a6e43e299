"""Repeated runs of words in many documents at once.

Used by `gopher_repetition`.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.filters.words import Words

# Words looked at together: as many as keep the tables of their n-grams in the processor's second cache.
_WORDS_AT_ONCE = 32_000


def repeated_characters(words: Words, top: Sequence[int], duplicate: Sequence[int]) -> dict[str, NDArray[np.int64]]:
    """Returns the repeated characters of every size of n-gram, all documents of a batch at once.

    Args:
        words: the words of the documents.
        top: sizes of which the most frequent n-gram counts, as `top_<n>gram`.
        duplicate: sizes of which those count that stood before, as `duplicate_<n>gram`; larger than all of `top`.

    An n-gram repeats only where both (n-1)-grams in it do, so each size looks at few places of the one before. Those
    of one size are told apart by the number of the (n-1)-gram and the word that follows it.
    """
    found = {f"top_{n}gram": _first_ngram(words, n) for n in top}
    found |= {f"duplicate_{n}gram": np.zeros(len(words.counts), np.int64) for n in duplicate}
    for begin, end in _portions(words.documents):
        for size, repeats in _repeats(words, begin, end, max(*top, *duplicate)):
            chars = words.ends[repeats.places + size] - words.ends[repeats.places]
            owner = words.owner[repeats.places]
            if size in top:
                _most_frequent(found[f"top_{size}gram"], repeats, owner, chars + size - 1)
            elif size in duplicate:
                _stepped_over(found[f"duplicate_{size}gram"], repeats, owner, chars, size)
    return found


class _Repeats:
    """The places at which an n-gram begins that stands more than once in its document, in text order.

    Attributes:
        places: where they begin.
        group: equal for equal n-grams of one document, from 0.
        counts: how often the n-grams of each group stand there.
    """

    def __init__(self, places: NDArray[np.int64], keys: NDArray[np.int64]) -> None:
        # A hash table numbers the n-grams; sorting them takes longer.
        group = pa.array(keys).dictionary_encode().indices.to_numpy()
        self.counts = np.bincount(group)
        several = self.counts[group] > 1
        self.places, self.group = places[several], group[several]


def _portions(documents: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yields the first word and the end of some whole documents at a time."""
    begin = 0
    while begin < documents[-1]:
        end = int(documents[min(int(np.searchsorted(documents, begin + _WORDS_AT_ONCE)), len(documents) - 1)])
        yield begin, end
        begin = end


def _repeats(words: Words, begin: int, end: int, largest: int) -> Iterator[tuple[int, _Repeats]]:
    """Yields the n-grams that repeat between two bounds of documents, size by size from 2 on, while there are any."""
    places = np.arange(begin, end)
    found = _Repeats(places, _keys(words.owner[begin:end], words.ids[begin:end]))
    for size in range(2, largest + 1):
        follows = found.places[1:] == found.places[:-1] + 1
        if size == 2:
            follows &= words.owner[found.places[1:]] == words.owner[found.places[:-1]]
        at = np.flatnonzero(follows)
        places = found.places[at]
        found = _Repeats(places, _keys(found.group[at], words.ids[places + size - 1]))
        if not len(found.places):
            return
        yield size, found


def _keys(groups: NDArray[np.int32], ids: NDArray[np.int32]) -> NDArray[np.int64]:
    """Returns a number for each pair that no other pair has."""
    return (groups.astype(np.int64) << 32) | ids


def _first_ngram(words: Words, size: int) -> NDArray[np.int64]:
    """Returns the length of each document's first n-gram with its spaces: the most frequent one where none repeats."""
    starts = words.documents[:-1]
    ends = np.minimum(starts + size, len(words.ids))
    return np.where(words.counts >= size, words.ends[ends] - words.ends[starts] + size - 1, 0)


def _most_frequent(
    found: NDArray[np.int64], repeats: _Repeats, owner: NDArray[np.int32], chars: NDArray[np.int64]
) -> None:
    """Enters the characters of the most frequent n-gram of each document; of equally frequent ones the first counts."""
    count = repeats.counts[repeats.group]
    starts = np.flatnonzero(np.append(True, owner[1:] != owner[:-1]))
    most = np.maximum.reduceat(count, starts)
    best = np.flatnonzero(count == np.repeat(most, np.diff(starts, append=len(owner))))
    first = best[np.searchsorted(best, starts)]
    found[owner[first]] = count[first] * chars[first]


def _stepped_over(
    found: NDArray[np.int64], repeats: _Repeats, owner: NDArray[np.int32], chars: NDArray[np.int64], size: int
) -> None:
    """Enters the characters of n-grams that stood before; after one of them the next n-gram begins behind it."""
    seen = bytearray(len(repeats.counts))
    groups = repeats.group.tolist()
    behind = np.searchsorted(repeats.places, repeats.places + size).tolist()
    taken = []
    at, end = 0, len(groups)
    while at < end:
        group = groups[at]
        if seen[group]:
            taken.append(at)
            at = behind[at]
        else:
            seen[group] = 1
            at += 1
    np.add.at(found, owner[taken], chars[taken])
