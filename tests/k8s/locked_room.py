"""Runs Airflow's services, one task pod and MLflow on a read-only root file system; writes its observations.

A program: `python -m tests.k8s.locked_room HOME DONE`, as root. HOME has airflow.cfg (from the chart's values), dags/
and logs/; DONE is the JSON file for the observations. Everything except /tmp and HOME/logs is read-only from the first
step on, in a mount namespace of this process: the machine is not changed.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

NEW_MOUNTS = 0x00020000
BIND, REMOUNT, READ_ONLY, PRIVATE, RECURSIVE = 4096, 32, 1, 1 << 18, 16384
SERVICES = ("api-server", "scheduler", "dag-processor", "triggerer")
# A task pod gets none of Airflow's secrets; see k8s/pods/executor.yaml.
KEYS = ("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "FERNET", "SECRET_KEY", "JWT_SECRET", "MLFLOW_BACKEND")

libc = ctypes.CDLL(None, use_errno=True)


def lock_the_room(writable: list[str]) -> None:
    """Makes every file system of this process read-only except `writable` and /tmp, which becomes empty."""
    _must(libc.unshare(NEW_MOUNTS))
    _mount("none", "/", "", RECURSIVE | PRIVATE)
    for path in writable:
        _mount(path, path, "", BIND)
    points = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for point in points:
        if point not in writable and not point.startswith(("/proc", "/sys", "/dev")):
            libc.mount(b"none", point.encode(), None, REMOUNT | BIND | READ_ONLY, None)
    _mount("tmpfs", "/tmp", "tmpfs", 0)


def _mount(source: str, target: str, kind: str, flags: int) -> None:
    _must(libc.mount(source.encode(), target.encode(), kind.encode() or None, flags, None))


def _must(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def answer(url: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    """Returns status and JSON (or text) of a request; status 0 if there is no response."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=10) as found:
            text = found.read().decode()
            return found.status, json.loads(text) if text.startswith("{") else text
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def until(holds: Any, seconds: float = 150) -> bool:
    """Waits until `holds()`; returns whether it did."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(1)
    return False


def started(*command: str) -> subprocess.Popen[bytes]:
    """Starts a service whose output goes to a file in /tmp."""
    with Path("/tmp", f"{'-'.join(command[:2])}.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def task_pod(base: str, dag: str) -> dict[str, Any]:
    """Runs the first task of a new run of `dag` with the command and environment of a task pod."""
    from airflow.executors.local_executor import LocalExecutor
    from airflow.executors.workloads import ExecuteTask
    from airflow.models.dagbag import DBDagBag
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState, TaskInstanceState
    from sqlalchemy import select

    _, login = answer(f"{base}/auth/token", {"username": "admin", "password": "one"})
    bearer = {"Authorization": f"Bearer {login['access_token']}"}
    _, run = answer(f"{base}/api/v2/dags/{dag}/dagRuns", {"logical_date": None, "conf": {}}, bearer)
    of_run = TaskInstance.run_id == run["dag_run_id"]
    with create_session() as session:
        # This replaces the scheduler, which is stopped.
        found = session.scalar(select(DagRun).where(DagRun.run_id == run["dag_run_id"]))
        found.state, found.dag = DagRunState.RUNNING, DBDagBag().get_dag_for_run(found, session=session)
        found.verify_integrity(dag_version_id=found.created_dag_version_id, session=session)
        session.flush()
        task = session.scalar(select(TaskInstance).where(of_run))
        task.state, task.try_number = TaskInstanceState.QUEUED, 1
        session.flush()
        work = ExecuteTask.make(task, generator=LocalExecutor().jwt_generator).model_dump_json()
    command = [sys.executable, "-m", "airflow.sdk.execution_time.execute_workload", "--json-string", work]
    env = {name: value for name, value in os.environ.items() if not any(key in name for key in KEYS)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=180)
    with create_session() as session:
        state = session.scalar(select(TaskInstance.state).where(of_run))
    return {"exit": done.returncode, "state": str(state), "run": run["dag_run_id"], "end": done.stdout[-2000:]}


def airflow(home: Path, seen: dict[str, Any]) -> None:
    """Starts the services, waits until all are healthy, then runs a task."""
    base = f"http://127.0.0.1:{os.environ['AIRFLOW__API__PORT']}"
    subprocess.run(["airflow", "db", "migrate"], check=True, capture_output=True)
    services = {name: started("airflow", name) for name in SERVICES}

    def healthy() -> bool:
        _, found = answer(f"{base}/api/v2/monitor/health")
        seen["health"] = {name: one["status"] for name, one in found.items()} if isinstance(found, dict) else {}
        return len(seen["health"]) == 4 and set(seen["health"].values()) == {"healthy"}

    def parsed() -> bool:
        listed = subprocess.run(["airflow", "dags", "list", "--output", "plain"], capture_output=True, text=True)
        return "probe" in listed.stdout

    if until(healthy) and until(parsed):
        services["scheduler"].send_signal(signal.SIGINT)
        services["scheduler"].wait(60)
        seen["task"] = task_pod(base, "probe")


def mlflow(arguments: list[str], seen: dict[str, Any]) -> None:
    """Starts MLflow like its Deployment and sends requests with three Host headers."""
    base = f"http://127.0.0.1:{next(one for one in arguments if one.startswith('--port=')).split('=')[1]}"
    started("mlflow", "server", *arguments)
    search = f"{base}/api/2.0/mlflow/experiments/search?max_results=1"
    seen["mlflow"] = {
        "probe": until(lambda: answer(f"{base}/health", headers={"Host": "10.1.2.3:5000"})[0] == 200),
        "service": answer(search, headers={"Host": "mlflow.sluice.svc:5000"})[0],
        "stranger": answer(search, headers={"Host": "evil.example"})[0],
    }


def main() -> None:
    """Runs everything; ends all started processes."""
    home, done = Path(sys.argv[1]), Path(sys.argv[2])
    lock_the_room([str(home / "logs"), str(done.parent)])
    os.setpgid(0, 0)
    seen: dict[str, Any] = {}
    try:
        # As in k8s/helm/airflow.yaml: the file must be writable, and a mounted secret is not.
        Path("/tmp/passwords.json").write_text(json.dumps({"admin": "one", "viewer": "two"}))
        airflow(home, seen)
        mlflow(json.loads(os.environ["MLFLOW_ARGUMENTS"]), seen)
        logs = {path.name: path.read_text(errors="replace") for path in Path("/tmp").glob("*.log")}
        seen["refused"] = [f"{name}: {line}" for name, log in logs.items() for line in log.splitlines() if _is(line)]
    finally:
        done.write_text(json.dumps(seen))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
        time.sleep(3)
        os.killpg(0, signal.SIGKILL)


def _is(line: str) -> bool:
    return "Read-only file system" in line or "Errno 30" in line


if __name__ == "__main__":
    main()
