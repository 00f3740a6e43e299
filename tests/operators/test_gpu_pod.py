"""GpuPodOperator: the pod it asks for, the command in it, and what the task says when the pod has ended."""

import json
import shlex
import subprocess
import sys
from types import SimpleNamespace

import pytest

POD = """
[place]
store = "${SLUICE_STORE}"
[place.train]
where = "kubernetes"
nproc = 2
[place.kubernetes]
namespace = "training"
image = "registry.example/sluice-trainer:1.2"
gpus = 2
cpu = "8"
memory = "64Gi"
node_selector = { "node.example/gpu" = "h200" }
priority_class = "research"
runtime_class = "nvidia"
queue = "gpus"
service_account = "trainer"
env = { SLUICE_STORE = "s3://bucket/store" }
[[place.kubernetes.tolerations]]
key = "nvidia.com/gpu"
"""


@pytest.fixture
def operator(recipes):
    from operators.gpu_pod import GpuPodOperator

    recipes("pods", POD)
    return lambda **more: GpuPodOperator(**{"task_id": "train", "recipe": "pods", "stage": "train", **more})


def context(**params):
    return {
        "params": {"version": None, "source_version": None, "overrides": {}, **params},
        "triggering_asset_events": {},
        "logical_date": None,
        "run_id": "manual__2026",
        "dag": SimpleNamespace(),
        "dag_run": SimpleNamespace(run_type="manual"),
        "ti": SimpleNamespace(dag_id="pods.pretrain", task_id="train", map_index=-1, try_number=1),
    }


def pod_of(operator, **params):
    at = context(**params)
    operator.arguments = operator.command(at)
    return operator.build_pod_request_obj(at, dry_run=True)


def test_the_pod_asks_for_what_the_place_says(operator):
    pod = pod_of(operator())
    [container] = pod.spec.containers
    assert pod.metadata.namespace == "training"
    assert container.image == "registry.example/sluice-trainer:1.2"
    assert container.resources.limits == {"memory": "64Gi", "nvidia.com/gpu": "2"}
    assert container.resources.requests == {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "2"}
    assert pod.spec.node_selector == {"node.example/gpu": "h200"}
    assert [(one.key, one.operator, one.effect) for one in pod.spec.tolerations] == [
        ("nvidia.com/gpu", "Exists", "NoSchedule")
    ]
    assert pod.spec.priority_class_name == "research"
    assert pod.spec.runtime_class_name == "nvidia"
    assert pod.spec.service_account_name == "trainer"
    assert pod.spec.restart_policy == "Never"
    assert pod.metadata.labels["kueue.x-k8s.io/queue-name"] == "gpus"
    assert {one.name: one.value for one in container.env}["SLUICE_NPROC"] == "2"


def test_torchrun_stops_its_workers_before_the_pods_grace_period_ends(operator):
    pod = pod_of(operator())
    env = {one.name: one.value for one in pod.spec.containers[0].env}
    assert 30 < int(env["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) < pod.spec.termination_grace_period_seconds


def test_two_tries_ask_for_pods_of_different_names_and_equal_labels(operator):
    one, two = pod_of(operator()), pod_of(operator())
    assert one.metadata.name != two.metadata.name
    assert one.metadata.name.startswith("pods-train-")
    assert one.metadata.labels == two.metadata.labels


def test_the_pod_runs_what_a_person_would_type(operator, monkeypatch, tmp_path):
    [container] = pod_of(operator(), version="v3", source_version="v2").spec.containers
    assert container.command == ["python", "-u"]
    assert container.args[:3] == ["-m", "tasks", "train"]
    # The very command, run here: it must get as far as missing its inputs, in the version that was asked for.
    ran = subprocess.run(
        [sys.executable, *container.args], capture_output=True, text=True, cwd=str(tmp_path), check=False,
        env={**__import__("os").environ, "SLUICE_STORE": str(tmp_path), "PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    assert ran.returncode == 2, shlex.join(container.args) + ran.stderr
    assert "stage train needs pods/" in ran.stderr
    assert "@v2" in ran.stderr


def test_overrides_travel_inside_the_recipe(operator):
    args = pod_of(operator(), overrides={"train.steps": 7}).spec.containers[0].args
    assert json.loads(args[args.index("--recipe") + 1])["train"]["steps"] == 7


def test_no_secret_of_the_worker_gets_into_the_pod(operator, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush-hush")
    monkeypatch.setenv("SLUICE_STORE", "s3://key:hush-hush@bucket")
    assert "hush-hush" not in json.dumps(pod_of(operator()).to_dict(), default=str)


def test_template_fields_have_one_order_in_every_process(operator):
    from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator

    assert operator().template_fields == (*KubernetesPodOperator.template_fields, "recipe", "stage", "member")


def test_the_task_waits_without_a_worker_and_finds_its_pod_again(operator):
    task = operator()
    assert task.deferrable
    assert task.durable
    assert task.logging_interval is None
    assert task.schedule_timeout_seconds >= 24 * 3600


def test_a_pod_that_says_done_without_an_artifact_is_an_error(operator, tmp_path):
    from operators.results import committed
    from tasks.errors import InputError
    from tasks.recipe import find_recipe

    with pytest.raises(InputError, match="no artifact pods/checkpoint@dev"):
        committed(find_recipe("pods"), "train", "dev")


def test_a_recipe_on_a_cluster_trains_in_pods_and_one_without_trains_here(recipes, dag_bag):
    recipes("pods", POD)
    recipes("here")
    bag = dag_bag()
    assert bag.import_errors == {}
    dags = bag.dags
    assert dags["pods.pretrain"].task_dict["train"].task_type == "GpuPodOperator"
    assert dags["pods.canary"].task_dict["canary"].task_type == "GpuPodOperator"
    assert dags["here.pretrain"].task_dict["train"].task_type == "StageOperator"


def test_a_cluster_that_the_recipe_does_not_describe_is_an_import_error(recipes, dag_bag):
    recipes("vague", '[place.train]\nwhere = "kubernetes"\n')
    errors = dag_bag().import_errors
    assert any("there is no [place.kubernetes]" in error for error in errors.values())


def test_the_dags_of_a_cluster_can_be_stored_in_the_database(recipes, dag_bag):
    from airflow.serialization.serialized_objects import DagSerialization

    recipes("pods", POD)
    for dag in dag_bag().dags.values():
        held = DagSerialization.serialize_dag(dag)
        assert json.dumps(held)
