"""Why a pod ended: each class of failure, from pods in the format of Kubernetes."""

import copy
from typing import Any

import pytest

from operators.pods.failure import PodFailure, deletion_failure, failure_of, has_succeeded, start_failure

RUNNING: dict[str, Any] = {
    "metadata": {"name": "pods-train-1", "namespace": "training", "uid": "u1"},
    "spec": {
        "nodeName": "gpu-7",
        "containers": [{"name": "base", "resources": {"limits": {"memory": "64Gi"}}}],
    },
    "status": {
        "phase": "Running",
        "conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}],
        "containerStatuses": [
            {"name": "base", "image": "trainer:1", "state": {"running": {"startedAt": "2026-11-01T08:00:00Z"}}}
        ],
    },
}
LAST = "step 40\nsluice: stage train needs pods/mixture@dev, which is not in s3://b. Run decide first.\n"


def ended(
    code: int, reason: str = "Error", phase: str = "Failed", message: str = LAST, status: dict | None = None
) -> dict:
    """A pod whose container exited with `code`; `status` has further fields of its status."""
    pod = copy.deepcopy(RUNNING)
    state = {"exitCode": code, "reason": reason, "message": message, "finishedAt": "2026-11-01T09:00:00Z"}
    pod["status"]["phase"] = phase
    pod["status"]["containerStatuses"][0]["state"] = {"terminated": state}
    pod["status"].update(status or {})
    return pod


def waiting(reason: str, message: str) -> dict:
    """A Pending pod whose container waits."""
    pod = copy.deepcopy(RUNNING)
    pod["status"]["phase"] = "Pending"
    pod["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": reason, "message": message}}
    return pod


def disrupted(reason: str, message: str = "") -> dict:
    """The condition of Kubernetes for the cause of a disruption."""
    return {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}]}


def failure(pod: dict) -> PodFailure:
    found = failure_of(pod, "base")
    assert found is not None
    return found


def test_a_running_or_finished_pod_has_not_failed():
    assert failure_of(RUNNING, "base") is None
    done = ended(0, "Completed", "Succeeded")
    assert failure_of(done, "base") is None
    assert has_succeeded(done, "base")


def test_a_finished_stage_counts_as_finished_beside_a_running_sidecar():
    pod = ended(0, "Completed", "Running")
    pod["status"]["containerStatuses"].append({"name": "proxy", "state": {"running": {}}})
    assert has_succeeded(pod, "base")


def test_exit_2_is_final_with_the_message_of_the_stage():
    found = failure(ended(2))
    assert (found.kind, found.permanent, found.exit_code) == ("config", True, 2)
    assert str(found) == "stage train needs pods/mixture@dev, which is not in s3://b. Run decide first."


def test_exit_2_takes_its_message_from_the_log_if_the_pod_has_none():
    found = failure_of(ended(2, message=""), "base", tail=["sluice: no seeds. Name some."])
    assert found is not None
    assert found.reason == "no seeds. Name some."


def test_another_exit_code_is_retried_and_shows_the_last_lines():
    found = failure(ended(1))
    assert (found.kind, found.permanent, found.exit_code) == ("exit", False, 1)
    assert found.last_lines[0] == "step 40"
    assert found.reason.startswith("pod pods-train-1 ended with exit code 1: sluice: stage train needs")


def test_out_of_memory_names_the_limit_and_the_remedy():
    found = failure(ended(137, "OOMKilled"))
    assert (found.kind, found.permanent) == ("oom", False)
    assert "limit 64Gi" in found.reason
    assert "memory" in found.remedy


def test_sigkill_without_a_reason_is_not_out_of_memory():
    assert failure(ended(137)).kind == "killed"
    assert failure(ended(139)).reason.endswith("killed by signal 11")


