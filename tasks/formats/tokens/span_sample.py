"""Sample of a suffix array, small enough to be held in memory: where a binary search in the whole begins and ends.

Writes and reads `spans/<group>-sample.npy`: the first 8 tokens of every 512th suffix as bytes, the highest byte of each
token first, shape (suffixes / 512,). A search in it saves half of the steps in the whole array, each of which reads
two pages that no other look-up needs.
"""

from collections.abc import Iterator, Sequence
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from tasks.core import npy
from tasks.core.errors import InputError

EVERY = 512
_TOKENS = 8


class Readable(Protocol):
    """A text of tokens."""

    def read(self, position: int, count: int) -> list[int]:
        """Returns `count` tokens from a position, fewer at the end of the text."""


def write_sample(file: BinaryIO, suffixes: NDArray[np.uint32], text: Readable, itemsize: int) -> None:
    """Writes the sample of a suffix array; tokens have `itemsize` bytes."""
    keys = (_key(text.read(int(position), _TOKENS), itemsize) for position in suffixes[::EVERY])
    np.lib.format.write_array(file, np.array(list(keys), dtype=f"S{_TOKENS * itemsize}"), allow_pickle=False)


def _key(tokens: Sequence[int], itemsize: int) -> bytes:
    return np.array(tokens, dtype=f">u{itemsize}").tobytes()


class Sample:
    """The sample of one suffix array, in memory.

    Args:
        path: local path of the file.
        suffixes: number of suffixes of the whole array.
        itemsize: bytes per token.

    Raises:
        InputError: the file is not readable, or is of another array.
    """

    def __init__(self, path: str, suffixes: int, itemsize: int) -> None:
        try:
            self._keys: NDArray[np.bytes_] = npy.load(path)
        except (OSError, ValueError, EOFError) as error:
            raise InputError(f"{path} is not readable ({error})", "run the stage spans again") from None
        if self._keys.dtype != f"S{_TOKENS * itemsize}" or len(self._keys) != -(-suffixes // EVERY):
            raise InputError(f"{path} is of another suffix array", "run the stage spans again")
        self._suffixes = suffixes
        self._itemsize = itemsize

    def between(self, tokens: Sequence[int]) -> tuple[int, int]:
        """Returns the range (first, end) of suffixes with the place of some tokens among them.

        It has the last suffix before that place and the first one behind it, and all that begin with the tokens.
        """
        # A key may end in zeros, which NumPy does not tell from padding: equal keys are left within the range.
        least, most = self._edges(tokens)
        before = int(np.searchsorted(self._keys, least, "left")) - 1
        behind = int(np.searchsorted(self._keys, most, "right"))
        return max(before, 0) * EVERY, min(behind * EVERY + 1, self._suffixes)

    def _edges(self, tokens: Sequence[int]) -> Iterator[bytes]:
        key = _key(tokens[:_TOKENS], self._itemsize)
        yield key
        yield key.ljust(_TOKENS * self._itemsize, b"\xff")
