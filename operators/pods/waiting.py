"""Reasons of pending pods, and whether waiting can help.

Waiting for a free GPU and waiting in a Kueue queue are normal and limited by `queue_s`. An exceeded quota or a missing
volume is an error, which is reported after `SURE_S`, well within a minute. So is a node pool that a cluster autoscaler
reports as impossible. Without such a report, a pool with zero nodes looks like one that does not exist, and the place's
`scale_up_s` is the limit. For an image that cannot be pulled at present (its registry returns 503) the limit is that of
a start; for a registry whose name is unknown or whose certificate is not trusted, it is `UNLIKELY_S`.

Reads events of the pod, the nodes and Kueue's workload, as far as Airflow has the rights to read them.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from operators.pods.failure import Object, PodFailure, condition_of, registry_unreachable, start_failure

SURE_S = 30.0
"""Seconds a cause must persist before it is reported: an autoscaler takes 10 to 30 s to react."""

UNLIKELY_S = 180.0
"""The same for a cause that seldom disappears: the name service of a node restarts within this time."""

_NODES = re.compile(r"(\d+)/(\d+) nodes are available: (.*)", re.S)
_PREEMPTION = re.compile(r" (?:no new claims to deallocate,? ?)?preemption:")
_TAINTED = "had untolerated taint"
_NEVER_NODE = ("didn't match Pod's node affinity", "didn't match node selector", _TAINTED)
_NEVER_VOLUME = ("didn't match PersistentVolume's node affinity", "didn't find available persistent volumes")
_PASSING_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/", "cluster-autoscaler",
                   "ClusterAutoscaler", "karpenter.sh/", "agent-not-ready")  # fmt: skip
_GROWING = ("TriggeredScaleUp", "Nominated", "NodeClaimCreated")
_NOT_GROWING = ("NotTriggerScaleUp", "FailedScheduling")
_KARPENTER = "karpenter"
_POOL_FULL = ("max node group size reached", "in backoff", "limits exceeded", "exceed limits")
_BROKEN = ("FailedMount", "FailedAttachVolume", "FailedCreate", "FailedCreatePodSandBox")
_INADMISSIBLE = ("maximum capacity", "doesn't exist", "does not exist", "is inactive", "is stopped", "not found",
                 "unavailable in clusterqueue", "namespace doesn't match")  # fmt: skip
_MISSING = ("not found", "exceeded quota", "forbidden", "no such")


@dataclass(frozen=True)
class Wait:
    """Why a pod waits.

    Args:
        reason: description for the log.
        hopeless: the failure if waiting will not help; None if it may.
        growable: another node would help, and no autoscaler has reported yet.
        unlikely: waiting may help for some minutes but not longer.
    """

    reason: str
    hopeless: PodFailure | None = None
    growable: bool = False
    unlikely: bool = False


def pending_reason(pod: Object, events: Iterable[Object] = (), nodes: Sequence[Object] = ()) -> Wait:
    """Returns why a pending pod that is not suspended by a queue does not run.

    Args:
        pod: the pod as JSON.
        events: events about the pod.
        nodes: all nodes as they are now, or none if Airflow may not read them.
    """
    events = sorted(events, key=_when)
    failure = start_failure(pod, _last_pull(events))
    if failure:
        return Wait(failure.reason, failure if failure.permanent else None, unlikely=registry_unreachable(failure))
    if condition_of(pod, "PodScheduled", "False"):
        return _unscheduled(unscheduled_message(pod), pod, events, nodes)
    missing = missing_dependency(events)
    if missing:
        return Wait(missing.reason, missing)
    node = (pod.get("spec") or {}).get("nodeName")
    return Wait(f"starting on {node}" if node else "not scheduled yet")


def queue_reason(workload: Object | None) -> Wait:
    """Returns why Kueue suspends an object; the wait is hopeless if the queue can never admit it."""
    conditions = ((workload or {}).get("status") or {}).get("conditions") or []
    reserved = next((condition for condition in conditions if condition["type"] == "QuotaReserved"), None)
    message = " ".join(str((reserved or {}).get("message") or "").split())
    if not message or (reserved and reserved["status"] == "True"):
        return Wait("waiting in its Kueue queue")
    reason = f"waiting in its Kueue queue: {message}"
    lowered = message.lower()
    if any(word in lowered for word in _INADMISSIBLE):
        remedy = "check [place.kubernetes] queue against the LocalQueue of the namespace and its ClusterQueue's quota"
        return Wait(reason, PodFailure("config", f"Kueue will not admit it: {message}", True, remedy))
    return Wait(reason)


def missing_dependency(events: Iterable[Object]) -> PodFailure | None:
    """Returns the failure for the first event about a missing volume, quota or right, or None."""
    for event in events:
        message = " ".join(str(event.get("message") or "").split())
        if event.get("reason") in _BROKEN and any(word in message.lower() for word in _MISSING):
            remedy = "create what is missing in the pod's namespace, or correct [place.kubernetes] and its template"
            if "exceeded quota" in message:
                remedy = "request less, or raise the quota of the namespace"
            return PodFailure("config", f"{event['reason']}: {message}", True, remedy)
    return None


def _unscheduled(message: str, pod: Object, events: list[Object], nodes: Sequence[Object]) -> Wait:
    message = _PREEMPTION.split(" ".join(message.split()))[0].rstrip(" ,")
    reason = f"no node fits yet: {message}" if message else "not scheduled yet"
    if hides_taints(message):
        passing = [node["metadata"]["name"] for node in nodes if _tainted_for_now(node, pod)]
        if not nodes:
            # Perhaps a node that is not ready, perhaps a missing toleration: to fail, it must be known.
            return Wait(f"{reason} [which taints is unknown, because Airflow may not list nodes]")
        if passing:
            return Wait(f"{reason} [not ready, or about to leave: {', '.join(sorted(passing))}]")
    report = _autoscaler_report(events)
    if report == "growing":
        return Wait(reason)
    growable = not report and not _all_excluded(message, _NEVER_VOLUME)
    if _all_excluded(message, _NEVER_NODE + _NEVER_VOLUME):
        remedy = "check [place.kubernetes] node_selector and tolerations against the labels and taints of the nodes"
        cause = f"no node of this cluster can take the pod: {message}"
        return Wait(reason, PodFailure("config", cause, True, remedy), growable)
    too_large = _oversized_request(pod, nodes)
    if too_large:
        remedy = "request less per pod, or name a node pool with larger nodes"
        return Wait(reason, PodFailure("config", too_large, True, remedy), growable)
    return Wait(reason)


def _autoscaler_report(events: Sequence[Object]) -> str:
    """Returns the last report of a cluster autoscaler: "growing" (or temporarily full), "no", or "" without one."""
    for event in reversed(events):
        reason, message = event.get("reason"), str(event.get("message") or "")
        if reason in _GROWING:
            return "growing"
        reporter = f"{(event.get('source') or {}).get('component', '')} {event.get('reportingComponent', '')}"
        if reason in _NOT_GROWING and (reason != "FailedScheduling" or _KARPENTER in reporter):
            return "growing" if any(word in message for word in _POOL_FULL) else "no"
    return ""


def _all_excluded(message: str, reasons: tuple[str, ...]) -> bool:
    """Returns whether every node is excluded by its properties (`reasons`), not by its load."""
    match = _NODES.match(message)
    if not match:
        return False
    reasons_text = match[3].rstrip(". ")
    excluded = 0
    for part in reasons_text.split(", "):
        count, _, why = part.partition(" ")
        temporary = any(taint in why for taint in _PASSING_TAINTS)
        if count.isdigit() and not temporary and any(word in why for word in reasons):
            excluded += int(count)
    return excluded >= int(match[2]) > 0


def _oversized_request(pod: Object, nodes: Sequence[Object]) -> str:
    """Returns a message about a request that exceeds the largest matching node, or ""."""
    selector = (pod["spec"].get("nodeSelector") or {}).items()
    matching = [node for node in nodes if selector <= (node["metadata"].get("labels") or {}).items()]
    requests: dict[str, str] = {}
    for container in pod["spec"]["containers"]:
        requests.update((container.get("resources") or {}).get("requests") or {})
    for name, amount in requests.items():
        capacities = [str(((node.get("status") or {}).get("allocatable") or {}).get(name, "0")) for node in matching]
        most = max(capacities, key=quantity, default=None)
        if most is not None and quantity(amount) > quantity(most):
            return f"the pod requests {plain(amount)} {name}, but the largest node that it may run on has {plain(most)}"
    return ""


def unscheduled_message(pod: Object) -> str:
    """Returns why the scheduler has found no node for a pod; "" if it says nothing."""
    return str((condition_of(pod, "PodScheduled", "False") or {}).get("message") or "")


def hides_taints(message: str) -> bool:
    """Returns whether the scheduler mentions taints without their keys, as it does from Kubernetes 1.36 on."""
    return _TAINTED in message and f"{_TAINTED} {{" not in message


def _tainted_for_now(node: Object, pod: Object) -> bool:
    """Returns whether a node excludes the pod only by taints that pass, such as that of a node that is not ready."""
    selector = (pod["spec"].get("nodeSelector") or {}).items()
    if not selector <= (node["metadata"].get("labels") or {}).items():
        return False
    tolerations = pod["spec"].get("tolerations") or []
    taints = [taint for taint in (node.get("spec") or {}).get("taints") or [] if taint["effect"] != "PreferNoSchedule"]
    keys = [taint["key"] for taint in taints if not any(_tolerates(one, taint) for one in tolerations)]
    return bool(keys) and all(any(word in key for word in _PASSING_TAINTS) for key in keys)


def _tolerates(toleration: Object, taint: Object) -> bool:
    same = toleration.get("operator") == "Exists" or (toleration.get("value") or "") == (taint.get("value") or "")
    return (
        same
        and toleration.get("key") in (None, "", taint["key"])
        and toleration.get("effect") in (None, "", taint["effect"])
    )


def plain(text: str) -> str:
    """Returns a quantity without a decimal suffix: the API server writes "1k" for "1000"."""
    return f"{quantity(text):.0f}" if text[-1:] in "kMG" else text


def quantity(text: str) -> float:
    """Returns a Kubernetes quantity ("500m", "16Gi", "4") as a number."""
    from kubernetes.utils.quantity import parse_quantity

    return float(parse_quantity(text))


def _when(event: Object) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")


def _last_pull(events: Sequence[Object]) -> str:
    """Returns the last message of the kubelet about an image that it could not pull."""
    failures = [event for event in events if event.get("reason") == "Failed"]
    messages = [" ".join(str(event.get("message") or "").split()) for event in failures]
    return next((message for message in reversed(messages) if message.startswith("Failed to pull image")), "")
