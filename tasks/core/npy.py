"""Thread-safe reading of `.npy` files.

NumPy parses the header of a file as a Python literal. Before Python 3.12, that can fail if two threads do it at once: a
garbage collection during parsing may run Python code and switch threads, and the parser raises "SystemError: AST
constructor recursion depth mismatch" (CPython gh-106905). Data loaders read plans and checksums in threads, so `load`
parses one header at a time.
"""

import threading
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

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
    with _HEADER_LOCK:
        array: NDArray[Any] = np.load(source, mmap_mode="r" if mapped else None, allow_pickle=False)
    return array.view(np.ndarray)
