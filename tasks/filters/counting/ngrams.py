"""Repeated word n-grams of many documents."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.filters.counting.columns import insertions, looked_up, places, portions
from tasks.filters.counting.words import Words

# Words processed together: the tables of their n-grams fit into the processor's L2 cache.
_WORDS_AT_ONCE = 32_000
# N-grams of one document numbered by one hash table, which takes up to a hundred bytes for each.
_KEYS_AT_ONCE = 1_000_000
# Steps from one n-gram to the next: lists of positions cost ten times as much as arrays.
_STEPS_AT_ONCE = 65_536
_MIXER = np.uint64(0x9E3779B97F4A7C15)


def repeated_characters(words: Words, top: Sequence[int], duplicate: Sequence[int]) -> dict[str, NDArray[np.int64]]:
    """Returns the repeated characters of every size of n-gram, all documents of a batch at once.

    Args:
        words: the words of the documents.
        top: sizes of which the most frequent n-gram counts, as `top_<n>gram`.
        duplicate: sizes of which repeated n-grams count, as `duplicate_<n>gram`; larger than all of `top`.

    An n-gram repeats only where both (n-1)-grams in it do, so each size examines few positions of the previous
    one. An n-gram is identified by the number of its (n-1)-gram and the following word.
    """
    found = {f"top_{n}gram": _first_ngram(words, n) for n in top}
    found |= {f"duplicate_{n}gram": np.zeros(len(words.counts), np.int64) for n in duplicate}
    for first, last in _portions(words.documents):
        for size, repeats in _repeats(words, first, last, max(*top, *duplicate)):
            if size in top:
                _most_frequent(found[f"top_{size}gram"], words, repeats, (first, last), size)
            elif size in duplicate:
                _stepped_over(found[f"duplicate_{size}gram"], words, repeats, size)
            del repeats  # while those of the next size are made
    return found


class _Repeats:
    """The positions of n-grams that occur more than once in their document, in text order.

    Attributes:
        places: where they begin.
        group: equal for equal n-grams of one document, from 0.
        counts: number of occurrences of each group.
    """

    def __init__(self, places: NDArray[np.int32], keys: NDArray[np.int64]) -> None:
        if len(keys) <= _KEYS_AT_ONCE:
            group = _numbered(keys)
            self.counts: NDArray[Any] = np.bincount(group)
            several = self.counts[group] > 1
        else:
            group, self.counts = _by_shares(keys)
            several = group >= 0
        self.places, self.group = places[several], group[several]


def _numbered(keys: NDArray[np.int64]) -> NDArray[np.int32]:
    """Numbers equal keys alike."""
    # By a hash table; sorting takes longer.
    group: NDArray[np.int32] = pa.array(keys).dictionary_encode().indices.to_numpy()
    return group


def _by_shares(keys: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Numbers equal keys alike, share by share; -1 for a key that occurs once; and the count of each number."""
    group = np.empty(len(keys), np.int32)
    shares = _shares(keys)
    several: list[NDArray[np.int32]] = []
    had = 0
    for share in range(int(shares.max()) + 1):
        inside = shares == share
        some = _numbered(keys[inside])
        counts = _counts(some)
        repeat = counts > 1
        number = np.where(repeat, np.cumsum(repeat, dtype=np.int32) + np.int32(had - 1), np.int32(-1))
        group[inside] = looked_up(number, some)
        several.append(counts[repeat])
        had += len(several[-1])
    return group, np.concatenate(several)


def _counts(group: NDArray[np.int32]) -> NDArray[np.int32]:
    """Returns the count of each number."""
    found = np.zeros(group.max(initial=-1) + 1, np.int32)
    for part in portions(len(group)):
        found += np.bincount(group[part], minlength=len(found)).astype(np.int32)
    return found


