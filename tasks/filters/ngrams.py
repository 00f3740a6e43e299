"""Repeated runs of words in many documents at once.

Used by `gopher_repetition`.
"""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.filters.words import Words
from tasks.text import extended


def repeated_characters(words: Words, top: Sequence[int], duplicate: Sequence[int]) -> dict[str, NDArray[np.int64]]:
    """Returns the repeated characters of every size of n-gram, all documents of a batch at once.

    Args:
        words: the words of the documents.
        top: sizes of which the most frequent n-gram counts, as `top_<n>gram`.
        duplicate: sizes of which those count that stood before, as `duplicate_<n>gram`; larger than all of `top`.

    An n-gram repeats only where the (n-1)-gram at the same place does, so each size looks at few places of the one
    before. n-grams are told apart by 64-bit hashes that the document is part of: one in 10^7 batches of a million
    words takes two for equal.
    """
    lengths = np.concatenate(([0], np.cumsum(words.lengths)))
    ends = words.documents[1:]
    found = {f"top_{n}gram": _first_ngram(words, n, lengths) for n in top}
    found |= {f"duplicate_{n}gram": np.zeros(len(ends), np.int64) for n in duplicate}
    places = np.arange(len(words.ids))
    runs = extended(words.owner.astype(np.uint64), words.hashes)
    for size in range(2, max(duplicate) + 1):
        inside = places + size <= ends[words.owner[places]]
        places = places[inside]
        runs = extended(runs[inside], words.hashes[places + size - 1])
        repeats = _Repeats(places, runs)
        if not len(repeats.places):
            break
        chars = lengths[repeats.places + size] - lengths[repeats.places]
        owner = words.owner[repeats.places]
        if size in top:
            _most_frequent(found[f"top_{size}gram"], repeats, owner, chars + size - 1)
        else:
            _stepped_over(found[f"duplicate_{size}gram"], repeats, owner, chars, size)
        places, runs = repeats.places, repeats.runs
    return found


class _Repeats:
    """The places at which an n-gram begins that stands more than once in its document, in text order.

    Attributes:
        places: where they begin.
        runs: their hashes.
        group: equal for equal n-grams.
        counts: how often the n-grams of each group stand there.
    """

    def __init__(self, places: NDArray[np.int64], runs: NDArray[np.uint64]) -> None:
        # A hash table numbers the n-grams; sorting them takes longer.
        group = pa.array(runs).dictionary_encode().indices.to_numpy()
        self.counts = np.bincount(group)
        several = self.counts[group] > 1
        self.places, self.runs, self.group = places[several], runs[several], group[several]


def _first_ngram(words: Words, size: int, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the length of each document's first n-gram with its spaces: the most frequent one where none repeats."""
    starts, counts = words.documents[:-1], words.counts
    ends = np.minimum(starts + size, len(lengths) - 1)
    return np.where(counts >= size, lengths[ends] - lengths[starts] + size - 1, 0)


def _most_frequent(
    found: NDArray[np.int64], repeats: _Repeats, owner: NDArray[np.int64], chars: NDArray[np.int64]
) -> None:
    """Enters the characters of the most frequent n-gram of each document; of equally frequent ones the first counts."""
    count = repeats.counts[repeats.group]
    starts = np.flatnonzero(np.append(True, owner[1:] != owner[:-1]))
    most = np.maximum.reduceat(count, starts)
    best = np.flatnonzero(count == np.repeat(most, np.diff(starts, append=len(owner))))
    first = best[np.searchsorted(best, starts)]
    found[owner[first]] = count[first] * chars[first]


def _stepped_over(
    found: NDArray[np.int64], repeats: _Repeats, owner: NDArray[np.int64], chars: NDArray[np.int64], size: int
) -> None:
    """Enters the characters of n-grams that stood before; after one of them the next n-gram begins behind it."""
    seen = bytearray(len(repeats.counts))
    places, groups = repeats.places.tolist(), repeats.group.tolist()
    taken = []
    at, end = 0, len(places)
    while at < end:
        group = groups[at]
        if not seen[group]:
            seen[group] = 1
            at += 1
            continue
        taken.append(at)
        # At most size - 1 of the places that follow are stepped over.
        at = bisect_left(places, places[at] + size, at + 1, min(at + size, end))
    found += np.bincount(owner[taken], chars[taken], minlength=len(found)).astype(np.int64)
