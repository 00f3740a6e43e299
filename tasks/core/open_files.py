"""Open files of this process: their limit, files that are mapped and closed again, and the error of a full process.

A process may have a number of files open (RLIMIT_NOFILE), of which the soft limit is 1,024 on most systems. A map needs
no open file: it lasts until nothing refers to it. The kernel limits maps, too (vm.max_map_count, 65,530 by default), so
readers of many files keep at most `MOST_MAPS`.

`load_array` reads or maps `.npy` files in threads. NumPy parses their header as a Python literal. Before Python 3.12,
that can fail if two threads do it at once: a garbage collection during parsing may run Python code and switch threads,
and the parser raises "SystemError: AST constructor recursion depth mismatch" (CPython gh-106905). Data loaders read
plans and checksums in threads, so one header is parsed at a time.
"""

import errno
import math
import os
import resource
import threading
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.core.errors import InputError

MOST_MAPS = 12_288
"""Maps that one reader keeps."""
_MOST_OPEN = 1 << 20
"""Limit to set where the hard one is infinite: the kernel's default for any process (fs.nr_open)."""

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_HEADER_LOCK = threading.Lock()


def raise_limit() -> None:
    """Raises the soft limit of open files to the hard one; child processes inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_OPEN if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def map_file(path: str | os.PathLike[str]) -> pa.Buffer:
    """Returns the bytes of a file, mapped into memory; the file is not open afterwards.

    Raises:
        OSError: the file cannot be mapped.
    """
    with pa.memory_map(os.fspath(path)) as file:
        return file.read_buffer()


def exhausted(error: BaseException) -> InputError | None:
    """Returns the error to raise if a file could not be opened for lack of open files or maps; None for other errors.

    Such an error says nothing about the file.
    """
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.EMFILE, errno.ENFILE):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        return InputError(
            f"too many open files ({error}): this process may have {soft:,} open, and its hard limit is {hard:,}",
            "raise the hard limit of open files (ulimit -Hn, LimitNOFILE= of a service, nofile of a container)",
        )
    if number == errno.ENOMEM:
        return InputError(f"a file cannot be mapped ({error})", "raise vm.max_map_count of the machine, or its memory")
    return None


def load_array(source: str | Path | IO[bytes], *, mapped: bool = False) -> NDArray[Any]:
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


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, "np.dtype[Any]"]:
    """Reads the header of an `.npy` file; returns shape, whether the order is by column, and dtype.

    Raises:
        ValueError: the file does not begin with such a header.
    """
    with _HEADER_LOCK:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"it has the unknown version {version}")
        return _HEADERS[version](file)


def _view(data: pa.Buffer) -> NDArray[Any]:
    """Returns the array in the bytes of a file, read-only. np.memmap would keep the file open."""
    file = cast(IO[bytes], pa.BufferReader(data))
    shape, by_column, dtype = read_header(file)
    if dtype.hasobject:
        raise ValueError("it contains Python objects")
    items: NDArray[Any] = np.frombuffer(data, np.uint8)[file.tell() :][: math.prod(shape) * dtype.itemsize].view(dtype)
    return items.reshape(shape, order="F" if by_column else "C")
