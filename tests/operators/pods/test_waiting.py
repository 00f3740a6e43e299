"""Why a pod does not run yet, and whether waiting helps: from conditions, events, nodes and Kueue's workload."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from operators.pods.waiting import Wait, pending_reason, queue_reason

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
    """An unschedulable pod with the scheduler's reason."""
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    container = {"name": "base", "resources": {"requests": {"nvidia.com/gpu": gpus, "memory": "64Gi"}}}
    status = {"phase": "Pending", "conditions": [refused] if message else []}
    return {"metadata": {"name": "pods-train-1"}, "spec": {"containers": [container], **spec}, "status": status}


def node(name: str, gpus: str, **labels: str) -> dict:
    allocatable = {"nvidia.com/gpu": gpus, "memory": "500Gi"}
    return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": allocatable}}


def event(reason: str, message: str = "", at: str = "", by: str = "") -> dict:
    return {"reason": reason, "message": message, "lastTimestamp": at, "source": {"component": by}}


def workload(message: str, status: str = "False") -> dict:
    return {"status": {"conditions": [{"type": "QuotaReserved", "status": status, "message": message}]}}


def hopeless(wait: Wait) -> bool:
    assert wait.hopeless is None or (wait.hopeless.permanent and wait.hopeless.remedy)
    return wait.hopeless is not None


@pytest.mark.parametrize("message", [SELECTOR, TAINT])
def test_a_missing_node_pool_is_permanent(message):
    wait = pending_reason(pending(message))
    assert hopeless(wait)
    assert wait.growable, "without an autoscaler's word it may be a pool that stands at zero"
    assert "node_selector" in wait.hopeless.remedy
    assert "reemption" not in wait.reason


@pytest.mark.parametrize("message", [BUSY, DOWN, ""])
def test_busy_gpus_and_nodes_that_are_down_are_waited_for(message):
    assert not hopeless(pending_reason(pending(message)))


# Kubernetes 1.36 leaves out the keys of taints.
KEYLESS = (
    "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 1 node(s) had untolerated taint(s)."
)
NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}
TEAM = {"key": "team", "value": "nlp", "effect": "NoSchedule"}


def tainted(*taints: dict, **labels: str) -> dict:
    return {**node("gpu-1", "8", pool="gpu", **labels), "spec": {"taints": list(taints)}}


