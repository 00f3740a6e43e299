"""Open files of this process: their limit, files that are mapped and closed again, and the error of a full process.

A process may have a number of files open (RLIMIT_NOFILE), of which the soft limit is 1,024 on most systems. A map needs
no open file: it lasts until nothing refers to it. The kernel limits maps, too (vm.max_map_count, 65,530 by default), so
readers of many files keep at most `MOST_MAPS`.
"""

import errno
import os
import resource

import pyarrow as pa

from tasks.core.errors import InputError

MOST_MAPS = 12_288
"""Maps that one reader keeps."""
_MOST_OPEN = 1 << 20
"""Limit to set where the hard one is infinite: the kernel's default for any process (fs.nr_open)."""


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
