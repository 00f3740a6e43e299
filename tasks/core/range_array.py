"""A NumPy file of a `RangeReader` as an array, of which only the blocks that hold what is indexed are read."""

from functools import lru_cache
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from tasks.core.ranges import Piece, RangeFile, RangeReader

_RUN, _RUNS = 256, 1024
"""Items that are read together for one of them, and how many such runs stay in memory: binary searches end in one run,
and begin at the same items."""


class RangeArray:
    """One `.npy` file, shape (n,). For use by several threads.

    Args:
        reader: the reader.
        number: number of the file in it.

    Raises:
        InputError: (here and when reading) see `RangeReader`.
        ValueError: the file is no NumPy file of one dimension.
    """

    def __init__(self, reader: RangeReader, number: int) -> None:
        file = cast(BinaryIO, RangeFile(reader, number))
        np.lib.format.read_magic(file)
        shape, _, self.dtype = np.lib.format.read_array_header_1_0(file)
        if len(shape) != 1:
            raise ValueError(f"it has the shape {shape}")
        self.ndim = 1
        self._reader, self._number, self._length, self._first = reader, number, int(shape[0]), file.tell()
        self._run = lru_cache(_RUNS)(self._read)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        """Returns one item, or those of a slice without a step as an array."""
        if not isinstance(index, slice):
            place = range(self._length)[int(index)]
            first = place - place % _RUN
            return self._run(first, min(_RUN, self._length - first))[place - first]
        first, end, _ = index.indices(self._length)
        return self._read(first, max(0, end - first))

    def _read(self, first: int, count: int) -> NDArray[Any]:
        out = bytearray(count * self.dtype.itemsize)
        self._reader.read([Piece(self._number, self._first + first * self.dtype.itemsize, memoryview(out))])
        return np.frombuffer(out, self.dtype)
