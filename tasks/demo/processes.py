"""Search and termination of the processes of a stack, including those whose parent has died.

Every process of a stack has the mark of `tasks.demo.home` in its environment and passes it to its children, so that
orphaned workers of a scheduler, torchrun ranks and Dask nannies are found anywhere in the process tree. Reads the
process table; one pass over 300 processes takes about 10 ms.
"""

import contextlib
import os
import socket
from collections.abc import Iterable
from pathlib import Path

import psutil

from tasks.core.errors import InputError
from tasks.demo.home import MARK, Home

SERVICE = "SLUICE_SERVICE"
"""Environment variable with the name of the service of a process."""


def marked(root: Path, service: str = "") -> list[psutil.Process]:
    """Returns the living processes of the stack at `root`, or of one of its services; never this process itself."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            environment = process.environ()
            if environment.get(MARK) == str(root) and service in ("", environment.get(SERVICE)):
                found.append(process)
    return found


def end(processes: Iterable[psutil.Process]) -> None:
    """Kills processes and waits for their end; a killed stage later resumes from its last committed part."""
    listed = list(processes)
    for process in listed:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(listed, timeout=5)


def check_ports(home: Home) -> None:
    """Raises InputError with one line for the first port of the stack that something else listens on."""
    for port, (what, variable) in home.ports.taken_by().items():
        with socket.socket() as trial:
            # Without this a port in TIME_WAIT, right after `down`, would count as taken.
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                holder = _holder(port)
                cause = f"port {port} for {what} is taken{f' by {holder}' if holder else ''}"
                raise InputError(cause, f"stop that, or set {variable} to a free port") from None


def _holder(port: int) -> str:
    """Returns "name (process 123)" of the listener, or "" where the system does not report it."""
    with contextlib.suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (process {connection.pid})"
    return ""
