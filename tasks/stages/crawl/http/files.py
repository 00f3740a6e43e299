"""How many sockets a fetch may have open: derived from the limit of open files, which is raised as far as it may be.

A socket is an open file. Those of visits, those that are kept for the next request to their host, and those of second
attempts to reach a host share one budget; the rest is for files of other kinds.
"""

import logging
import resource
from typing import NamedTuple

from tasks.core.errors import InputError

log = logging.getLogger("sluice.crawl")

KEPT = 4096
"""Connections without a request that are worth keeping."""

# Files of other kinds: the store's connections, WARC files and their buffer, name servers, pipes of child processes.
_OTHERS = 256
# Attempts to reach a second address of a host while the first is silent, of all visits at a time.
_BESIDE = 64
# With fewer the time goes into waiting for a socket.
_FEWEST = 64


class Files(NamedTuple):
    """The budget of a process.

    Attributes:
        visits: requests that may be under way at a time.
        sockets: connections that may be open at a time, with a request or kept for the next one.
        beside: sockets beyond, for second attempts to reach a host.
    """

    visits: int
    sockets: int
    beside: int


def files_for(visits: int) -> Files:
    """Returns the budget for so many requests at a time, or for fewer; raises the process's soft limit.

    Raises:
        InputError: the limit is too low for any crawl.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = visits + KEPT + _BESIDE + _OTHERS
    if soft == resource.RLIM_INFINITY:
        soft = wanted
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    sockets = min(soft - _OTHERS - _BESIDE, visits + KEPT)
    if sockets < _FEWEST:
        raise InputError(
            f"this process may have {soft} files open, and a fetch needs {_FEWEST + _BESIDE + _OTHERS}",
            "raise the hard limit of open files (ulimit -Hn, LimitNOFILE= of a service, nofile of a container)",
        )
    if sockets < visits:
        log.warning(
            "%d requests at a time instead of %d: this process may have %d files open (raise its hard limit)",
            *(sockets, visits, soft),
        )
    return Files(min(visits, sockets), sockets, _BESIDE)
