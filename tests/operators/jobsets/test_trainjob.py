"""The TrainJob of a gang and its TrainingRuntime: together they are the JobSet that is written without Trainer."""

import copy

import pytest
from kubernetes.client import models as k8s

from operators.jobsets.manifest import jobset
from operators.jobsets.trainjob import NODE, training_runtime, trainjob
from operators.jobsets.trigger import terminal_state
from operators.places import training_operator
from operators.pods.spec import place_of, stage_pod
from tests.operators.pods.test_spec import TEMPLATE, recipe_at

NAME = "pods-train-0123456789-1"
PLACE = {"nodes": 3, "max_restarts": 5, "gang": "trainjob"}


def stage(recipe) -> k8s.V1Pod:
    pod = stage_pod(recipe, "train")
    pod.spec.containers[0].args = ["-m", "tasks", "train"]
    return pod


def written(**place) -> dict:
    recipe = recipe_at(**{**PLACE, **place})
    return trainjob(stage(recipe), NAME, place_of(recipe), nproc=recipe.place.train.nproc)


def started_by_trainer(job: dict, runtime: dict) -> dict:
    """Returns the spec of the JobSet that Trainer makes: the runtime, the job's `trainer`, then its patches."""
    spec = copy.deepcopy(runtime["spec"]["template"]["spec"])
    [group] = spec["replicatedJobs"]
    inner = group["template"]["spec"]
    given = job["spec"]["trainer"]
    inner["completions"] = inner["parallelism"] = given["numNodes"]
    container = inner["template"]["spec"]["containers"][0]
    container.update({name: given[name] for name in ("image", "command", "args", "env")})
    container["resources"] = given["resourcesPerNode"]
    [patch] = job["spec"]["runtimePatches"]
    [patched] = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    assert patched["name"] == group["name"]
    inner["template"]["metadata"].setdefault("labels", {}).update(
        patched["template"]["spec"]["template"]["metadata"]["labels"]
    )
    inner["template"]["spec"].update(patched["template"]["spec"]["template"]["spec"])
    return spec


@pytest.mark.parametrize("queue", ["gpus", ""])
def test_trainer_defines_every_field_of_the_job(queue, definitions):
    assert definitions.errors(written(queue=queue)) == []


def test_a_misspelled_field_is_found(definitions):
    job = written()
    job["spec"]["trainer"]["numNode"] = job["spec"]["trainer"].pop("numNodes")
    assert "numNode" in definitions.errors(job)[0]


def test_jobset_defines_every_field_of_the_runtime(definitions):
    runtime = training_runtime(recipe_at(**PLACE))
    made = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "x"}}
    assert definitions.errors({**made, "spec": runtime["spec"]["template"]["spec"]}) == []


@pytest.mark.parametrize("template", [False, True])
def test_runtime_and_job_together_are_the_jobset_without_trainer(template, tmp_path):
    path = tmp_path / "trainer.yaml"
    path.write_text(TEMPLATE)
    more = {"template": str(path)} if template else {}
    recipe = recipe_at(**PLACE, **more)
    expected = jobset(stage(recipe), NAME, place_of(recipe), recipe.place.train.nproc)["spec"]
    del expected["network"]["subdomain"], expected["suspend"]
    [group] = expected["replicatedJobs"]
    group["template"]["metadata"] = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    inner = group["template"]["spec"]
    inner["podFailurePolicy"]["rules"][0]["onExitCodes"]["containerName"] = NODE
    container = inner["template"]["spec"]["containers"][0]
    container["name"] = NODE
    container["env"] = [one for one in container["env"] if not one["name"].startswith("PET_")]
    assert started_by_trainer(written(**more), training_runtime(recipe)) == expected


def test_trainer_sets_the_settings_of_torchrun():
    job = written(env={"PET_NNODES": "1"})
    assert (job["spec"]["trainer"]["numNodes"], job["spec"]["trainer"]["numProcPerNode"]) == (3, 2)
    assert not [one for one in job["spec"]["trainer"]["env"] if one["name"].startswith("PET_")]
    assert training_runtime(recipe_at(**PLACE))["spec"]["mlPolicy"]["torch"] == {}


def test_kueue_queues_the_trainjob_alone():
    job = written()
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert job["spec"]["suspend"] is True
    assert "kueue" not in str(job["spec"]["runtimePatches"])
    assert "suspend" not in training_runtime(recipe_at(**PLACE))["spec"]["template"]["spec"]


def test_the_job_refers_to_the_runtime_that_the_place_names():
    job, runtime = written(training_runtime="ours"), training_runtime(recipe_at(**PLACE, training_runtime="ours"))
    assert job["spec"]["runtimeRef"] == {"kind": runtime["kind"], "name": runtime["metadata"]["name"]}
    assert runtime["metadata"]["namespace"] == job["metadata"]["namespace"]


def test_the_place_chooses_jobset_or_trainjob():
    names = {gang: training_operator(recipe_at(nodes=2, gang=gang)).__name__ for gang in ("jobset", "trainjob")}
    assert names == {"jobset": "JobSetOperator", "trainjob": "TrainJobOperator"}
    assert training_operator(recipe_at(nodes=1, gang="trainjob")).__name__ == "GpuPodOperator"


@pytest.mark.parametrize(("condition", "state"), [("Complete", "Completed"), ("Failed", "Failed"), ("Suspended", "")])
def test_the_end_of_a_trainjob_is_its_condition(condition, state):
    assert terminal_state({"status": {"conditions": [{"type": condition, "status": "True"}]}}) == state
    assert terminal_state({"status": {"conditions": [{"type": condition, "status": "False"}]}}) == ""