def test_a_trainer_stopped_by_sigterm_is_retried():
    found = failure(ended(143))
    assert (found.kind, found.permanent) == ("killed", False)
    assert "saved a checkpoint" in found.reason


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ({"reason": "Evicted", "message": "The node was low on resource: memory."}, "evicted"),
        (disrupted("EvictionByEvictionAPI", "Eviction API: evicting"), "evicted"),
        (disrupted("TerminationByKubelet", "Pod was terminated in response to imminent node shutdown."), "evicted"),
        (disrupted("PreemptionByScheduler", "default-scheduler: preempting"), "preempted"),
        ({"conditions": [{"type": "TerminationTarget", "status": "True", "reason": "WorkloadPreempted"}]}, "preempted"),
        (disrupted("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"), "node_lost"),
        (disrupted("DeletionByPodGC", "PodGC: node no longer exists"), "node_lost"),
        ({"reason": "NodeLost", "message": "Node gpu-7 which was running pod is unresponsive"}, "node_lost"),
    ],
)  # fmt: skip
def test_eviction_outranks_the_message_of_the_trainer(status: dict, kind: str):
    found = failure(ended(143, status=status))
    assert (found.kind, found.permanent) == (kind, False)
    assert "gpu-7" in found.reason


def test_a_pod_that_was_evicted_before_it_ran_is_evicted():
    pod = copy.deepcopy(RUNNING)
    pod["status"] = {
        "phase": "Failed",
        "reason": "Evicted",
        "message": "The node was low on resource: memory.",
    }
    assert failure(pod).kind == "evicted"


def test_out_of_memory_outranks_eviction():
    assert failure(ended(137, "OOMKilled", status=disrupted("EvictionByEvictionAPI"))).kind == "oom"


def test_a_command_that_cannot_start_is_final():
    found = failure(ended(128, "StartError", message='exec: "python": executable file not found in $PATH'))
    assert (found.kind, found.permanent) == ("config", True)
    assert "python" in found.reason


def test_a_failed_init_container_is_named():
    pod = copy.deepcopy(RUNNING)
    init = {"name": "fetch", "state": {"terminated": {"exitCode": 4, "message": "no token\n"}}}
    pod["status"] = {"phase": "Failed", "initContainerStatuses": [init]}
    assert failure(pod).reason == "init container fetch ended with 4"


@pytest.mark.parametrize(
    ("reason", "message", "permanent"),
    [
        ("ImagePullBackOff", 'Back-off pulling image "trainer:9": ErrImagePull: manifest unknown', True),
        ("ErrImagePull", "failed to resolve reference: pull access denied, repository does not exist", True),
        ("ErrImagePull", "failed to do request: dial tcp 10.0.0.1:443: i/o timeout", False),
        ("ErrImagePull", "failed to do request: dial tcp: lookup r on 10.96.0.10:53: server misbehaving", False),
        ("ErrImagePull", "failed to do request: dial tcp: lookup r on 10.96.0.10:53: no such host", True),
        ("ErrImagePull", "tls: failed to verify certificate: x509: certificate signed by unknown authority", True),
        ("InvalidImageName", 'Failed to apply default image tag "Trainer:1"', True),
    ],
)
def test_a_missing_image_is_final_and_an_unreachable_registry_is_not(reason, message, permanent):
    found = start_failure(waiting(reason, message))
    assert found is not None
    assert (found.kind, found.permanent) == ("image", permanent)
    assert "trainer:1" in found.reason
    assert found.remedy


def test_a_missing_secret_is_final():
    found = start_failure(waiting("CreateContainerConfigError", 'secret "s3-keys" not found'))
    assert found is not None
    assert (found.kind, found.permanent) == ("config", True)
    assert 's3-keys" not found' in found.reason


def test_a_starting_container_is_not_blocked():
    assert start_failure(waiting("ContainerCreating", "")) is None


def test_a_deleted_pod_is_explained_by_its_last_known_status():
    assert deletion_failure(RUNNING).kind == "killed"
    assert (
        deletion_failure({**RUNNING, "status": {**RUNNING["status"], **disrupted("PreemptionByScheduler")}}).kind
        == "preempted"
    )


def test_a_failure_survives_serialization_to_the_metadata_database():
    found = failure(ended(1))
    assert PodFailure.from_json(found.to_json()) == found
