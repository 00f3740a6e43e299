"""Bloom filter of the URLs that a partition knows, checked for every link during a fetch.

Reads and writes `known.bloom` beside the crawl DB. A pre-filter only: one link in 10,000 is wrongly reported as known
and is not fetched in the cycle that finds it; the exact join of update adds it anyway, and the next cycle fetches it. A
filter has 19 bits per key and processes some 3 million keys per CPU-second.
"""

import operator

import numpy as np
from rbloom import Bloom

_ERROR = 1e-4
_SMALLEST = 100_000
_LENGTH = 8


class Known:
    """A set of keys with false positives and without false negatives.

    Args:
        capacity: number of keys at an error rate of 0.01 %.
    """

    def __init__(self, capacity: int = _SMALLEST) -> None:
        self.capacity = max(capacity, _SMALLEST)
        # Keys are hashes already: their bits are the hash. (Python's own hash() differs from process to process.)
        self._bloom = Bloom(self.capacity, _ERROR, operator.index)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, bytes) and int.from_bytes(key[:8], signed=True) in self._bloom

    def add(self, keys: bytes) -> None:
        """Adds keys, 16 bytes each, one behind the other."""
        # Half of a key is enough for an error rate of one in 10,000.
        self._bloom.update(np.frombuffer(keys, ">i8")[::2].tolist())

    def to_bytes(self) -> bytes:
        """Returns what `from_bytes` reads."""
        return self.capacity.to_bytes(_LENGTH) + self._bloom.save_bytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Known":
        """Reads a filter."""
        made = cls.__new__(cls)
        made.capacity = int.from_bytes(data[:_LENGTH])
        made._bloom = Bloom.load_bytes(data[_LENGTH:], operator.index)
        return made
