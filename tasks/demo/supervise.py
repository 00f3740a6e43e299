"""The supervisor: starts the services, restarts those that exit, and kills all processes of the stack when it exits.

Runs as a detached process and writes `<state>/logs/supervisor.log`. A service that exits is restarted after 1 s, then
2, 4, ... up to 30 s; after a minute of running, the delay starts again at 1 s. Its remaining processes are killed
before the restart: Airflow's workers survive a killed scheduler, and their tasks would run twice. The scheduler
starts when the API server is healthy, because its tasks need it.

The services are MLflow and Airflow's four components, which use SQLite in the state folder or Postgres; a Dask
scheduler and two workers, each with a nanny; and the site. All listen on 127.0.0.1 only.
"""

import contextlib
import json
import logging
import os
import re
import signal
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.client import HTTPException
from importlib.metadata import version
from pathlib import Path
from types import FrameType

from tasks.core.errors import SluiceError, TransientError
from tasks.demo import drive
from tasks.demo.home import CHECKOUT, Home
from tasks.demo.stack import Process, ServiceStatus, Status, kill_processes, spawn, stack_processes, take_lock

log = logging.getLogger("sluice.demo")

DASK_WORKERS = 2

IMPORTS = "SLUICE_IMPORTS"
"""Variable of a service of Airflow: modules that the plugin imports when it starts, and its forked children inherit."""

TASK_IMPORTS = (
    *("duckdb", "matplotlib.figure", "mlflow", "pydivsufsort", "scipy.stats", "tokenizers", "torch"),
    *("pyarrow.compute", "pyarrow.dataset", "pyarrow.parquet"),
)
"""Packages that tasks use. Importing them in the scheduler, whose workers fork each task, saves up to 6 of the 7
CPU-seconds that a task spends on imports. Code of Sluice is not among them: a task runs the code that is on disk, whose
commit is in its record."""

_OPERATORS = re.compile(r"^from (operators\.\w+) import", re.M)

_PROBE_S = 2.0

TICK_S = 0.25
STARTING_S = 0.75
"""Seconds between two health checks of a service that is not healthy yet; RECHECK_S for a healthy one."""
RECHECK_S = 5.0
GRACE_S = 8.0
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 30.0


@dataclass(frozen=True)
class Service:
    """One supervised process.

    Args:
        name: name in the status and of the log file.
        command: program and arguments.
        healthy: health check; may raise OSError, HTTPException or ValueError for "not healthy".
        stop: signal for a graceful shutdown.
        needs_database: whether it starts only after the migration of Airflow's database.
        after: name of the service that must be healthy when it starts or restarts; "": none.
        environment: variables in addition to the stack's.
    """

    name: str
    command: tuple[str, ...]
    healthy: Callable[[], bool]
    stop: signal.Signals = signal.SIGTERM
    needs_database: bool = False
    after: str = ""
    environment: dict[str, str] = field(default_factory=dict)


def services(home: Home) -> list[Service]:
    """Returns all services, in the order of the status display."""
    return [_site(home), _mlflow(home), *_dask(home), *_airflow(home)]


def _site(home: Home) -> Service:
    port = home.ports.site
    command = (sys.executable, "-m", "tasks.demo", "site", "--port", str(port), "--cache", str(home.root / "site"))
    return Service("site", command, lambda: bool(_get(f"http://127.0.0.1:{port}/robots.txt")))


