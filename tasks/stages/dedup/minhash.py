"""MinHash signatures and band keys (Broder 1997; banding as in Mining of Massive Datasets, chapter 3).

Pure functions over arrays. The permutations equal those of datasketch 2 ("affine32": murmur3 finaliser, then
h -> a*h + b mod 2^32 with odd a). They are vectorised over texts: one multiply-add over a block of shingles per
permutation, then one minimum per text. From given shingles one core processes about 150 MB of text per second
(`benchmarks/minhash.py`); splitting into words is the bottleneck of the stage.
"""

import numpy as np
from numpy.typing import NDArray

# Shingles per block. 64 k values of 4 bytes fit into the cache of one core; smaller blocks cost more calls.
_BLOCK = 65_536


class MinHasher:
    """Computes signatures with one family of permutations.

    Args:
        permutations: values per signature.
        seed: of the family; equal seeds give equal signatures on every machine.
    """

    def __init__(self, permutations: int, seed: int) -> None:
        draw = np.random.RandomState(seed)  # its stream is frozen by NumPy's compatibility policy
        self._a = draw.randint(0, 1 << 31, permutations, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
        self._b = draw.randint(0, 1 << 32, permutations, dtype=np.uint32)

    def signatures(self, shingles: NDArray[np.uint64], counts: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Returns the signatures of many texts.

        Args:
            shingles: the hashes of all texts, concatenated (repeats allowed), uniform over 64 bits.
            counts: shape (texts,), number of shingles of each text.

        Returns:
            uint32 array of shape (texts, permutations); the maximum throughout for a text without shingles.
        """
        signatures = np.full((len(counts), len(self._a)), np.iinfo(np.uint32).max, dtype=np.uint32)
        starts = np.cumsum(counts) - counts
        for rows in _blocks(counts):
            begin = starts[rows[0]]
            hashes = _finalise(shingles[begin : starts[rows[-1]] + counts[rows[-1]]])
            self._minima(hashes, starts[rows] - begin, rows, signatures)
        return signatures

    def _minima(
        self,
        hashes: NDArray[np.uint32],
        starts: NDArray[np.int64],
        rows: NDArray[np.int64],
        signatures: NDArray[np.uint32],
    ) -> None:
        permuted = np.empty_like(hashes)
        for index, (a, b) in enumerate(zip(self._a, self._b, strict=True)):
            np.multiply(hashes, a, out=permuted)
            np.add(permuted, b, out=permuted)
            signatures[rows, index] = np.minimum.reduceat(permuted, starts)


def band_keys(signatures: NDArray[np.uint32], bands: int, rows: int) -> NDArray[np.uint64]:
    """Folds each band of a signature into one 64-bit key.

    Two different bands collide with probability 2^-64; a collision costs one verification and changes no verdict.

    Returns:
        uint64 array of shape (texts, bands).
    """
    split = signatures[:, : bands * rows].reshape(len(signatures), bands, rows)
    keys = np.full((len(signatures), bands), rows, dtype=np.uint64)
    for row in range(rows):
        keys = (keys ^ split[:, :, row]) * np.uint64(0x9E3779B97F4A7C15)
        keys ^= keys >> np.uint64(29)
    return keys


def _blocks(counts: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Splits the texts with shingles into blocks of about `_BLOCK` shingles; a block may end with a longer text."""
    filled = np.flatnonzero(counts)
    if len(filled) == 0:
        return []
    before = np.cumsum(counts[filled]) - counts[filled]
    return np.split(filled, np.flatnonzero(np.diff(before // _BLOCK)) + 1)


def _finalise(shingles: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Applies murmur3's 32-bit finaliser to the high half of each hash, as datasketch does.

    An affine map preserves structure of its input; the finaliser removes it.
    """
    value = (shingles >> np.uint64(32)).astype(np.uint32)
    value ^= value >> np.uint32(16)
    value *= np.uint32(0x85EBCA6B)
    value ^= value >> np.uint32(13)
    value *= np.uint32(0xC2B2AE35)
    value ^= value >> np.uint32(16)
    return value
