"""The stack of the demo: the commands `up`, `down` and `status`, its status file, and its processes.

`up` starts the supervisor as a detached process and waits until every service is healthy; it returns immediately if
they are healthy already. `down` ends the supervisor and all processes with the stack's mark. Both are idempotent.

Reads and writes `<state>/run/status.json`, which is replaced atomically at every change. The supervisor holds a lock on
the file `lock` in the same folder while it runs, so that the status file of a killed supervisor is recognized as stale.

Every process of a stack has the mark of `tasks.demo.home` in its environment and passes it to its children, so that
orphaned workers of a scheduler, torchrun ranks and Dask nannies are found anywhere in the process tree; one scan of
300 processes takes about 10 ms.
"""

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Literal

import psutil
from pydantic import BaseModel

from tasks.core.errors import InputError, TransientError
from tasks.core.store import probe
from tasks.demo.home import CHECKOUT, MARK, Home

SERVICE = "SLUICE_SERVICE"
"""Environment variable with the name of a process's service."""

Process = subprocess.Popen[bytes]
State = Literal["waiting", "starting", "healthy", "restarting", "stopping"]

UP_S = 300.0
DOWN_S = 30.0


class ServiceStatus(BaseModel):
    """Last known status of a service."""

    state: State = "waiting"
    pid: int = 0
    restarts: int = 0


class Status(BaseModel):
    """Last known status of the stack; `error` is a one-line reason why it cannot start."""

    pid: int
    ready: bool = False
    error: str = ""
    services: dict[str, ServiceStatus] = {}

    def save(self, run: Path) -> None:
        """Replaces the status file."""
        temporary = run / "status.json.new"
        temporary.write_text(self.model_dump_json(indent=1))
        temporary.replace(run / "status.json")


def up(home: Home) -> None:
    """Starts the stack and waits until it is healthy.

    Raises:
        InputError: a port is taken, or Postgres rejects the user.
        StoreError: S3 rejects the requests.
        TransientError: a service does not become healthy within three minutes; the message names its log.
    """
    home.prepare()
    supervisor: Process | None = None
    if read_status(home.run) is None:
        if leftovers := stack_processes(home.root):
            print(f"killing {len(leftovers)} leftover processes of an earlier stack")
            kill_processes(leftovers)
        check_ports(home)
        _check_servers(home)
        supervisor = spawn(home, "supervisor", [sys.executable, "-m", "tasks.demo", "supervise"])
    _wait(home, supervisor)


def down(home: Home) -> None:
    """Stops the stack and kills its remaining processes."""
    status = read_status(home.run)
    if status is not None:
        os.kill(status.pid, signal.SIGTERM)
        deadline = time.monotonic() + DOWN_S
        while read_status(home.run) is not None and time.monotonic() < deadline:
            time.sleep(0.1)
    leftovers = stack_processes(home.root)
    if leftovers:
        kill_processes(leftovers)
    if status is None and not leftovers:
        print("nothing is running")
    else:
        print("stopped")


def show(home: Home) -> bool:
    """Prints the state of every service; returns whether all are healthy."""
    status = read_status(home.run)
    if status is None:
        print("nothing is running (start it: make up)")
        return False
    for name, service in status.services.items():
        memory = _memory_mb(service.pid)
        restarts = f", restarted {service.restarts} times" if service.restarts else ""
        print(f"{name:15} {service.state:11} process {service.pid or '-'}{memory}{restarts}")
    print(addresses(home))
    return status.ready


def addresses(home: Home) -> str:
    """Returns the URLs of both UIs and the login as text."""
    return (
        f"Airflow  {home.airflow_url}  user admin, password {home.password()}\n"
        f"MLflow   {home.mlflow_url}\n"
        + (f"Tables   {home.postgres}\n" if home.postgres else "")
        + (f"Store    {home.remote}\n" if home.remote else "")
        + f"Logs     {home.logs}"
    )


def _check_servers(home: Home) -> None:
    """Checks the external servers before the stack starts, so that errors are reported immediately."""
    if home.postgres:
        home.postgres.prepare()
    if home.remote:
        probe(home.remote)


