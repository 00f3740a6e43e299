"""Reading of `.npy` files, one header at a time.

NumPy parses the header as a Python literal, and before Python 3.12 that fails where two threads do it at once: a
garbage collection in the middle that runs Python code lets the other thread in, and the parser ends with "SystemError:
AST constructor recursion depth mismatch" (gh-106905 of CPython). Loaders read plans and checksums in threads.
"""

import threading
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

_ONE_AT_A_TIME = threading.Lock()


def load(source: str | Path | IO[bytes], *, mapped: bool = False) -> NDArray[Any]:
    """Returns the array in a file; `mapped`: of a path, as pages of the file that are read when they are looked at.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not an array, or one of Python objects, which are never read.
        EOFError: it is empty.
    """
    with _ONE_AT_A_TIME:
        array: NDArray[Any] = np.load(source, mmap_mode="r" if mapped else None, allow_pickle=False)
    return array.view(np.ndarray)
