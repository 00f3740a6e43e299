"""A keyed permutation of 0 .. n-1 in constant memory, and its inverse.

A Feistel network over the smallest power of two that is not below n; positions outside the range are permuted again
until they are inside (cycle walking; Black & Rogaway 2002, "Ciphers with Arbitrary Finite Domains"). The domain is
less than 2 n, so a walk takes less than 2 applications on average.
"""

import hashlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tasks.formats.documents.text import mix

_ROUNDS = 8
_U64 = np.uint64


class Permutation:
    """A permutation of 0 .. n-1 that depends on `key` alone.

    Args:
        n: size of the range, 1 .. 2**62.
        key: any text; equal keys give equal permutations in every process and on every machine.
    """

    def __init__(self, n: int, key: str) -> None:
        if not 1 <= n <= 2**62:
            raise ValueError(f"a permutation needs 1 .. 2**62 items, not {n}")
        self.n = n
        bits = max(2, (n - 1).bit_length())
        # Halves of different width (odd number of bits) swap their widths in every round; an even number of rounds
        # restores them.
        self._left, self._right = _U64(bits // 2), _U64(bits - bits // 2)
        digest = hashlib.blake2b(key.encode(), digest_size=8 * _ROUNDS).digest()
        self._keys = np.frombuffer(digest, dtype="<u8").astype(_U64)

    def apply(self, positions: NDArray[np.integer]) -> NDArray[np.int64]:
        """Maps positions (any shape (k,), values 0 .. n-1) to items, int64 of the same shape."""
        return self._walk(positions, self._encrypt)

    def invert(self, items: NDArray[np.integer]) -> NDArray[np.int64]:
        """Maps items (shape (k,), values 0 .. n-1) to the positions at which `apply` yields them."""
        return self._walk(items, self._decrypt)

    def _walk(
        self, values: NDArray[np.integer], step: Callable[[NDArray[np.uint64]], NDArray[np.uint64]]
    ) -> NDArray[np.int64]:
        result = step(np.asarray(values).astype(_U64))
        outside = np.flatnonzero(result >= self.n)
        while outside.size:
            result[outside] = step(result[outside])
            outside = outside[result[outside] >= self.n]
        return result.astype(np.int64)

    def _encrypt(self, x: NDArray[np.uint64]) -> NDArray[np.uint64]:
        low_bits, high_bits = self._right, self._left
        high, low = x >> low_bits, x & _mask(low_bits)
        for key in self._keys:
            high, low = low, high ^ (mix(low ^ key) >> (_U64(64) - high_bits))
            high_bits, low_bits = low_bits, high_bits
        return (high << low_bits) | low

    def _decrypt(self, x: NDArray[np.uint64]) -> NDArray[np.uint64]:
        low_bits, high_bits = self._right, self._left
        high, low = x >> low_bits, x & _mask(low_bits)
        for key in self._keys[::-1]:
            high_bits, low_bits = low_bits, high_bits
            high, low = low ^ (mix(high ^ key) >> (_U64(64) - high_bits)), high
        return (high << low_bits) | low


def _mask(bits: np.uint64) -> np.uint64:
    return (_U64(1) << bits) - _U64(1)
