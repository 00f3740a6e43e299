"""Repeated word n-grams of many documents."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.filters.counting.columns import insertion_points, portions, take, true_indices
from tasks.filters.counting.words import Words

# Words processed together: the tables of their n-grams fit into the processor's L2 cache.
_WORDS_AT_ONCE = 32_000
# N-grams numbered by one hash table, which takes up to a hundred bytes for each.
_KEYS_AT_ONCE = 1_000_000
# N-grams of which positions are converted to lists at once: lists take ten times as much memory as arrays.
_STEPS_AT_ONCE = 65_536
_MIXER = np.uint64(0x9E3779B97F4A7C15)


def repeated_characters(words: Words, top: Sequence[int], duplicate: Sequence[int]) -> dict[str, NDArray[np.int64]]:
    """Returns the number of repeated characters of each document for every size of n-gram.

    An n-gram repeats only if both (n-1)-grams in it do, so each size examines only the repeated n-grams of the previous
    one. An n-gram is identified by the number of its (n-1)-gram and the following word.

    Args:
        words: the words of the documents.
        top: sizes for which the most frequent n-gram counts, as `top_<n>gram`.
        duplicate: sizes for which all repeated n-grams count, as `duplicate_<n>gram`; larger than all of `top`.

    Returns:
        arrays of shape (n_documents,), by `top_<n>gram` and `duplicate_<n>gram`.
    """
    characters = {f"top_{n}gram": _first_ngram(words, n) for n in top}
    characters |= {f"duplicate_{n}gram": np.zeros(len(words.counts), np.int64) for n in duplicate}
    for first, last in _portions(words.documents):
        for size, repeats in _repeats(words, first, last, max(*top, *duplicate)):
            if size in top:
                _set_most_frequent(characters[f"top_{size}gram"], words, repeats, (first, last), size)
            elif size in duplicate:
                _add_repeated(characters[f"duplicate_{size}gram"], words, repeats, size)
            del repeats  # frees them before those of the next size are computed
    return characters


class _Repeats:
    """The positions of n-grams that occur more than once in their document, in text order.

    Attributes:
        positions: index of the first word of each.
        group: number of the n-gram, from 0; equal for equal n-grams of one document.
        counts: number of occurrences of each group.
    """

    def __init__(self, positions: NDArray[np.int32], keys: NDArray[np.int64]) -> None:
        if len(keys) <= _KEYS_AT_ONCE:
            group = _group_ids(keys)
            self.counts: NDArray[Any] = np.bincount(group)
            repeated = self.counts[group] > 1
        else:
            group, self.counts = _by_shares(keys)
            repeated = group >= 0
        self.positions, self.group = positions[repeated], group[repeated]


def _group_ids(keys: NDArray[np.int64]) -> NDArray[np.int32]:
    """Returns a number for each key; equal keys have equal numbers."""
    # A hash table is faster than sorting.
    ids: NDArray[np.int32] = pa.array(keys).dictionary_encode().indices.to_numpy()
    return ids


def _by_shares(keys: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Returns a number for each repeated key, computed share by share, -1 for other keys; and the count per number."""
    ids = np.empty(len(keys), np.int32)
    shares = _shares(keys)
    counts_by_share: list[NDArray[np.int32]] = []
    n_groups = 0
    for share in range(int(shares.max()) + 1):
        inside = shares == share
        groups = _group_ids(keys[inside])
        counts = _counts(groups)
        repeat = counts > 1
        number = np.where(repeat, np.cumsum(repeat, dtype=np.int32) + np.int32(n_groups - 1), np.int32(-1))
        ids[inside] = take(number, groups)
        counts_by_share.append(counts[repeat])
        n_groups += len(counts_by_share[-1])
    return ids, np.concatenate(counts_by_share)


def _counts(group: NDArray[np.int32]) -> NDArray[np.int32]:
    """Returns the number of occurrences of each group number."""
    counts = np.zeros(group.max(initial=-1) + 1, np.int32)
    for part in portions(len(group)):
        counts += np.bincount(group[part], minlength=len(counts)).astype(np.int32)
    return counts


