"""The official chart's commands and probes with this repository's image: real Airflow and MLflow, as the pods' user.

The root file system is read-only and made from k8s/images/airflow.Dockerfile, the settings are `config` of
k8s/helm/airflow.yaml, the store is a real S3 server on loopback, Kubernetes is the bed of tests/cluster. Needs root on
Linux for a separate mount namespace; skips elsewhere.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.cluster.bed import Bed
from tests.cluster.bed.resources import PODS
from tests.k8s.chart import NAMESPACE, commands
from tests.k8s.conftest import K8S
from tests.k8s.dockerfile import may_lock

pytestmark = pytest.mark.system

KEY = "c2x1aWNlLXRlc3RzLXNsdWljZS10ZXN0cy1zbHVpY2U="
USER = 50000
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


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def config_file(values, path):
    """Writes airflow.cfg like the chart: the sections of `config`."""
    lines = []
    for section, options in values("airflow.yaml")["config"].items():
        lines += [f"[{section}]", *(f"{option} = {value}" for option, value in options.items())]
    path.write_text("\n".join(lines))


@pytest.fixture(scope="module")
def home():
    """The folder with the volumes of the pods, which belong to their user."""
    if not may_lock():
        pytest.skip("mount namespaces are not allowed here (needs root on Linux)")
    if any(Path(place).resolve().is_relative_to("/tmp") for place in (K8S, sys.prefix)):
        pytest.skip("checkout or environment is below /tmp, which is empty in the room")
    made = Path(tempfile.mkdtemp(prefix="sluice-room-", dir="/var/tmp"))
    made.chmod(0o755)
    for folder in ("logs", "dags", "out", "keys", "users", "root", "bed"):
        (made / folder).mkdir()
        os.chown(made / folder, USER, USER)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster(home):
    """Kubernetes with two pods of failed tasks: one ended an hour ago, one just now."""
    bed = Bed(home / "bed", nodes=[], namespace=NAMESPACE)
    for name, at in (("old", "2026-01-01T00:00:00Z"), ("new", "2126-01-01T00:00:00Z")):
        labels = {"dag_id": "web.crawl", "task_id": "fetch", "try_number": "1", "airflow_version": "3.3.2"}
        spec = {"restartPolicy": "Never", "containers": [{"name": "base", "image": "sluice/airflow:0.1.0"}]}
        about = {"name": name, "namespace": NAMESPACE, "labels": labels}
        bed.store.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec})
        bed.store.change(PODS, NAMESPACE, name, lambda pod, at=at: pod.update(status=failed(at)))
    yield bed
    bed.close()


def failed(at):
    terminated = {"exitCode": 1, "reason": "Error", "finishedAt": at}
    container = {"name": "base", "state": {"terminated": terminated}, "ready": False, "restartCount": 0}
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": at}
    return {"phase": "Failed", "conditions": [ready], "containerStatuses": [container | {"image": "", "imageID": ""}]}


@pytest.fixture(scope="module")
def room(home, cluster, values, rendered, s3_server):
    """The observations of `locked_room`, and its S3 server."""
    (home / "dags" / "probe.py").write_text(DAG)
    (home / "users" / "passwords.json").write_text(json.dumps({"admin": "one", "viewer": "two"}))
    config_file(values, home / "airflow.cfg")
    port = free_port()
    settings = next(
        one["data"]
        for one in rendered("base")
        if one["kind"] == "ConfigMap" and one["metadata"] == {**one["metadata"], **NAME}
    )
    endpoint = s3_server.environment["AWS_ENDPOINT_URL_S3"]
    keys = key_files(values, home / "keys")
    bare = {"PYTHONPATH": str(K8S.parent), "AIRFLOW_HOME": "/opt/airflow", **keys}
    env = {
        **bare,
        **{name: value for name, value in settings.items() if not name.startswith("SLUICE")},
        **s3_server.environment,
        "AIRFLOW_CONN_SLUICE_STORE": json.dumps({"conn_type": "aws", "extra": {"endpoint_url": endpoint}}),
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__API__PORT": port,
        "AIRFLOW__API__HOST": "127.0.0.1",
        "MLFLOW_BACKEND_STORE_URI": "sqlite:////tmp/mlflow.db",
        "MLFLOW_ARTIFACTS_DESTINATION": "/tmp/mlartifacts",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    kubernetes = {
        "AIRFLOW__KUBERNETES_EXECUTOR__IN_CLUSTER": "False",
        "AIRFLOW__KUBERNETES_EXECUTOR__CONFIG_FILE": str(cluster.kube_config()),
    }
    plan = {
        "dockerfile": str(K8S / "images" / "airflow.Dockerfile"),
        "root": str(home / "root"),
        "mounts": {
            "/opt/airflow/airflow.cfg": str(home / "airflow.cfg"),
            "/opt/airflow/logs": str(home / "logs"),
            "/opt/airflow/dags": str(home / "dags"),
            "/run/secrets/airflow": str(home / "keys"),
            "/run/secrets/airflow-users": str(home / "users"),
            str(home / "out"): str(home / "out"),
        },
        # The chart gives the clean-up none of the settings in `extraEnvFrom`.
        "cleanup_env": {**bare, **kubernetes},
        "containers": commands(values("airflow.yaml")),
        "mlflow": mlflow_arguments(rendered("base")),
        "done": str(home / "out" / "seen.json"),
    }
    (home / "plan.json").write_text(json.dumps(plan))
    program = [sys.executable, "-m", "tests.k8s.locked_room", str(home / "plan.json")]
    ended = subprocess.run(program, env=env, cwd=K8S.parent, capture_output=True, text=True, timeout=1500)
    done = Path(plan["done"])
    return json.loads(done.read_text()) if done.exists() else pytest.fail(ended.stderr[-3000:]), s3_server


def key_files(values, folder):
    """Writes Airflow's keys like the mounts of the chart; returns the environment that reads them."""
    contents = {"database": "sqlite:////tmp/airflow.db", "jwt-secret": KEY * 2}
    given = {one["name"]: one["value"] for one in values("airflow.yaml")["env"]}
    for command in given.values():
        name = command.rsplit("/", 1)[1]
        (folder / name).write_text(contents.get(name, KEY))
    return given


NAME = {"name": "sluice-settings", "namespace": "sluice"}


def mlflow_arguments(objects):
    """Returns the arguments of MLflow's Deployment, on loopback and a free port."""
    [pod] = [one["spec"]["template"]["spec"] for one in objects if one["kind"] == "Deployment"]
    own = {"--host=0.0.0.0": "--host=127.0.0.1", "--port=5000": f"--port={free_port()}"}
    return [own.get(one, one) for one in pod["containers"][0]["args"]]


def test_a_user_id_that_the_cluster_chose_has_a_name_and_a_home_too(room):
    assert room[0]["stranger"] == ["sluice", "sluice", "/tmp"]


@pytest.mark.parametrize("container", ["migrate-database", "wait-for-migrations"])
def test_the_jobs_of_the_chart_migrate_the_database(room, container):
    assert room[0][container] == ""


def test_the_probes_of_the_chart_succeed_in_every_service(room):
    assert room[0]["probes"] == {"scheduler": "", "dag-processor": "", "triggerer": ""}


def test_the_job_of_the_chart_removes_pods_of_failed_tasks_after_an_hour(room, cluster):
    assert room[0]["cleanup"] == ""
    assert [pod["metadata"]["name"] for pod in cluster.store.select(PODS)] == ["new"]


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
