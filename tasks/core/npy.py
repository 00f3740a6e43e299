"""Thread-safe reading of `.npy` files.

NumPy parses the header of a file as a Python literal. Before Python 3.12, that can fail if two threads do it at once: a
garbage collection during parsing may run Python code and switch threads, and the parser raises "SystemError: AST
constructor recursion depth mismatch" (CPython gh-106905). Data loaders read plans and checksums in threads, so `load`
parses one header at a time.
"""

import math
import threading
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.core.open_files import map_file

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_HEADER_LOCK = threading.Lock()


def load(source: str | Path | IO[bytes], *, mapped: bool = False) -> NDArray[Any]:
    """Returns the array in a file.

    Args:
        source: path of the file, or the open file.
        mapped: memory-map the file instead of reading it; `source` must be a path.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file does not contain an array, or contains an array of Python objects.
        EOFError: the file is empty.
    """
    if mapped:
        assert isinstance(source, str | Path)
        return _view(map_file(source))
    with _HEADER_LOCK:
        array: NDArray[Any] = np.load(source, allow_pickle=False)
    return array


def _view(data: pa.Buffer) -> NDArray[Any]:
    """Returns the array in the bytes of a file, read-only. np.memmap would keep the file open."""
    file = cast(IO[bytes], pa.BufferReader(data))
    with _HEADER_LOCK:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"it has the unknown version {version}")
        shape, by_column, dtype = _HEADERS[version](file)
    if dtype.hasobject:
        raise ValueError("it contains Python objects")
    items: NDArray[Any] = np.frombuffer(data, np.uint8)[file.tell() :][: math.prod(shape) * dtype.itemsize].view(dtype)
    return items.reshape(shape, order="F" if by_column else "C")
