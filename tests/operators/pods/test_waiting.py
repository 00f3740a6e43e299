"""Why a pod does not run yet, and whether it is worth waiting: from conditions, events, nodes and Kueue's workload."""

from typing import Any

import pytest

from operators.pods.waiting import Wait, why_queued, why_waiting

SELECTOR = (
    "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector. "
    "preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
)
TAINT = (
    "0/2 nodes are available: 1 node(s) had untolerated taint {team: nlp}, "
    "1 node(s) didn't match Pod's node affinity/selector."
)
BUSY = "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 2 node(s) didn't match Pod's node affinity/selector."
DOWN = (
    "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, "
    "1 node(s) had untolerated taint {node.kubernetes.io/unreachable: }."
)


def pending(message: str = "", gpus: str = "2", **spec: Any) -> dict:
    """A pod that the scheduler has not placed, for the reason it gives."""
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    container = {"name": "base", "resources": {"requests": {"nvidia.com/gpu": gpus, "memory": "64Gi"}}}
    status = {"phase": "Pending", "conditions": [refused] if message else []}
    return {"metadata": {"name": "pods-train-1"}, "spec": {"containers": [container], **spec}, "status": status}


def node(name: str, gpus: str, **labels: str) -> dict:
    allocatable = {"nvidia.com/gpu": gpus, "memory": "500Gi"}
    return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": allocatable}}


def event(reason: str, message: str = "") -> dict:
    return {"reason": reason, "message": message}


def workload(message: str, status: str = "False") -> dict:
    return {"status": {"conditions": [{"type": "QuotaReserved", "status": status, "message": message}]}}


def hopeless(wait: Wait) -> bool:
    assert wait.hopeless is None or (wait.hopeless.permanent and wait.hopeless.remedy)
    return wait.hopeless is not None


@pytest.mark.parametrize("message", [SELECTOR, TAINT])
def test_a_node_pool_that_does_not_exist_is_hopeless(message):
    wait = why_waiting(pending(message))
    assert hopeless(wait)
    assert "node_selector" in wait.hopeless.remedy
    assert "reemption" not in wait.reason


@pytest.mark.parametrize("message", [BUSY, DOWN, ""])
def test_a_gpu_that_is_taken_and_a_node_that_is_down_are_worth_waiting_for(message):
    assert not hopeless(why_waiting(pending(message)))


@pytest.mark.parametrize(
    "told",
    [
        event("TriggeredScaleUp", "pod triggered scale-up: [{gpu-pool 0->1 (max: 4)}]"),
        event("Nominated", "Pod should schedule on: nodeclaim/gpu-abc"),
        event("NotTriggerScaleUp", "pod didn't trigger scale-up: 1 max node group size reached"),
    ],
)
def test_a_pool_that_an_autoscaler_fills_is_worth_waiting_for(told):
    assert not hopeless(why_waiting(pending(SELECTOR), [told]))


def test_an_autoscaler_that_knows_no_such_pool_does_not_help():
    told = event(
        "NotTriggerScaleUp", "pod didn't trigger scale-up: 2 node(s) didn't match Pod's node affinity/selector"
    )
    assert hopeless(why_waiting(pending(SELECTOR), [told]))


def test_a_request_larger_than_any_node_of_its_kind_is_hopeless():
    full = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    nodes = [node("a", "4", pool="gpu"), node("b", "16", pool="other")]
    small = why_waiting(pending(full, gpus="4", nodeSelector={"pool": "gpu"}), nodes=nodes)
    large = why_waiting(pending(full, gpus="8", nodeSelector={"pool": "gpu"}), nodes=nodes)
    assert not hopeless(small)
    assert hopeless(large)
    assert "asks for 8 nvidia.com/gpu" in large.hopeless.reason
    assert "has 4" in large.hopeless.reason


def test_without_the_right_to_read_nodes_a_large_request_waits():
    assert not hopeless(why_waiting(pending("0/2 nodes are available: 2 Insufficient nvidia.com/gpu.", gpus="800")))


def test_a_volume_that_does_not_exist_is_hopeless():
    told = event("FailedMount", 'MountVolume.SetUp failed for volume "data" : secret "data" not found')
    wait = why_waiting(pending(nodeName="gpu-1"), [told])
    assert hopeless(wait)
    assert 'secret "data" not found' in wait.reason


def test_a_volume_that_takes_its_time_is_not():
    told = event("FailedAttachVolume", "Multi-Attach error for volume: volume is being detached")
    assert not hopeless(why_waiting(pending(nodeName="gpu-1"), [told]))


def test_a_pod_in_a_kueue_queue_waits_its_turn():
    busy = workload(
        "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu, 2 more needed"
    )
    wait = why_queued(busy)
    assert not hopeless(wait)
    assert "2 more needed" in wait.reason


@pytest.mark.parametrize(
    "message",
    [
        "couldn't assign flavors to pod set main: insufficient quota for nvidia.com/gpu in flavor gpu, previously "
        "considered podsets requests (0) + current podset request (8) > maximum capacity (4)",
        "LocalQueue gpus doesn't exist",
        "ClusterQueue training is inactive",
    ],
)
def test_a_queue_that_could_never_admit_is_hopeless(message):
    wait = why_queued(workload(message))
    assert hopeless(wait)
    assert "Kueue" in wait.hopeless.reason


def test_a_queue_that_says_nothing_yet_is_waited_for():
    assert not hopeless(why_queued(None))
    assert not hopeless(why_queued(workload("Quota reserved in ClusterQueue training", "True")))
