"""The JobSet of a gang: fields for JobSet, Kueue, Kubernetes and torchrun."""

import json
import re

import kubernetes_validate
import pytest

from operators.jobsets.manifest import jobset, rank_zero
from operators.pods.owner import NAME_LENGTH, Owner
from operators.pods.spec import place_of, stage_pod
from tests.operators.pods.test_spec import TEMPLATE, recipe_at

NAME = "pods-train-0123456789-1"


def gang(name: str = NAME, **place) -> dict:
    recipe = recipe_at(**{"nodes": 3, "max_restarts": 5, **place})
    pod = stage_pod(recipe, "train")
    pod.spec.containers[0].args = ["-m", "tasks", "train"]
    return jobset(pod, name, place_of(recipe), nproc=4)


def job_of(made: dict) -> dict:
    [group] = made["spec"]["replicatedJobs"]
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": group["template"]["spec"]}


def env_of(made: dict) -> dict[str, dict]:
    [container, *_] = job_of(made)["spec"]["template"]["spec"]["containers"]
    assert len({one["name"] for one in container["env"]}) == len(container["env"])
    return {one["name"]: one for one in container["env"]}


@pytest.mark.parametrize("queue", ["gpus", ""])
def test_jobset_defines_every_field(queue, definitions):
    assert definitions.errors(gang(queue=queue)) == []


def test_a_misspelled_field_is_found(definitions):
    made = gang()
    made["spec"]["failurePolicy"]["maxRestart"] = made["spec"]["failurePolicy"].pop("maxRestarts")
    assert "maxRestart" in definitions.errors(made)[0]


def test_kubernetes_defines_every_field_of_the_inner_job(tmp_path):
    path = tmp_path / "trainer.yaml"
    path.write_text(TEMPLATE)
    kubernetes_validate.validate(job_of(gang()), "1.36", strict=True)
    kubernetes_validate.validate(job_of(gang(template=str(path))), "1.36", strict=True)


def test_all_nodes_start_together_and_once():
    spec = job_of(gang())["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (3, 3, "Indexed")
    assert spec["backoffLimit"] == 0
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


def test_torchrun_finds_its_settings():
    env = env_of(gang())
    assert env["PET_NNODES"]["value"] == "3"
    assert env["PET_NPROC_PER_NODE"]["value"] == "4"
    assert env["PET_MASTER_ADDR"]["value"] == rank_zero(NAME) == f"{NAME}-node-0-0.{NAME}"
    path = env["PET_NODE_RANK"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def test_the_place_cannot_override_settings_of_torchrun():
    assert env_of(gang(env={"PET_NNODES": "1"}))["PET_NNODES"]["value"] == "3"


def test_host_names_resolve_before_the_pods_are_ready():
    network = gang()["spec"]["network"]
    assert network == {"enableDNSHostnames": True, "subdomain": NAME, "publishNotReadyAddresses": True}


def test_the_longest_name_still_makes_host_names_of_63_characters():
    owner = Owner("a" * 200, "scheduled__2026-11-21T00:00:00+00:00", "train", -1)
    name = owner.name("a-recipe-with-a-very-long-name" * 5, 999)
    assert len(name) <= NAME_LENGTH
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
    # A pod of the 1000th node: <jobset>-node-0-999-xxxxx; the host name omits the random suffix.
    assert len(f"{name}-node-0-999-abcde") <= 63


def test_kueue_queues_the_gang_and_not_its_pods():
    made = gang()
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert made["spec"]["suspend"] is True
    assert "kueue" not in json.dumps(job_of(made))


def test_ranks_prefer_one_zone_unless_the_template_overrides_it(tmp_path):
    affinity = job_of(gang())["spec"]["template"]["spec"]["affinity"]
    [near] = affinity["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert near["podAffinityTerm"]["topologyKey"] == "topology.kubernetes.io/zone"
    assert near["podAffinityTerm"]["labelSelector"] == {"matchLabels": {"jobset.sigs.k8s.io/jobset-name": NAME}}
    path = tmp_path / "trainer.yaml"
    own = "podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: rack}]}"
    path.write_text(TEMPLATE.replace("spec:\n", f"spec:\n  affinity: {{{own}}}\n", 1))
    affinity = job_of(gang(template=str(path)))["spec"]["template"]["spec"]["affinity"]
    assert set(affinity) == {"podAntiAffinity"}


def test_without_a_queue_the_gang_starts_at_once():
    made = gang(queue="")
    assert "suspend" not in made["spec"]
    assert "kueue" not in json.dumps(made)


def test_a_permanent_error_is_not_restarted_and_an_eviction_does_not_count():
    policy = gang()["spec"]["failurePolicy"]
    assert policy["maxRestarts"] == 5

    def action(reason: str, message: str) -> str:
        for rule in policy["rules"]:
            patterns = rule.get("onJobFailureMessagePatterns")
            met = patterns is None or any(re.search(one, message) for one in patterns)
            if met and reason in rule["onJobFailureReasons"]:
                return rule["action"]
        return "RestartJobSet"

    # The message of Kubernetes for a job ended by its pod failure policy.
    bad = "Container base for pod ml/g-node-0-1-x failed with exit code 2 matching FailJob rule at index 0"
    evicted = "Pod ml/g-node-0-1-x has condition DisruptionTarget matching FailJob rule at index 1"
    assert action("PodFailurePolicy", bad) == "FailJobSet"
    assert action("PodFailurePolicy", evicted) == "RestartJobSetAndIgnoreMaxRestarts"
    assert action("BackoffLimitExceeded", "Job has reached the specified backoff limit") == "RestartJobSet"


def test_the_job_distinguishes_permanent_errors_from_evictions():
    bad, evicted = job_of(gang())["spec"]["podFailurePolicy"]["rules"]
    assert bad["onExitCodes"] == {"containerName": "base", "operator": "In", "values": [2]}
    assert evicted["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert {bad["action"], evicted["action"]} == {"FailJob"}


def test_no_pod_of_an_old_gang_runs_beside_the_new_one():
    assert gang()["spec"]["failurePolicy"]["restartStrategy"] == "BlockingRecreate"
