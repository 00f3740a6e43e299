"""GpuPodOperator: its pod, the command in it, and the result of the task when the pod has ended."""

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


def context(task="train", **params):
    return {
        "params": {"version": None, "source_version": None, "overrides": {}, **params},
        "triggering_asset_events": {},
        "logical_date": None,
        "run_id": "manual__2026",
        "dag": SimpleNamespace(),
        "dag_run": SimpleNamespace(run_type="manual"),
        "ti": SimpleNamespace(dag_id="pods.pretrain", task_id=task, map_index=-1, try_number=1),
    }


def pod_of(operator, **params):
    return operator.build_pod_request_obj(context(**params), dry_run=True)


def test_the_pod_requests_the_resources_of_the_place(operator):
    pod = pod_of(operator())
    [container] = pod.spec.containers
    assert pod.metadata.namespace == "training"
    assert container.image == "registry.example/sluice-trainer:1.2"
    assert container.resources.limits == {"memory": "64Gi", "nvidia.com/gpu": "2"}
    assert container.resources.requests == {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "2"}
    assert pod.spec.node_selector == {"node.example/gpu": "h200"}
    assert ("nvidia.com/gpu", "Exists", "NoSchedule") in [
        (one.key, one.operator, one.effect) for one in pod.spec.tolerations
    ]
    assert pod.spec.priority_class_name == "research"
    assert pod.spec.runtime_class_name == "nvidia"
    assert pod.spec.service_account_name == "trainer"
    assert pod.spec.restart_policy == "Never"
    assert pod.metadata.labels["kueue.x-k8s.io/queue-name"] == "gpus"
    assert {one.name: one.value for one in container.env}["SLUICE_NPROC"] == "2"


def test_tolerations_and_shared_memory_survive_the_providers_merge(operator):
    spec = pod_of(operator()).spec
    assert "node.kubernetes.io/unreachable" in {one.key for one in spec.tolerations}
    assert [one.mount_path for one in spec.containers[0].volume_mounts] == ["/dev/shm"]
    assert spec.automount_service_account_token is False


def test_all_tries_of_a_task_share_a_pod_name_and_tasks_do_not(operator):
    again = pod_of(operator())
    assert pod_of(operator()).metadata.name == again.metadata.name
    assert again.metadata.name.startswith("pods-train-")
    assert pod_of(operator(), task="other").metadata.name != again.metadata.name


def test_parameters_of_the_provider_override_the_place(operator):
    pod = pod_of(operator(image="other:2", annotations={"a": "b"}, hostnetwork=True))
    assert pod.spec.containers[0].image == "other:2"
    assert pod.metadata.annotations == {"a": "b"}
    assert pod.spec.host_network is True