@pytest.mark.parametrize(
    "taints",
    [
        [NOT_READY],
        [NOT_READY, {"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}],
        [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}],
        [{"key": "node.cilium.io/agent-not-ready", "effect": "NoSchedule"}],
        [NOT_READY, {"key": "nvidia.com/gpu", "effect": "NoSchedule"}],  # tolerated
    ],
)
def test_a_node_that_is_not_ready_is_waited_for_without_the_keys_of_its_taints(taints):
    gpu = {"key": "nvidia.com/gpu", "operator": "Exists"}
    waits = pending(KEYLESS, nodeSelector={"pool": "gpu"}, tolerations=[gpu])
    wait = pending_reason(waits, nodes=[node("cpu-1", "0"), tainted(*taints)])
    assert not hopeless(wait)
    assert "gpu-1" in wait.reason


@pytest.mark.parametrize(
    ("taints", "pool"),
    [([TEAM], "gpu"), ([TEAM, NOT_READY], "gpu"), ([NOT_READY], "other")],
    ids=["not tolerated", "not tolerated and not ready", "another pool that is not ready"],
)
def test_a_taint_that_stays_is_a_missing_node_pool_without_its_key_too(taints, pool):
    waits = pending(KEYLESS, nodeSelector={"pool": pool})
    assert hopeless(pending_reason(waits, nodes=[node("cpu-1", "0"), tainted(*taints)]))


def test_taints_without_keys_are_waited_for_where_nodes_cannot_be_read():
    wait = pending_reason(pending(KEYLESS))
    assert not hopeless(wait)
    assert "may not list nodes" in wait.reason


def test_nodes_are_read_again_while_the_scheduler_hides_taints(monkeypatch):
    """A node becomes not ready and later ready again, while the pod waits."""
    from operators.pods.pending import PendingPodMonitor

    now, nodes, lines = [0.0], [tainted(TEAM)], []
    monkeypatch.setattr("operators.pods.pending.time.monotonic", lambda: now[0])

    class Api:
        async def list(self, kind, namespace, **_):
            return {"items": nodes if kind.plural == "nodes" else []}

    monitor = PendingPodMonitor(Api(), "ml", "", 1e9, 900.0, lines.append)
    waits = pending(KEYLESS.replace("0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 1",
                                    "0/1 nodes are available: 1"))  # fmt: skip
    waits["metadata"]["creationTimestamp"] = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    for taints in ([TEAM], [NOT_READY], [TEAM]):
        nodes[:] = [tainted(*taints)]
        assert asyncio.run(monitor.pod(waits)) is None
        now[0] += 800
    now[0] += 1000
    assert asyncio.run(monitor.pod(waits)).permanent
    assert ["not ready" in line for line in lines] == [False, True, False]


@pytest.mark.parametrize(
    "told",
    [
        event("TriggeredScaleUp", "pod triggered scale-up: [{gpu-pool 0->1 (max: 4)}]"),
        event("Nominated", "Pod should schedule on: nodeclaim/gpu-abc"),
        event("NotTriggerScaleUp", "pod didn't trigger scale-up: 1 max node group size reached"),
    ],
)
def test_an_autoscaled_pool_is_waited_for(told):
    assert not hopeless(pending_reason(pending(SELECTOR), [told]))


NO_SUCH_POOL = "pod didn't trigger scale-up: 2 node(s) didn't match Pod's node affinity/selector"
NO_SUCH_TYPE = 'Failed to schedule pod, incompatible with nodepool "default", no instance type satisfied resources'
LIMITS = 'Failed to schedule pod, all available instance types exceed limits for nodepool: "default"'


@pytest.mark.parametrize(
    "told", [event("NotTriggerScaleUp", NO_SUCH_POOL), event("FailedScheduling", NO_SUCH_TYPE, by="karpenter")]
)
def test_an_autoscaler_without_the_pool_does_not_help(told):
    wait = pending_reason(pending(SELECTOR), [told])
    assert hopeless(wait)
    assert not wait.growable


def test_an_autoscaler_at_its_limits_may_help_later():
    assert not hopeless(pending_reason(pending(SELECTOR), [event("FailedScheduling", LIMITS, by="karpenter")]))


def test_the_scheduler_is_not_an_autoscaler():
    assert pending_reason(pending(SELECTOR), [event("FailedScheduling", SELECTOR, by="default-scheduler")]).growable


def test_the_last_event_of_the_autoscaler_counts():
    grows = event("TriggeredScaleUp", "pod triggered scale-up", at="2026-11-22T10:00:00Z")
    gave_up = event("NotTriggerScaleUp", NO_SUCH_POOL, at="2026-11-22T10:05:00Z")
    assert hopeless(pending_reason(pending(SELECTOR), [gave_up, grows]))
    grows["lastTimestamp"] = "2026-11-22T10:06:00Z"
    assert not hopeless(pending_reason(pending(SELECTOR), [gave_up, grows]))


def test_another_node_does_not_fix_an_unreachable_volume():
    bound = "0/2 nodes are available: 2 node(s) didn't match PersistentVolume's node affinity."
    wait = pending_reason(pending(bound))
    assert hopeless(wait)
    assert not wait.growable


def pulls(reason: str, message: str) -> dict:
    waiting = {"name": "base", "image": "r/x:1", "state": {"waiting": {"reason": reason, "message": message}}}
    pod = pending(nodeName="n")
    pod["status"]["containerStatuses"] = [waiting]
    return pod


def pull_failed(cause: str, at: str) -> dict:
    return event("Failed", f'Failed to pull image "r/x:1": {cause}', at=f"2026-11-22T10:00:{at}Z")


AWAY = 'failed to resolve reference "r/x:1": unexpected status from HEAD request: 503 Service Unavailable'
GONE = 'failed to resolve reference "r/x:1": r/x:1: not found'


def test_an_unreachable_registry_is_waited_for_and_a_missing_image_is_not():
    assert not hopeless(pending_reason(pulls("ErrImagePull", AWAY)))
    assert not hopeless(
        pending_reason(pulls("ImagePullBackOff", f'Back-off pulling image "r/x:1": ErrImagePull: {AWAY}'))
    )
    assert hopeless(pending_reason(pulls("ErrImagePull", GONE)))


def test_a_pull_and_its_back_off_are_one_line_of_the_log():
    """The kubelet alternates between both states, and older ones name the cause only in an event."""
    said = [
        pending_reason(pulls("ErrImagePull", AWAY)),
        pending_reason(pulls("ErrImagePull", f'failed to pull image "r/x:1": {AWAY}')),
        pending_reason(pulls("ImagePullBackOff", f'Back-off pulling image "r/x:1": ErrImagePull: {AWAY}')),
        pending_reason(
            pulls(
                "ImagePullBackOff",
                f'Back-off pulling image "r/x:1": ErrImagePull: failed to pull image "r/x:1": {AWAY}',
            )
        ),
        pending_reason(pulls("ImagePullBackOff", 'Back-off pulling image "r/x:1"'), [pull_failed(AWAY, "01")]),
    ]
    assert {wait.reason for wait in said} == {f"image r/x:1 cannot be pulled (ErrImagePull): {AWAY}"}
    bare = pending_reason(pulls("ImagePullBackOff", 'Back-off pulling image "r/x:1"'))
    assert bare.reason == 'image r/x:1 cannot be pulled (ImagePullBackOff): Back-off pulling image "r/x:1"'


UNKNOWN = "dial tcp: lookup registry.example on 10.96.0.10:53: no such host"
UNTRUSTED = "tls: failed to verify certificate: x509: certificate signed by unknown authority"
HEAD = 'failed to do request: Head "https://registry.example/v2/x/manifests/1": '


@pytest.mark.parametrize("cause", [UNKNOWN, UNTRUSTED, "http: server gave HTTP response to HTTPS client"])
@pytest.mark.parametrize(
    "state", [("ErrImagePull", "{}"), ("ImagePullBackOff", 'Back-off pulling image "r/x:1": ErrImagePull: {}')]
)
def test_an_unknown_or_untrusted_registry_fails_within_minutes(cause, state, monkeypatch):
    from operators.pods.pending import START_S, PendingPodMonitor
    from operators.pods.waiting import SURE_S, UNLIKELY_S

    now = [100.0]
    monkeypatch.setattr("operators.pods.pending.time.monotonic", lambda: now[0])
    monitor = PendingPodMonitor(None, "n", "", 1000.0, 300.0, print)
    wait = pending_reason(pulls(state[0], state[1].format(HEAD + cause)))
    assert hopeless(wait)
    assert monitor.judge(wait) is None
    now[0] += SURE_S + 1
    assert monitor.judge(wait) is None, "a name server may have been restarted"
    now[0] += UNLIKELY_S - SURE_S
    assert monitor.judge(wait) is wait.hopeless
    assert UNLIKELY_S <= START_S / 10


def test_the_cause_of_a_back_off_is_read_from_events():
    backs_off = pulls("ImagePullBackOff", 'Back-off pulling image "r/x:1"')
    assert not hopeless(pending_reason(backs_off))
    assert hopeless(pending_reason(backs_off, [pull_failed(GONE, "20"), pull_failed(AWAY, "10")]))
    assert not hopeless(pending_reason(backs_off, [pull_failed(AWAY, "20"), pull_failed(GONE, "10")]))


def test_a_request_larger_than_any_matching_node_is_permanent():
    full = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    nodes = [node("a", "4", pool="gpu"), node("b", "16", pool="other")]
    small = pending_reason(pending(full, gpus="4", nodeSelector={"pool": "gpu"}), nodes=nodes)
    large = pending_reason(pending(full, gpus="8", nodeSelector={"pool": "gpu"}), nodes=nodes)
    assert not hopeless(small)
    assert hopeless(large)
    assert large.growable
    told = event("NotTriggerScaleUp", "pod didn't trigger scale-up: 1 Insufficient nvidia.com/gpu")
    assert not pending_reason(pending(full, gpus="8", nodeSelector={"pool": "gpu"}), [told], nodes).growable
    assert "requests 8 nvidia.com/gpu" in large.hopeless.reason
    assert "has 4" in large.hopeless.reason


def test_canonicalized_quantities_are_reported_in_readable_units():
    full = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    wait = pending_reason(pending(full, gpus="1k"), nodes=[node("a", "4")])
    assert "requests 1000 nvidia.com/gpu, but the largest node that it may run on has 4" in wait.hopeless.reason


def test_without_the_right_to_read_nodes_a_large_request_waits():
    assert not hopeless(pending_reason(pending("0/2 nodes are available: 2 Insufficient nvidia.com/gpu.", gpus="800")))


def test_a_missing_volume_is_permanent():
    told = event("FailedMount", 'MountVolume.SetUp failed for volume "data" : secret "data" not found')
    wait = pending_reason(pending(nodeName="gpu-1"), [told])
    assert hopeless(wait)
    assert 'secret "data" not found' in wait.reason


def test_a_slow_volume_is_not_permanent():
    told = event("FailedAttachVolume", "Multi-Attach error for volume: volume is being detached")
    assert not hopeless(pending_reason(pending(nodeName="gpu-1"), [told]))


def test_a_queued_pod_waits_for_kueue():
    busy = workload(
        "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu, 2 more needed"
    )
    wait = queue_reason(busy)
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
def test_a_queue_that_can_never_admit_is_permanent(message):
    wait = queue_reason(workload(message))
    assert hopeless(wait)
    assert "Kueue" in wait.hopeless.reason


def test_a_queue_without_a_status_is_waited_for():
    assert not hopeless(queue_reason(None))
    assert not hopeless(queue_reason(workload("Quota reserved in ClusterQueue training", "True")))


def test_the_patience_with_a_cause_depends_on_autoscaling(monkeypatch):
    from operators.pods.failure import PodFailure
    from operators.pods.pending import SURE_S, PendingPodMonitor

    now = [100.0]
    monkeypatch.setattr("operators.pods.pending.time.monotonic", lambda: now[0])
    said: list[str] = []
    patience = PendingPodMonitor(None, "n", "", 1000.0, 300.0, said.append)
    failure = PodFailure("config", "no node", True)
    zero, never = Wait("no node yet", failure, growable=True), Wait("no node yet", failure)
    assert patience.judge(zero) is None
    assert said == ["no node yet [if no autoscaler adds a node within 300 s, the task fails]"]
    now[0] += 299
    assert patience.judge(zero) is None
    assert patience.judge(never) is None, "the autoscaler has only just spoken"
    now[0] += SURE_S
    assert patience.judge(never) is failure
    assert patience.judge(zero) is None
    now[0] += 300
    assert patience.judge(zero) is failure