def _shares(keys: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Assigns keys to shares of about _KEYS_AT_ONCE; equal keys to the same share."""
    count = np.uint64(min(256, -(-len(keys) // _KEYS_AT_ONCE)))
    found = np.empty(len(keys), np.uint8)
    for part in portions(len(keys)):
        # The upper half of the product is mixed best.
        found[part] = ((keys[part].view(np.uint64) * _MIXER) >> np.uint64(32)) % count
    return found


def _portions(documents: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yields the first and the end of some documents at a time."""
    first = 0
    while documents[first] < documents[-1]:
        last = min(int(np.searchsorted(documents, documents[first] + _WORDS_AT_ONCE)), len(documents) - 1)
        yield first, last
        first = last


def _repeats(words: Words, first: int, last: int, largest: int) -> Iterator[tuple[int, _Repeats]]:
    """Yields the n-grams that repeat in some documents, size by size from 2 on, while there are any."""
    begin, end = int(words.documents[first]), int(words.documents[last])
    at = np.arange(begin, end, dtype=np.int32)
    owner = _owner(words.counts[first:last])
    found = _Repeats(at, _keys(owner, words.ids, at))
    for size in range(2, largest + 1):
        follows = np.diff(found.places) == 1
        if size == 2 and last - first > 1:
            follows &= np.diff(owner[found.places - begin]) == 0
        at, groups = found.places[:-1][follows], found.group[:-1][follows]
        del found, follows
        found = _Repeats(at, _keys(groups, words.ids[size - 1 :], at))
        del at, groups
        if not len(found.places):
            return
        yield size, found


def _owner(counts: NDArray[np.int64]) -> NDArray[np.int32]:
    """Returns the number of the document that each word belongs to."""
    if len(counts) > 1:
        return np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    return np.broadcast_to(np.int32(0), int(counts[0]))  # one number for any length


def _keys(groups: NDArray[np.int32], ids: NDArray[np.int32], at: NDArray[np.int32]) -> NDArray[np.int64]:
    """Returns a number for each pair of a group and the word at a place that no other pair has."""
    found = np.empty(len(at), np.int64)
    for part in portions(len(at)):
        found[part] = (groups[part].astype(np.int64) << 32) | ids[at[part]]
    return found


def _first_ngram(words: Words, size: int) -> NDArray[np.int64]:
    """Returns the length of each document's first n-gram with its spaces: the most frequent one where none repeats."""
    starts = words.documents[:-1]
    ends = np.minimum(starts + size, len(words.ids))
    return np.where(words.counts >= size, _chars(words, starts, ends) + size - 1, 0)


def _chars(words: Words, starts: NDArray[Any], ends: NDArray[Any]) -> NDArray[np.int64]:
    """Returns the code points of the words between places."""
    chars: NDArray[np.int64] = words.ends[ends].astype(np.int64) - words.ends[starts]
    return chars


def _most_frequent(
    found: NDArray[np.int64], words: Words, repeats: _Repeats, documents: tuple[int, int], size: int
) -> None:
    """Sets the characters of the most frequent n-gram of each document; of equally frequent ones the first counts."""
    count = looked_up(repeats.counts, repeats.group)
    first, last = documents
    bounds = insertions(repeats.places, words.documents[first : last + 1])
    starts, sizes = bounds[:-1], np.diff(bounds)
    owner = np.flatnonzero(sizes)
    starts, sizes = starts[owner], sizes[owner]
    most = np.maximum.reduceat(count, starts)
    best = places(count == np.repeat(most, sizes))
    best = best[np.searchsorted(best, starts)]
    start = repeats.places[best]
    found[first + owner] = count[best] * (_chars(words, start, start + size) + size - 1)


def _stepped_over(found: NDArray[np.int64], words: Words, repeats: _Repeats, size: int) -> None:
    """Adds the characters of repeated n-grams; after one of them the next n-gram begins behind it."""
    seen = bytearray(len(repeats.counts))
    at = 0
    for part in portions(len(repeats.places), _STEPS_AT_ONCE):
        groups = repeats.group[part].tolist()
        near = repeats.places[part.start : part.stop + size]
        behind = np.searchsorted(near, repeats.places[part] + np.int32(size)).tolist()
        taken = []
        at, end = at - part.start, len(groups)
        while at < end:
            group = groups[at]
            if seen[group]:
                taken.append(at)
                at = behind[at]
            else:
                seen[group] = 1
                at += 1
        at += part.start
        start = near[taken]
        owner = np.searchsorted(words.documents, start, side="right") - 1
        np.add.at(found, owner, _chars(words, start, start + size))
