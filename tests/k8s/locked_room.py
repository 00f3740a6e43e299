"""Runs Airflow as the official chart does: services, probes, one task pod, clean-up; and MLflow. Writes what it saw.

A program: `python -m tests.k8s.locked_room PLAN`, as root. PLAN is a JSON file: `dockerfile`, `mounts` and `root` of
`dockerfile.enter`, `containers` (name -> arguments and probes of the chart's container), `mlflow` (arguments of the
server), `cleanup_env` (the variables of the clean-up), `done` (the file for the observations). The environment is that
of a pod. Everything runs in the root file system of the image, which is read-only, as the image's user.
"""

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

from tests.k8s.dockerfile import Image, become, enter

SERVICES = ("api-server", "scheduler", "dag-processor", "triggerer")
# A task pod gets none of Airflow's secrets; see k8s/pods/executor.yaml.
KEYS = ("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "FERNET", "SECRET_KEY", "JWT_SECRET", "MLFLOW_BACKEND")
OTHER_USER = 1000660000
"""A user id like those that OpenShift assigns: it has no line in /etc/passwd, and group 0."""


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


def until(holds: Any, seconds: float = 400) -> bool:
    """Waits until `holds()`; returns whether it did."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(1)
    return False


def started(*command: str, log: str) -> subprocess.Popen[bytes]:
    """Starts a service whose output goes to a file in /tmp."""
    with Path("/tmp", f"{log}.log").open("wb") as file:
        return subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)


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


def airflow(plan: dict[str, Any], image: Image, seen: dict[str, Any]) -> None:
    """Migrates, starts the services, runs their probes, then a task and the clean-up, all with the chart's commands."""
    base = f"http://127.0.0.1:{os.environ['AIRFLOW__API__PORT']}"
    commands = {name: [*image.entrypoint, *one["args"]] for name, one in plan["containers"].items()}
    for name in ("migrate-database", "wait-for-migrations"):
        seen[name] = ended(commands[name])
        if seen[name]:
            return
    services = {name: started(*commands[name], log=name) for name in SERVICES}

    def healthy() -> bool:
        _, found = answer(f"{base}/api/v2/monitor/health")
        seen["health"] = {name: one["status"] for name, one in found.items()} if isinstance(found, dict) else {}
        return len(seen["health"]) == 4 and set(seen["health"].values()) == {"healthy"}

    def parsed() -> bool:
        listed = subprocess.run(["airflow", "dags", "list", "--output", "plain"], capture_output=True, text=True)
        return "probe" in listed.stdout

    if not until(healthy):
        return
    # The kubelet starts a probe in the container, without the image's entrypoint.
    probes = [(name, probe) for name, one in plan["containers"].items() for probe in one["probes"]]
    seen["probes"] = {name: ended(probe) for name, probe in probes}
    if until(parsed):
        services["scheduler"].send_signal(signal.SIGINT)
        services["scheduler"].wait(60)
        seen["task"] = task_pod(base, "probe")
    # The chart gives the clean-up none of the settings in `extraEnvFrom`.
    seen["cleanup"] = ended(commands["airflow-cleanup-pods"], {**image.env, **plan["cleanup_env"]})


def ended(command: list[str], env: dict[str, str] | None = None) -> str:
    """Runs a command to its end; returns "" or the end of its output if it failed."""
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=400)
    return (done.stdout + done.stderr)[-1500:] if done.returncode else ""


def mlflow(arguments: list[str], seen: dict[str, Any]) -> None:
    """Starts MLflow like its Deployment and sends requests with three Host headers."""
    base = f"http://127.0.0.1:{next(one for one in arguments if one.startswith('--port=')).split('=')[1]}"
    started("mlflow", "server", *arguments, log="mlflow")
    search = f"{base}/api/2.0/mlflow/experiments/search?max_results=1"
    seen["mlflow"] = {
        "probe": until(lambda: answer(f"{base}/health", headers={"Host": "10.1.2.3:5000"})[0] == 200),
        "service": answer(search, headers={"Host": "mlflow.sluice.svc:5000"})[0],
        "stranger": answer(search, headers={"Host": "evil.example"})[0],
    }


NAMED = """
import getpass, json
from pathlib import Path
from airflow.utils.platform import getuser
Path.home().joinpath("made-by-a-stranger").touch()
print(json.dumps([getpass.getuser(), getuser(), str(Path.home())]))
"""


def stranger(image: Image) -> list[str]:
    """Returns the names and the home that a user id of the cluster's choice finds."""
    command = [sys.executable, "-c", NAMED]
    who = {"user": OTHER_USER, "group": 0, "extra_groups": []}
    done = subprocess.run(command, env=image.env, capture_output=True, text=True, **who)
    found: list[str] = json.loads(done.stdout) if done.returncode == 0 else [done.stderr[-1500:]]
    return found


def main() -> None:
    """Runs everything; ends all started processes."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    image = enter(Path(plan["dockerfile"]), Path(plan["root"]), plan["mounts"])
    os.setpgid(0, 0)
    os.chdir(image.folder)
    os.environ.update({**image.env, **os.environ})
    seen: dict[str, Any] = {"stranger": stranger(image)}
    become(*image.user)
    try:
        airflow(plan, image, seen)
        mlflow(plan["mlflow"], seen)
        logs = {path.name: path.read_text(errors="replace") for path in Path("/tmp").glob("*.log")}
        seen["refused"] = [f"{name}: {line}" for name, log in logs.items() for line in log.splitlines() if _is(line)]
    finally:
        Path(plan["done"]).write_text(json.dumps(seen))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
        time.sleep(3)
        os.killpg(0, signal.SIGKILL)


def _is(line: str) -> bool:
    return "Read-only file system" in line or "Errno 30" in line


if __name__ == "__main__":
    main()