def _mlflow(home: Home) -> Service:
    port = home.ports.mlflow
    command = (
        *("mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
        *("--artifacts-destination", home.mlflow_files),
        *("--app-name", "sluice"),  # see tasks.run.tracking.view
        *("--allowed-hosts", "localhost,localhost:*,127.0.0.1,127.0.0.1:*"),
        # Airflow shows MLflow in a frame; both are on loopback only.
        *("--x-frame-options", "NONE"),
    )
    # The job runner is for GenAI scorers and would use 240 MB of memory.
    # The URL of the database is passed in the environment: it may contain a password, and command lines are public.
    environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_BACKEND_STORE_URI": home.mlflow_database}
    return Service("mlflow", command, lambda: bool(_get(f"{home.mlflow_url}/health")), environment=environment)


def _dask(home: Home) -> list[Service]:
    scheduler, status = f"tcp://127.0.0.1:{home.ports.dask}", home.ports.dask + 1
    counts = f"http://127.0.0.1:{status}/json/counts.json"
    listen = ("--host", "127.0.0.1", "--port", str(home.ports.dask), "--dashboard-address", f"127.0.0.1:{status}")
    # Without this address a worker's status page would listen on all interfaces, even with `--no-dashboard`.
    loopback = ("--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0")
    workers = ("--nworkers", str(DASK_WORKERS), "--nthreads", "1", *loopback)
    # One thread in each numerical library: two workers already fill two cores.
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_TRIM_THRESHOLD_": "65536"}
    # With the defaults each process looks at its event loop, its memory and the stack of its work up to 100 times a
    # second, which takes 2.9 CPU-seconds a minute of the idle processes; with these 1.2.
    calm = {
        "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "500ms",
        "DASK_DISTRIBUTED__WORKER__MEMORY__MONITOR_INTERVAL": "1s",
        "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    }
    return [
        Service("dask-scheduler", ("dask", "scheduler", *listen), lambda: bool(_get(counts)), environment=calm),
        Service(
            "dask-workers",
            ("dask", "worker", scheduler, *workers, "--local-directory", str(home.root / "dask")),
            lambda: int(json.loads(_get(counts))["workers"]) >= DASK_WORKERS,
            # Workers have no state outside the store, and their graceful shutdown is slower than that of others.
            stop=signal.SIGKILL,
            environment=one_thread | calm,
        ),
    ]


def _airflow(home: Home) -> list[Service]:
    health = f"{home.airflow_url}/api/v2/monitor/health"

    def alive(component: str) -> Callable[[], bool]:
        return lambda: json.loads(_get(health))[component]["status"] == "healthy"

    # Airflow shuts down gracefully on SIGINT; SIGTERM leaves orphans. Logs are read from the folder: no log servers.
    def service(
        name: str, healthy: Callable[[], bool], *options: str, after: str = "", imports: Iterable[str] = ()
    ) -> Service:
        settings = {IMPORTS: " ".join(imports)} if imports else {}
        return Service(
            name, ("airflow", name, *options), healthy, signal.SIGINT, needs_database=True, after=after,
            environment=settings
        )  # fmt: skip

    return [
        service("api-server", alive("metadatabase")),
        # The scheduler continues interrupted runs at once, and a task whose process cannot reach the API fails.
        service("scheduler", alive("scheduler"), "--skip-serve-logs", after="api-server", imports=TASK_IMPORTS),
        service("dag-processor", alive("dag_processor"), imports=operators_of_dags()),
        service("triggerer", alive("triggerer"), "--skip-serve-logs"),
    ]


def operators_of_dags() -> list[str]:
    """Returns the modules of `operators` that the DAG files import, which the dag-processor parses again and again."""
    texts = [path.read_text() for path in (CHECKOUT / "dags").glob("*.py")]
    return sorted({module for text in texts for module in _OPERATORS.findall(text)})


def is_healthy(service: Service) -> bool:
    """Returns whether a service is healthy now."""
    try:
        return service.healthy()
    except (OSError, HTTPException, ValueError, KeyError):
        return False


def _get(url: str) -> bytes:
    # Without a proxy: requests to loopback must not use one from the caller's environment.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=_PROBE_S) as response:
        return bytes(response.read())


@dataclass
class SupervisedService:
    """A service and its current process, across restarts."""

    service: Service
    process: Process | None = None
    status: ServiceStatus = field(default_factory=ServiceStatus)
    started: float = 0.0
    checked: float = 0.0
    due: float = 0.0
    wait_s: float = FIRST_WAIT_S
    logged_healthy: bool = False

    def start(self, home: Home) -> None:
        """Starts the process, after killing the remaining processes of the previous one."""
        kill_processes(stack_processes(home.root, self.service.name))
        self.process = spawn(home, self.service.name, self.service.command, self.service.environment)
        self.started, self.checked, self.logged_healthy = time.monotonic(), 0.0, False
        self.status = ServiceStatus(state="starting", pid=self.process.pid, restarts=self.status.restarts)

    def check(self, home: Home, may_start: bool) -> None:
        """Schedules the restart of an exited process, checks a running one, or starts it if due and `may_start`."""
        now = time.monotonic()
        if self.process is None:
            if may_start and now >= self.due:
                self.start(home)
        elif self.process.poll() is not None:
            self._schedule_restart(now)
        elif now - self.checked > (RECHECK_S if self.status.state == "healthy" else STARTING_S):
            self.checked = now
            healthy = is_healthy(self.service)
            if healthy and not self.logged_healthy:
                self.logged_healthy = True
                log.info("%s is healthy after %.1f s", self.service.name, now - self.started)
            self.status.state = "healthy" if healthy else "starting"

    def _schedule_restart(self, now: float) -> None:
        assert self.process is not None
        if now - self.started > 2 * LONGEST_WAIT_S:
            self.wait_s = FIRST_WAIT_S
        code = self.process.returncode
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        log.warning("%s exited (%s); it is restarted in %.0f s", self.service.name, how, self.wait_s)
        self.process, self.due = None, now + self.wait_s
        self.wait_s = min(2 * self.wait_s, LONGEST_WAIT_S)
        self.status = ServiceStatus(state="restarting", restarts=self.status.restarts + 1)

    def stop(self) -> None:
        """Sends the stop signal to the process."""
        if self.process is not None and self.process.poll() is None:
            self.status.state = "stopping"
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(self.service.stop)


class Supervisor:
    """Runs one stack until it receives a signal.

    Args:
        home: the stack.
        supervised: its services.
        settle: called when all services are healthy; the stack is ready once it returns True.
    """

    def __init__(self, home: Home, supervised: list[Service], settle: Callable[[], bool]) -> None:
        self.home = home
        self.children = [SupervisedService(service) for service in supervised]
        self.settle = settle
        self.status = Status(pid=os.getpid())
        self.saved: Status | None = None
        self.stopping = False

    def run(self) -> None:
        """Starts and supervises all services until a signal or an error; then stops them."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop)
        try:
            self._start()
            self._watch()
        except SluiceError as error:
            log.error("%s", error)
            self.status.error = str(error)
        finally:
            self._publish()
            self._end()

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self.stopping = True

    def _start(self) -> None:
        # Services without a database start during the migration, which takes 3 CPU-seconds.
        migration = migrate(self.home) if any(child.service.needs_database for child in self.children) else None
        for child in self.children:
            if self._may_start(child.service) and (migration is None or not child.service.needs_database):
                child.start(self.home)
        while migration is not None and not self.stopping and migration.poll() is None:
            self._publish()
            time.sleep(TICK_S)
        if migration is not None and not self.stopping:
            finish_migration(self.home, migration.returncode)
        self._publish()

    def _watch(self) -> None:
        while not self.stopping:
            for child in self.children:
                child.check(self.home, self._may_start(child.service))
            if not self.status.ready and all(child.status.state == "healthy" for child in self.children):
                self.status.ready = self.settle()
            self._publish()
            time.sleep(TICK_S)

    def _may_start(self, service: Service) -> bool:
        """Returns whether the service that this one starts after is healthy."""
        return not service.after or any(
            child.service.name == service.after and child.status.state == "healthy" for child in self.children
        )

    def _publish(self) -> None:
        services = {child.service.name: child.status.model_copy() for child in self.children}
        status = self.status.model_copy(update={"services": services})
        if status != self.saved:
            self.saved = status
            status.save(self.home.run)

    def _end(self) -> None:
        self.status.ready = False
        for child in self.children:
            child.stop()
        self._publish()
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline and any(
            child.process and child.process.poll() is None for child in self.children
        ):
            time.sleep(0.1)
        remaining = stack_processes(self.home.root)
        if remaining:
            pids = ", ".join(str(process.pid) for process in remaining)
            log.info("killing processes that did not exit within %.0f s: %s", GRACE_S, pids)
            kill_processes(remaining)
        log.info("stopped")


def _stamp(home: Home) -> Path:
    return home.database.with_suffix(".version")


def _stamp_text(home: Home) -> str:
    return f"{version('apache-airflow-core')} {home.postgres or 'SQLite'}"


def migrate(home: Home) -> Process | None:
    """Starts the migration of Airflow's database; returns None if this version of Airflow has already migrated it.

    Raises:
        SluiceError: Postgres does not answer or rejects the user.
    """
    stamp = _stamp(home)
    exists = home.postgres.is_migrated() if home.postgres else home.database.exists()
    if exists and stamp.exists() and stamp.read_text() == _stamp_text(home):
        return None
    return spawn(home, "migrate", ["airflow", "db", "migrate"])


def finish_migration(home: Home, code: int) -> None:
    """Records a successful migration; raises TransientError with the last line of the log if it failed."""
    if code:
        cause = home.last_line("migrate")
        raise TransientError(f"Airflow's database could not be created: {cause}", f"see {home.logs / 'migrate.log'}")
    _stamp(home).write_text(_stamp_text(home))


def create_pools(home: Home) -> bool:
    """Creates or updates Airflow's pools from `dags/pools.json`; returns False if the API is not ready."""
    try:
        with drive.Airflow(home.airflow_url, home.password()) as airflow:
            airflow.set_pools(CHECKOUT / "dags" / "pools.json")
    except TransientError as error:
        log.warning("%s", error)
        return False
    return True


def main() -> int:
    """Runs the supervisor in this process; returns the exit status."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    home = Home.here()
    home.prepare()
    if home.postgres:
        home.postgres.prepare()
    lock = take_lock(home.run)
    if lock is None:
        log.error("another supervisor is already running in %s", home.root)
        return 1
    with lock:
        home.write_environment()
        Supervisor(home, services(home), lambda: create_pools(home)).run()
    return 0
