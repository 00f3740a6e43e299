"""The operators of pods and gangs: their objects, the command in these, and the result of the task when they end."""

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
    from operators import kubernetes_stage

    recipes("pods", POD)
    task = {"task_id": "train", "recipe": "pods", "stage": "train"}
    return lambda kind="GpuPodOperator": getattr(kubernetes_stage, kind)(**task)


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


KINDS = ("GpuPodOperator", "JobSetOperator", "TrainJobOperator")


def object_of(operator, **params):
    return operator.manifest("pods-train-1", context(**params))


def args_of(operator, **params):
    return object_of(operator, **params)["spec"]["containers"][0]["args"]


@pytest.mark.parametrize("kind", KINDS)
def test_all_tries_of_a_task_share_a_name_and_tasks_do_not(operator, kind):
    def name(task="train"):
        claim = operator(kind).claim(context(task=task), "training")
        return claim.owner.name(claim.prefix, 1)

    assert name() == name()
    assert name().startswith("pods-train-")
    assert name(task="other") != name()


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_has_the_labels_of_its_task(operator, kind):
    labels = object_of(operator(kind))["metadata"]["labels"]
    expected = {"dag_id": "pods.pretrain", "task_id": "train", "run_id": "manual__2026", "try_number": "1"}
    assert labels.items() >= {**expected, "sluice/stage": "train", "kueue.x-k8s.io/queue-name": "gpus"}.items()
    assert "airflow_version" in labels


@pytest.mark.parametrize("kind", KINDS)
def test_a_later_try_adopts_the_object_of_an_earlier_one(operator, kind):
    one, other = context(), context()
    other["ti"].try_number = 2
    made = operator(kind).claim(one, "training")._manifest("pods-train-1")
    assert operator(kind).claim(other, "training")._mismatch(made) == ""


def test_a_pod_passes_the_mutation_hook_of_airflow(operator, monkeypatch):
    def hook(pod):
        pod.metadata.annotations = {"seen": pod.metadata.labels["task_id"]}

    monkeypatch.setattr("airflow.settings.pod_mutation_hook", hook)
    assert object_of(operator())["metadata"]["annotations"] == {"seen": "train"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_that_is_killed_while_its_object_starts_deletes_it(operator, kind, monkeypatch):
    from airflow.sdk.exceptions import AirflowException

    one, deleted = operator(kind), []

    def take(claim, api):
        one.on_kill()  # Airflow calls it in a signal handler
        return {"metadata": {"name": "pods-train-1"}}

    monkeypatch.setattr("operators.kubernetes_stage.take_object", take)
    monkeypatch.setattr("operators.kubernetes_stage.delete_object", lambda claim, api, name: deleted.append(name))
    with pytest.raises(AirflowException, match=r"ended while its .* was being started"):
        one.execute(context())
    assert deleted == ["pods-train-1"]


def test_the_pod_runs_the_shell_command_of_the_stage(operator, monkeypatch, tmp_path):
    args = args_of(operator(), version="v3", source_version="v2")
    assert args[:3] == ["-m", "tasks", "train"]
    # The same command, run here: it must fail because of missing inputs in the requested version.
    ran = subprocess.run(
        [sys.executable, *args], capture_output=True, text=True, cwd=str(tmp_path), check=False,
        env={**__import__("os").environ, "SLUICE_STORE": str(tmp_path), "PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    assert ran.returncode == 2, shlex.join(args) + ran.stderr
    assert "stage train needs pods/" in ran.stderr
    assert "v2 has none" in ran.stderr


def test_overrides_are_passed_in_the_recipe(operator):
    args = args_of(operator(), overrides={"train.steps": 7})
    assert json.loads(args[args.index("--recipe") + 1])["train"]["steps"] == 7


def test_no_secret_of_the_worker_gets_into_the_pod(operator, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush-hush")
    monkeypatch.setenv("SLUICE_STORE", "s3://key:hush-hush@bucket")
    assert "hush-hush" not in json.dumps(object_of(operator()))


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
    place = POD.replace("gpus = 2", "gpus = 2\nnodes = 2")
    recipes("gang", place)
    recipes("tuned", f'[examples]\nfiles = ["/data/rows.jsonl"]\n[finetune]\nbase = "gang/checkpoint@1"\n{place}')
    bag = dag_bag()
    assert bag.import_errors == {}
    assert bag.dags["gang.pretrain"].task_dict["train"].task_type == "JobSetOperator"
    assert bag.dags["tuned.finetune"].task_dict["finetune"].task_type == "JobSetOperator"
    assert bag.dags["tuned.finetune"].task_dict["evaluate_tuned"].task_type == "GpuPodOperator"
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