def _shares(keys: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Returns the share of each key; equal keys are in the same share, and a share has about _KEYS_AT_ONCE keys."""
    count = np.uint64(min(256, -(-len(keys) // _KEYS_AT_ONCE)))
    shares = np.empty(len(keys), np.uint8)
    for part in portions(len(keys)):
        # The upper bits of the product are mixed best.
        shares[part] = ((keys[part].view(np.uint64) * _MIXER) >> np.uint64(32)) % count
    return shares


def _portions(documents: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yields the first and end indices of groups of documents with about _WORDS_AT_ONCE words."""
    first = 0
    while documents[first] < documents[-1]:
        last = min(int(np.searchsorted(documents, documents[first] + _WORDS_AT_ONCE)), len(documents) - 1)
        yield first, last
        first = last


def _repeats(words: Words, first: int, last: int, largest: int) -> Iterator[tuple[int, _Repeats]]:
    """Yields the sizes of n-grams, from 2 up, and the repeated n-grams of that size, until none repeats."""
    begin, end = int(words.documents[first]), int(words.documents[last])
    positions = np.arange(begin, end, dtype=np.int32)
    owner = _owner(words.counts[first:last])
    repeats = _Repeats(positions, _keys(owner, words.ids, positions))
    for size in range(2, largest + 1):
        follows = np.diff(repeats.positions) == 1
        if size == 2 and last - first > 1:
            follows &= np.diff(owner[repeats.positions - begin]) == 0
        positions, groups = repeats.positions[:-1][follows], repeats.group[:-1][follows]
        del repeats, follows
        repeats = _Repeats(positions, _keys(groups, words.ids[size - 1 :], positions))
        del positions, groups
        if not len(repeats.positions):
            return
        yield size, repeats


def _owner(counts: NDArray[np.int64]) -> NDArray[np.int32]:
    """Returns the number of the document that each word belongs to."""
    if len(counts) > 1:
        return np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    return np.broadcast_to(np.int32(0), int(counts[0]))  # a view of one element


def _keys(groups: NDArray[np.int32], ids: NDArray[np.int32], at: NDArray[np.int32]) -> NDArray[np.int64]:
    """Returns a unique number for each pair of a group and the word at a position."""
    keys = np.empty(len(at), np.int64)
    for part in portions(len(at)):
        keys[part] = (groups[part].astype(np.int64) << 32) | ids[at[part]]
    return keys


def _first_ngram(words: Words, size: int) -> NDArray[np.int64]:
    """Returns the length of each document's first n-gram with its spaces: the most frequent one if none repeats."""
    starts = words.documents[:-1]
    ends = np.minimum(starts + size, len(words.ids))
    return np.where(words.counts >= size, _chars(words, starts, ends) + size - 1, 0)


def _chars(words: Words, starts: NDArray[Any], ends: NDArray[Any]) -> NDArray[np.int64]:
    """Returns the number of code points of the words from `starts` up to `ends`."""
    chars: NDArray[np.int64] = words.ends[ends].astype(np.int64) - words.ends[starts]
    return chars


def _set_most_frequent(
    characters: NDArray[np.int64], words: Words, repeats: _Repeats, documents: tuple[int, int], size: int
) -> None:
    """Sets the characters of the most frequent n-gram of each document; of several, the first one counts."""
    count = take(repeats.counts, repeats.group)
    first, last = documents
    bounds = insertion_points(repeats.positions, words.documents[first : last + 1])
    starts, sizes = bounds[:-1], np.diff(bounds)
    owner = np.flatnonzero(sizes)
    starts, sizes = starts[owner], sizes[owner]
    most = np.maximum.reduceat(count, starts)
    best = true_indices(count == np.repeat(most, sizes))
    best = best[np.searchsorted(best, starts)]
    start = repeats.positions[best]
    characters[first + owner] = count[best] * (_chars(words, start, start + size) + size - 1)


def _add_repeated(characters: NDArray[np.int64], words: Words, repeats: _Repeats, size: int) -> None:
    """Adds the characters of repeated n-grams; overlapping repetitions count once."""
    occurred = bytearray(len(repeats.counts))
    index = 0
    for part in portions(len(repeats.positions), _STEPS_AT_ONCE):
        groups = repeats.group[part].tolist()
        positions = repeats.positions[part.start : part.stop + size]
        next_index = np.searchsorted(positions, repeats.positions[part] + np.int32(size)).tolist()
        repeated = []
        index, end = index - part.start, len(groups)
        while index < end:
            group = groups[index]
            if occurred[group]:
                repeated.append(index)
                index = next_index[index]
            else:
                occurred[group] = 1
                index += 1
        index += part.start
        start = positions[repeated]
        owner = np.searchsorted(words.documents, start, side="right") - 1
        np.add.at(characters, owner, _chars(words, start, start + size))
