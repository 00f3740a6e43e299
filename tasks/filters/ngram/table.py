"""A read-only hash table of n-grams in one memory-mapped array, with batched look-up.

Open addressing with linear probing. Entries are placed in the order of their hash, so the same entries give the same
bytes, and a search ends at the first larger hash. The hash is a bijection of the key, so there are no
collisions: equal hash means equal key. At 16 bytes per slot and 5 slots for 3 entries a model takes 27 bytes per
n-gram, about as KenLM's own hash tables (Heafield 2011, "KenLM: Faster and Smaller Language Model Queries").
"""

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]

ENTRY = np.dtype([("hash", "<u8"), ("prob", "<f4"), ("back", "<f4")])
"""A slot: hash of the key, log10 of the probability, log10 of the back-off weight."""

_FREE = np.uint64(0xFFFFFFFFFFFFFFFF)
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)


class Twice(Exception):
    """A key was given more than once; `index` is where, the second time."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class Table:
    """Some keys with their values.

    Args:
        slots: array of ENTRY, as `build` makes it.
        entries: how many of them are taken.
    """

    def __init__(self, slots: NDArray[np.void], entries: int) -> None:
        self.slots = slots
        self.entries = entries

    @classmethod
    def build(cls, keys: Keys, prob: NDArray[np.float32], back: NDArray[np.float32]) -> "Table":
        """Makes the table of some keys; raises Twice."""
        hashes = _mixed(keys)
        order = np.argsort(hashes, kind="stable")
        hashes = hashes[order]
        if (same := np.flatnonzero(hashes[1:] == hashes[:-1])).size:
            raise Twice(int(order[same[0] + 1]))
        count = np.arange(len(keys))
        # An entry is at its home slot, or right after the previous entry where that is taken.
        places = np.maximum.accumulate(_home(hashes, len(keys)) - count) + count
        # Beyond the last home slot: displaced entries, and a free slot that ends every search.
        slots = np.zeros(max(_homes(len(keys)), int(places.max(initial=0)) + 1) + 1, ENTRY)
        slots["hash"] = _FREE
        slots["hash"][places] = hashes
        slots["prob"][places] = prob[order]
        slots["back"][places] = back[order]
        return cls(slots, len(keys))

    def find(self, keys: Keys) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.void]]:
        """Looks keys up; returns the slot of each, whether it contains the key, and its entry."""
        hashes = _mixed(keys)
        slots = _home(hashes, self.entries)
        found = np.take(self.slots, slots)
        left = np.flatnonzero(found["hash"] < hashes)
        while left.size:
            slots[left] += 1
            now = np.take(self.slots, slots[left])
            found[left] = now
            left = left[now["hash"] < hashes[left]]
        return slots, found["hash"] == hashes, found


def _homes(entries: int) -> int:
    return max(1, entries * 5 // 3)


def _mixed(keys: Keys) -> Keys:
    # Both steps can be undone, so different keys have different hashes; the second moves all bits into the upper half.
    mixed: Keys = (keys ^ (keys >> _HALF)) * _FACTOR
    return mixed


def _home(hashes: Keys, entries: int) -> NDArray[np.int64]:
    """Spreads hashes over the homes without changing their order."""
    return (((hashes >> _HALF) * np.uint64(_homes(entries))) >> _HALF).astype(np.int64)