def test_the_pod_runs_the_shell_command_of_the_stage(operator, monkeypatch, tmp_path):
    [container] = pod_of(operator(), version="v3", source_version="v2").spec.containers
    assert container.command == ["python", "-u"]
    assert container.args[:3] == ["-m", "tasks", "train"]
    # The same command, run here: it must fail because of missing inputs in the requested version.
    ran = subprocess.run(
        [sys.executable, *container.args], capture_output=True, text=True, cwd=str(tmp_path), check=False,
        env={**__import__("os").environ, "SLUICE_STORE": str(tmp_path), "PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    assert ran.returncode == 2, shlex.join(container.args) + ran.stderr
    assert "stage train needs pods/" in ran.stderr
    assert "v2 has none" in ran.stderr


def test_overrides_are_passed_in_the_recipe(operator):
    args = pod_of(operator(), overrides={"train.steps": 7}).spec.containers[0].args
    assert json.loads(args[args.index("--recipe") + 1])["train"]["steps"] == 7


def test_no_secret_of_the_worker_gets_into_the_pod(operator, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush-hush")
    monkeypatch.setenv("SLUICE_STORE", "s3://key:hush-hush@bucket")
    assert "hush-hush" not in json.dumps(pod_of(operator()).to_dict(), default=str)


def test_template_fields_have_one_order_in_every_process(operator):
    from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator

    assert operator().template_fields == (*KubernetesPodOperator.template_fields, "recipe", "stage", "member")


def test_the_state_of_the_trigger_survives_serialization():
    from operators.pods.trigger import PodTrigger

    said = {
        "name": "p-1",
        "namespace": "n",
        "conn_id": "c",
        "queue": "q",
        "queue_s": 9.0,
        "scale_up_s": 5.0,
        "grace_s": 5,
    }
    trigger = PodTrigger(**said, deadline=7.0, restarts=2, container="base")
    path, told = trigger.serialize()
    assert path == "operators.pods.trigger.PodTrigger"
    assert json.loads(json.dumps(told)) == {**said, "deadline": 7.0, "restarts": 2, "container": "base", "alerts": {}}
    assert PodTrigger(**told).serialize() == trigger.serialize()


def test_a_successful_pod_without_an_artifact_is_an_error(operator, tmp_path):
    from operators.results import read_result
    from tasks.core.errors import InputError
    from tasks.run.recipe import find_recipe

    with pytest.raises(InputError, match="no artifact pods/checkpoint@dev"):
        read_result(find_recipe("pods"), "train", "dev")


def test_a_pod_that_adopted_its_artifact_reports_nothing_made(operator):
    from operators.results import read_result
    from tasks.core.artifact import ArtifactId
    from tasks.core.commit import adopt, commit
    from tasks.core.config import Config
    from tasks.core.stage import Output, Report
    from tasks.run.recipe import find_recipe
    from tasks.run.runner import open_store

    recipe = find_recipe("pods")
    output = Output(open_store(recipe), ArtifactId("pods/checkpoint", "dev"), "1" * 64)
    with output.part("one", conserved=False) as part, part.file("x") as file:
        file.write(b"x")
    made = commit(output, "train", 1, Config(), (), Report())
    adopt(made, ArtifactId("pods/checkpoint", "next"), ())
    assert [read_result(recipe, "train", version).skipped for version in ("dev", "next")] == [False, True]


def test_a_recipe_with_a_cluster_trains_in_pods_and_others_train_locally(recipes, dag_bag):
    recipes("pods", POD)
    recipes("here")
    bag = dag_bag()
    assert bag.import_errors == {}
    dags = bag.dags
    assert dags["pods.pretrain"].task_dict["train"].task_type == "GpuPodOperator"
    assert dags["pods.canary"].task_dict["round_1.canary"].task_type == "GpuPodOperator"
    assert dags["here.pretrain"].task_dict["train"].task_type == "StageOperator"


def test_several_nodes_train_and_tune_as_a_gang_and_canaries_in_single_pods(recipes, dag_bag):
    tuning = '[examples]\nfiles = ["/data/rows.jsonl"]\n[finetune]\nbase = "demo/checkpoint@1"\n'
    recipes("gang", tuning + POD.replace("gpus = 2", "gpus = 2\nnodes = 2"))
    bag = dag_bag()
    assert bag.import_errors == {}
    assert bag.dags["gang.pretrain"].task_dict["train"].task_type == "JobSetOperator"
    assert bag.dags["gang.finetune"].task_dict["finetune"].task_type == "JobSetOperator"
    assert bag.dags["gang.finetune"].task_dict["evaluate_tuned"].task_type == "GpuPodOperator"
    assert bag.dags["gang.canary"].task_dict["round_1.canary"].task_type == "GpuPodOperator"


def test_a_missing_cluster_description_is_an_import_error(recipes, dag_bag):
    recipes("vague", '[place.train]\nwhere = "kubernetes"\n')
    errors = dag_bag().import_errors
    assert any("there is no [place.kubernetes]" in error for error in errors.values())


def test_the_dags_of_a_cluster_can_be_stored_in_the_database(recipes, dag_bag):
    from airflow.serialization.serialized_objects import DagSerialization

    recipes("pods", POD)
    recipes("gang", POD.replace("gpus = 2", "gpus = 2\nnodes = 2"))
    for dag in dag_bag().dags.values():
        held = DagSerialization.serialize_dag(dag)
        assert json.dumps(held)
