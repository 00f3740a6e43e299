"""Requirements of the manifests, tested with the real Airflow and MLflow: a read-only root, no database in task pods.

Airflow runs with the `config` of k8s/helm/airflow.yaml, the store is a real S3 server on loopback. Needs root on
Linux for a separate mount namespace; skips elsewhere.
"""

import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.k8s.conftest import K8S
from tests.k8s.locked_room import NEW_MOUNTS

pytestmark = pytest.mark.system

KEY = "c2x1aWNlLXRlc3RzLXNsdWljZS10ZXN0cy1zbHVpY2U="
DAG = """
from airflow.sdk import dag, task

@dag(schedule=None)
def probe():
    @task
    def one():
        print("a line for the remote log")
        return "x" * 5000

    one()

probe()
"""


def may_lock():
    """Returns whether this machine allows a child to have a separate mount namespace."""
    code = f"import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare({NEW_MOUNTS}))"
    return hasattr(ctypes.CDLL(None), "unshare") and subprocess.run([sys.executable, "-c", code]).returncode == 0


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def config_file(values, home):
    """Writes airflow.cfg like the chart: the sections of `config`."""
    lines = []
    for section, options in values("airflow.yaml")["config"].items():
        lines += [f"[{section}]", *(f"{option} = {value}" for option, value in options.items())]
    (home / "airflow.cfg").write_text("\n".join(lines))


@pytest.fixture(scope="module")
def room(values, rendered, s3_server):
    """The observations of `locked_room`, and its S3 server."""
    if not may_lock():
        pytest.skip("mount namespaces are not allowed here (needs root on Linux)")
    if any(Path(place).resolve().is_relative_to("/tmp") for place in (K8S, sys.prefix)):
        pytest.skip("checkout or environment is below /tmp, which is empty in the room")
    # Not below /tmp, which is empty in the namespace.
    home = Path(tempfile.mkdtemp(prefix="sluice-room-", dir="/var/tmp"))
    for folder in ("logs", "dags", "out", "keys"):
        (home / folder).mkdir()
    (home / "dags" / "probe.py").write_text(DAG)
    config_file(values, home)
    port = free_port()
    settings = next(
        one["data"]
        for one in rendered("base")
        if one["kind"] == "ConfigMap" and one["metadata"] == {**one["metadata"], **NAME}
    )
    endpoint = s3_server.environment["AWS_ENDPOINT_URL_S3"]
    env = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        **{name: value for name, value in settings.items() if not name.startswith("SLUICE")},
        **s3_server.environment,
        "AIRFLOW_CONN_SLUICE_STORE": json.dumps({"conn_type": "aws", "extra": {"endpoint_url": endpoint}}),
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__API__PORT": port,
        "AIRFLOW__API__HOST": "127.0.0.1",
        **key_files(values, home / "keys"),
        "MLFLOW_BACKEND_STORE_URI": "sqlite:////tmp/mlflow.db",
        "MLFLOW_ARTIFACTS_DESTINATION": "/tmp/mlartifacts",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_ARGUMENTS": json.dumps(mlflow_arguments(rendered("base"))),
    }
    done = home / "out" / "seen.json"
    program = [sys.executable, "-m", "tests.k8s.locked_room", str(home), str(done)]
    try:
        ended = subprocess.run(program, env=env, cwd=K8S.parent, capture_output=True, text=True, timeout=600)
        yield json.loads(done.read_text()) if done.exists() else pytest.fail(ended.stderr[-3000:]), s3_server
    finally:
        shutil.rmtree(home, ignore_errors=True)


def key_files(values, folder):
    """Writes Airflow's keys like the mounts of the chart; returns the environment that reads them."""
    contents = {"database": "sqlite:////tmp/airflow.db", "jwt-secret": KEY * 2}
    given = {one["name"]: one["value"] for one in values("airflow.yaml")["env"]}
    for command in given.values():
        name = command.rsplit("/", 1)[1]
        (folder / name).write_text(contents.get(name, KEY))
    return {name: command.replace("/run/secrets/airflow", str(folder)) for name, command in given.items()}


NAME = {"name": "sluice-settings", "namespace": "sluice"}


def mlflow_arguments(objects):
    """Returns the arguments of MLflow's Deployment, on loopback and a free port."""
    [pod] = [one["spec"]["template"]["spec"] for one in objects if one["kind"] == "Deployment"]
    own = {"--host=0.0.0.0": "--host=127.0.0.1", "--port=5000": f"--port={free_port()}"}
    return [own.get(one, one) for one in pod["containers"][0]["args"]]


def test_every_service_of_airflow_is_healthy_on_a_read_only_root(room):
    assert room[0]["health"] == dict.fromkeys(("metadatabase", "scheduler", "triggerer", "dag_processor"), "healthy")
    assert room[0]["refused"] == []


def test_a_task_pod_runs_without_the_database_and_without_a_key_of_airflow(room):
    assert (room[0]["task"]["exit"], room[0]["task"]["state"]) == (0, "success"), room[0]["task"]["end"]


def test_the_log_and_large_result_of_the_task_are_in_the_bucket(room):
    client = room[1].client()
    keys = [one["Key"] for one in client.list_objects_v2(Bucket="sluice")["Contents"]]
    logs = [key for key in keys if key.startswith("logs/") and "task_id=one" in key]
    assert any(
        b"a line for the remote log" in client.get_object(Bucket="sluice", Key=key)["Body"].read() for key in logs
    )
    assert [key for key in keys if key.startswith("xcom/probe/")]


def test_mlflow_answers_its_probe_and_service_and_refuses_unknown_hosts(room):
    assert room[0]["mlflow"] == {"probe": True, "service": 200, "stranger": 403}
