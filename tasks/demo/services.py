"""The services of the stack: command, health check and stop signal of each process.

MLflow and Airflow's four components write to SQLite below the state folder, or to Postgres; Dask is one scheduler and
two workers, each under its nanny. Everything binds to 127.0.0.1.
"""

import json
import signal
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPException

from tasks.demo.home import Home

DASK_WORKERS = 2
_PROBE_S = 2.0


@dataclass(frozen=True)
class Service:
    """One supervised process.

    Args:
        name: name in the status and of the log file.
        command: program and arguments.
        healthy: health check; may raise OSError, HTTPException or ValueError for "not healthy".
        stop: signal for an orderly end.
        needs_database: whether it starts only after the migration of Airflow's database.
        environment: variables in addition to the stack's.
    """

    name: str
    command: tuple[str, ...]
    healthy: Callable[[], bool]
    stop: signal.Signals = signal.SIGTERM
    needs_database: bool = False
    environment: dict[str, str] = field(default_factory=dict)


def services(home: Home) -> list[Service]:
    """Returns all services, in the order of the status display."""
    return [_site(home), _mlflow(home), *_dask(home), *_airflow(home)]


def migration() -> list[str]:
    """Returns the command that creates or migrates Airflow's database."""
    return ["airflow", "db", "migrate"]


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
    # The job runner is for GenAI scorers; it would cost 240 MB.
    # The URL of the database is passed in the environment: it may contain a password, and command lines are public.
    environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_BACKEND_STORE_URI": home.runs}
    return Service("mlflow", command, lambda: bool(_get(f"{home.mlflow_url}/health")), environment=environment)


def _dask(home: Home) -> list[Service]:
    scheduler, status = f"tcp://127.0.0.1:{home.ports.dask}", home.ports.dask + 1
    counts = f"http://127.0.0.1:{status}/json/counts.json"
    listen = ("--host", "127.0.0.1", "--port", str(home.ports.dask), "--dashboard-address", f"127.0.0.1:{status}")
    # Without an address of its own a worker's status page would listen on all interfaces, `--no-dashboard` or not.
    inside = ("--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0")
    workers = ("--nworkers", str(DASK_WORKERS), "--nthreads", "1", *inside)
    # One thread in each numerical library: two workers already fill two cores.
    single = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_TRIM_THRESHOLD_": "65536"}
    return [
        Service("dask-scheduler", ("dask", "scheduler", *listen), lambda: bool(_get(counts))),
        Service(
            "dask-workers",
            ("dask", "worker", scheduler, *workers, "--local-directory", str(home.root / "dask")),
            lambda: int(json.loads(_get(counts))["workers"]) >= DASK_WORKERS,
            # Workers have no state outside the store; their orderly end takes longer than that of all other services.
            stop=signal.SIGKILL,
            environment=single,
        ),
    ]


def _airflow(home: Home) -> list[Service]:
    health = f"{home.airflow_url}/api/v2/monitor/health"

    def alive(component: str) -> Callable[[], bool]:
        return lambda: json.loads(_get(health))[component]["status"] == "healthy"

    # Airflow ends orderly on SIGINT; SIGTERM leaves orphans. Logs are read from the folder, so no log servers.
    def service(name: str, healthy: Callable[[], bool], *options: str) -> Service:
        return Service(name, ("airflow", name, *options), healthy, signal.SIGINT, needs_database=True)

    return [
        service("api-server", alive("metadatabase")),
        service("scheduler", alive("scheduler"), "--skip-serve-logs"),
        service("dag-processor", alive("dag_processor")),
        service("triggerer", alive("triggerer"), "--skip-serve-logs"),
    ]


def is_healthy(service: Service) -> bool:
    """Returns whether a service is healthy now."""
    try:
        return service.healthy()
    except (OSError, HTTPException, ValueError, KeyError):
        return False


def _get(url: str) -> bytes:
    # Without proxy: one of the caller's environment must not answer for the services on loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=_PROBE_S) as answer:
        return bytes(answer.read())