def spawn(home: Home, name: str, command: Sequence[str], extra: Mapping[str, str] | None = None) -> Process:
    """Starts one process of the stack in a new session; its output is appended to `logs/<name>.log`.

    Raises:
        TransientError: the program is not installed.
    """
    environment = {**home.environment(), **(extra or {}), SERVICE: name}
    with (home.logs / f"{name}.log").open("ab") as output:
        try:
            return subprocess.Popen(
                command,
                cwd=CHECKOUT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # Background jobs of a shell ignore SIGINT, which children inherit; Airflow shuts down on SIGINT only.
                preexec_fn=_default_signals,
            )
        except OSError as error:
            raise TransientError(f"{command[0]} cannot be started ({error.strerror})", "run `make install`") from None


def _default_signals() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _wait(home: Home, supervisor: Process | None) -> None:
    began = time.monotonic()
    announced: set[str] = set()
    while time.monotonic() - began < UP_S:
        status = read_status(home.run)
        if status is not None:
            healthy = {name for name, service in status.services.items() if service.state == "healthy"}
            if supervisor is not None:
                for name in sorted(healthy - announced):
                    print(f"{time.monotonic() - began:5.1f} s  {name} is up")
            announced |= healthy
            if status.ready:
                return
        elif supervisor is not None and supervisor.poll() is not None:
            last = read_last(home.run)
            cause = last.error if last and last.error else "the supervisor ended early"
            raise TransientError(cause, f"see {home.logs / 'supervisor.log'}")
        time.sleep(0.2)
    raise _not_healthy(home, status, announced)


def _not_healthy(home: Home, status: Status | None, healthy: set[str]) -> TransientError:
    """Returns the error that names the missing services, with the last log line and the restarts of the first one."""
    missing = sorted(set(status.services) - healthy) if status else []
    name = missing[0] if missing else "supervisor"
    restarts = status.services[name].restarts if status and missing else 0
    cause = f"{', '.join(missing) or ('the API' if status else 'the supervisor')} not healthy after {UP_S:.0f} s"
    if restarts:
        cause += f"; {name} was restarted {restarts} times"
    if last := home.last_line(name):
        cause += f"; its last log line: {last[:300]}"
    return TransientError(cause, f"see {home.logs / f'{name}.log'}")


def _memory_mb(pid: int) -> str:
    try:
        tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)] if pid else []
        return f", {sum(process.memory_info().rss for process in tree) / 1e6:,.0f} MB" if tree else ""
    except psutil.Error:
        return ""


def stack_processes(root: Path, service: str = "") -> list[psutil.Process]:
    """Returns the live processes of the stack at `root`, or of one of its services, except this process."""
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            environment = process.environ()
            if environment.get(MARK) == str(root) and service in ("", environment.get(SERVICE)):
                processes.append(process)
    return processes


def kill_processes(processes: Iterable[psutil.Process]) -> None:
    """Kills processes and waits until they have exited; a killed stage later resumes from its last committed part."""
    victims = list(processes)
    for process in victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(victims, timeout=5)


def check_ports(home: Home) -> None:
    """Raises InputError for the first port of the stack that another process uses."""
    for port, (user, variable) in home.ports.users().items():
        with socket.socket() as trial:
            # Otherwise a port in TIME_WAIT, right after `down`, would count as taken.
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                holder = _holder(port)
                cause = f"port {port} for {user} is taken{f' by {holder}' if holder else ''}"
                raise InputError(cause, f"stop that, or set {variable} to a free port") from None


def _holder(port: int) -> str:
    """Returns "name (process 123)" of the listener, or "" if the system does not report it."""
    with contextlib.suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (process {connection.pid})"
    return ""


def read_status(run: Path) -> Status | None:
    """Returns the status of the running supervisor, or None."""
    return read_last(run) if _locked(run / "lock") else None


def read_last(run: Path) -> Status | None:
    """Returns the last status of a running or ended supervisor, or None."""
    try:
        return Status.model_validate_json((run / "status.json").read_text())
    except FileNotFoundError:
        return None


def take_lock(run: Path) -> IO[str] | None:
    """Locks the lock file until it is closed or this process ends; returns None if another supervisor has it."""
    file = (run / "lock").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    (run / "status.json").unlink(missing_ok=True)
    os.set_inheritable(file.fileno(), False)
    return file


def _locked(path: Path) -> bool:
    if not path.exists():
        return False
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
