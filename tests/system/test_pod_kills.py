"""A pod trains while Airflow is killed or a user changes the task: one pod, and the model of an undisturbed run.

Uses the real Airflow of the stack, with the loopback cluster of the tests as the connection `kubernetes_default`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tasks.demo.home import CHECKOUT
from tasks.demo.stack import stack_processes
from tests.cluster.clusters import Cluster, Loopback
from tests.cluster.training import corpus_in, recipe_text

DAG = "test.pretrain"
STEPS = 3000
TRAINS = "sluice/stage=train"


@pytest.fixture(scope="module")
def cluster(stack, tmp_path_factory) -> Iterator[Cluster]:
    """The cluster with its Airflow connection, a recipe that trains in it, and a small corpus."""
    folder = tmp_path_factory.mktemp("pods")
    one = Loopback(folder / "cluster")
    store = stack.home.root / "store"
    shutil.copytree(corpus_in(folder) / "test", store / "test")
    recipe = Path(os.environ["SLUICE_RECIPES"]) / "test.toml"
    recipe.write_text(recipe_text(STEPS, store, one.place()))
    known = json.loads(one.connection())
    connection = {"connection_id": "kubernetes_default", **known, "extra": json.dumps(known["extra"])}
    stack.airflow.call("POST", "/connections", json=connection)
    one.until(lambda: DAG in stack.airflow.dag_ids(), 120)
    yield one
    stack.airflow.call("DELETE", "/connections/kubernetes_default")
    recipe.unlink()
    one.close()


@pytest.fixture(scope="module")
def undisturbed(stack, cluster) -> str:
    """The content of the checkpoint of a shell run on this machine."""
    recipe = str(Path(os.environ["SLUICE_RECIPES"]) / "test.toml")
    command = [sys.executable, "-m", "tasks", "train", "--recipe", recipe, "--version", "shell"]
    quiet = {**os.environ, "MLFLOW_TRACKING_URI": "", "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [*command, "--source-version", "dev"], cwd=CHECKOUT, env=quiet, check=True, capture_output=True, timeout=300
    )
    return stack.artifact("test/checkpoint", "shell").record.content


@pytest.fixture
def version(request, cluster) -> Iterator[str]:
    """A version for this test; its pods are deleted afterwards."""
    yield re.sub(r"[^a-z]+", "-", request.node.name.lower()).strip("-")
    cluster.faults.clear()
    for pod in cluster.pods():
        cluster.kill_pod(pod.metadata.name)


def started(stack, version: str, steps: int = STEPS) -> str:
    return stack.airflow.trigger(DAG, {"version": version, "source_version": "dev", "train.steps": steps})


def train_task(stack, run_id: str) -> dict:
    return next(task for task in stack.airflow.tasks(DAG, run_id) if task["task_id"] == "train")


def trains(stack, cluster, version: str) -> str:
    """Waits until the pod has saved a checkpoint and the task is deferred; returns the pod's name."""
    pod = cluster.pod(label=TRAINS, limit_s=90)
    saved = f"store/test/checkpoint/{version}/.scratch/*/epoch-*/checkpoints/step-*/state.json"
    cluster.until(lambda: list(stack.home.root.glob(saved)), 60)
    return pod.metadata.name


def pods_ever(cluster, version: str) -> list:
    """All pods that trained this version."""
    lives = cluster.history.lives("sluice/stage", "train")
    return [one for one in lives if version in json.dumps(one.raw["spec"]["containers"][0]["args"])]


def ends_as_if_nothing_had_happened(stack, cluster, run_id: str, version: str, undisturbed: str) -> None:
    assert stack.finished(DAG, run_id, 300)["state"] == "success"
    made = stack.artifact("test/checkpoint", version)
    assert made.verify() == []
    assert made.record.content == undisturbed
    assert len(pods_ever(cluster, version)) == 1


@pytest.mark.soak
def test_a_worker_killed_while_it_creates_the_pod_leaves_one_pod(stack, cluster, undisturbed, version) -> None:
    slow = cluster.faults.delay_reply(20, verb="create", path="*/pods")
    run_id = started(stack, version)
    cluster.until(lambda: slow.hits and pods_ever(cluster, version), 90)
    instance = train_task(stack, run_id)["id"]
    processes = cluster.until(lambda: [one for one in stack_processes(stack.home.root) if instance in title(one)], 30)
    for one in processes:
        one.kill()
    ends_as_if_nothing_had_happened(stack, cluster, run_id, version, undisturbed)
    assert train_task(stack, run_id)["try_number"] == 2


@pytest.mark.soak
@pytest.mark.parametrize("service", ["triggerer", "scheduler"])
def test_killing_a_service_while_a_pod_trains_changes_nothing(stack, cluster, undisturbed, version, service) -> None:
    run_id = started(stack, version)
    trains(stack, cluster, version)
    cluster.until(lambda: train_task(stack, run_id)["state"] == "deferred", 60)
    for one in stack_processes(stack.home.root, service):
        one.kill()
    ends_as_if_nothing_had_happened(stack, cluster, run_id, version, undisturbed)
    assert train_task(stack, run_id)["try_number"] == 1


@pytest.mark.soak
def test_clearing_a_task_while_its_pod_trains_reattaches_to_it(stack, cluster, undisturbed, version) -> None:
    run_id = started(stack, version)
    pod = trains(stack, cluster, version)
    cluster.until(lambda: train_task(stack, run_id)["state"] == "deferred", 60)
    cleared = {"dry_run": False, "dag_run_id": run_id, "task_ids": ["train"], "only_failed": False}
    stack.airflow.call("POST", f"/dags/{DAG}/clearTaskInstances", json=cleared)
    ends_as_if_nothing_had_happened(stack, cluster, run_id, version, undisturbed)
    assert pods_ever(cluster, version)[0].name == pod


@pytest.mark.soak
def test_marking_the_task_failed_lets_the_trainer_save_and_exit(stack, cluster, version) -> None:
    run_id = started(stack, version, steps=100_000)
    trains(stack, cluster, version)
    cluster.until(lambda: train_task(stack, run_id)["state"] == "deferred", 60)
    stack.airflow.call("PATCH", f"/dags/{DAG}/dagRuns/{run_id}/taskInstances/train", json={"new_state": "failed"})
    cluster.until(lambda: not cluster.pods(TRAINS), 90)
    [only] = pods_ever(cluster, version)
    assert only.last.status.container_statuses[0].state.terminated.exit_code == 143
    assert train_task(stack, run_id)["state"] == "failed"
    time.sleep(3)  # nothing restarts it
    assert len(pods_ever(cluster, version)) == 1


def title(process: psutil.Process) -> str:
    """The process title without the padding of setproctitle."""
    try:
        return " ".join(process.cmdline()).strip()
    except psutil.Error:
        return ""
