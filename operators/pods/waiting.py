"""Reasons of pending pods: normal waiting, or waiting without hope.

Waiting for a free GPU and waiting in a Kueue queue are normal and end with `queue_s`. A quota or a volume that does not
exist is an error: it is reported after `SURE_S`, well within a minute. So is a node pool that a cluster autoscaler
reports as impossible. Without such an event a pool with zero nodes looks like one that does not exist, and the place's
`scale_up_s` decides. An image that cannot be pulled just now (its registry answers 503) is waited for as long as a
start may take; a registry whose name is unknown, or whose certificate is not trusted, for `UNLIKELY_S`.

Reads events of the pod, the nodes and Kueue's workload as far as Airflow has the rights; others are left out.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from operators.pods.failure import PodFailure, blocked, heals_seldom

Object = dict[str, Any]

SURE_S = 30.0
"""Seconds a cause must persist before it counts: an autoscaler takes 10 to 30 s to report."""

UNLIKELY_S = 180.0
"""Seconds a cause must persist that seldom ends by itself: the name service of a node restarts within that."""

_NODES = re.compile(r"(\d+)/(\d+) nodes are available: (.*)", re.S)
_PREEMPTION = re.compile(r" (?:no new claims to deallocate,? ?)?preemption:")
_NEVER_NODE = ("didn't match Pod's node affinity", "didn't match node selector", "had untolerated taint")
_NEVER_VOLUME = ("didn't match PersistentVolume's node affinity", "didn't find available persistent volumes")
_PASSING_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/", "cluster-autoscaler")
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
        reason: in words.
        hopeless: why waiting will not help; None: it may.
        growable: a further node of an autoscaler, which has reported nothing so far, would help.
        unlikely: waiting may help for some minutes, and not beyond.
    """

    reason: str
    hopeless: PodFailure | None = None
    growable: bool = False
    unlikely: bool = False


def why_waiting(pod: Object, events: Iterable[Object] = (), nodes: Sequence[Object] = ()) -> Wait:
    """Returns why a pending pod that no queue suspends does not run.

    Args:
        pod: as the API gives it.
        events: those about the pod.
        nodes: all nodes, or none where they may not be read.
    """
    events = sorted(events, key=_when)
    stopped = blocked(pod, _last_pull(events))
    if stopped:
        return Wait(stopped.reason, stopped if stopped.permanent else None, unlikely=heals_seldom(stopped))
    unscheduled = _condition(pod, "PodScheduled")
    if unscheduled and unscheduled.get("status") == "False":
        return _unscheduled(str(unscheduled.get("message") or ""), pod, events, nodes)
    broken = broken_by(events)
    if broken:
        return Wait(broken.reason, broken)
    node = (pod.get("spec") or {}).get("nodeName")
    return Wait(f"starting on {node}" if node else "not scheduled yet")


def why_queued(workload: Object | None) -> Wait:
    """Returns why Kueue suspends an object; hopeless where the queue can never admit it."""
    conditions = ((workload or {}).get("status") or {}).get("conditions") or []
    reserved = next((one for one in conditions if one["type"] == "QuotaReserved"), None)
    message = " ".join(str((reserved or {}).get("message") or "").split())
    if not message or (reserved and reserved["status"] == "True"):
        return Wait("waiting in its Kueue queue")
    reason = f"waiting in its Kueue queue: {message}"
    lowered = message.lower()
    if any(word in lowered for word in _INADMISSIBLE):
        remedy = "check [place.kubernetes] queue against the LocalQueue of the namespace and its ClusterQueue's quota"
        return Wait(reason, PodFailure("config", f"Kueue will not admit it: {message}", True, remedy))
    return Wait(reason)


def broken_by(events: Iterable[Object]) -> PodFailure | None:
    """Returns what is missing by an event: a volume, a quota, a right; or None."""
    for event in events:
        message = " ".join(str(event.get("message") or "").split())
        if event.get("reason") in _BROKEN and any(word in message.lower() for word in _MISSING):
            remedy = "make what is missing in the pod's namespace, or correct [place.kubernetes] and its template"
            if "exceeded quota" in message:
                remedy = "ask for less, or have the quota of the namespace raised"
            return PodFailure("config", f"{event['reason']}: {message}", True, remedy)
    return None


def _unscheduled(message: str, pod: Object, events: list[Object], nodes: Sequence[Object]) -> Wait:
    message = _PREEMPTION.split(" ".join(message.split()))[0].rstrip(" ,")
    reason = f"no node takes it yet: {message}" if message else "not scheduled yet"
    word = _autoscaler_report(events)
    if word == "growing":
        return Wait(reason)
    growable = not word and not _all_never(message, _NEVER_VOLUME)
    if _all_never(message, _NEVER_NODE + _NEVER_VOLUME):
        remedy = "check [place.kubernetes] node_selector and tolerations against the labels and taints of the nodes"
        cause = f"no node of this cluster can take the pod: {message}"
        return Wait(reason, PodFailure("config", cause, True, remedy), growable)
    short = _never_fits(pod, nodes)
    if short:
        remedy = "ask for less per pod, or name a node pool with larger nodes"
        return Wait(reason, PodFailure("config", short, True, remedy), growable)
    return Wait(reason)


def _autoscaler_report(events: Sequence[Object]) -> str:
    """Returns the last report of a cluster autoscaler: "growing" (or full for now), "no", or "" without one."""
    for one in reversed(events):
        reason, message = one.get("reason"), str(one.get("message") or "")
        if reason in _GROWING:
            return "growing"
        by = f"{(one.get('source') or {}).get('component', '')} {one.get('reportingComponent', '')}"
        if reason in _NOT_GROWING and (reason != "FailedScheduling" or _KARPENTER in by):
            return "growing" if any(word in message for word in _POOL_FULL) else "no"
    return ""


def _all_never(message: str, reasons: tuple[str, ...]) -> bool:
    """Returns whether every node is excluded by its properties (`reasons`), not by its load."""
    found = _NODES.match(message)
    if not found:
        return False
    reasons_text = found[3].rstrip(". ")
    ruled_out = 0
    for part in reasons_text.split(", "):
        count, _, why = part.partition(" ")
        passing = any(taint in why for taint in _PASSING_TAINTS)
        if count.isdigit() and not passing and any(word in why for word in reasons):
            ruled_out += int(count)
    return ruled_out >= int(found[2]) > 0


def _never_fits(pod: Object, nodes: Sequence[Object]) -> str:
    """Returns the request that is larger than any matching node, or ""."""
    selector = (pod["spec"].get("nodeSelector") or {}).items()
    kind = [node for node in nodes if selector <= (node["metadata"].get("labels") or {}).items()]
    requests: dict[str, str] = {}
    for container in pod["spec"]["containers"]:
        requests.update((container.get("resources") or {}).get("requests") or {})
    for name, amount in requests.items():
        capacities = [str(((node.get("status") or {}).get("allocatable") or {}).get(name, "0")) for node in kind]
        most = max(capacities, key=quantity, default=None)
        if most is not None and quantity(amount) > quantity(most):
            return f"the pod asks for {plain(amount)} {name}, and the largest node that it may run on has {plain(most)}"
    return ""


def plain(text: str) -> str:
    """Returns a quantity in plain form: the API server writes "1k" for "1000"."""
    return f"{quantity(text):.0f}" if text[-1:] in "kMG" else text


def quantity(text: str) -> float:
    """Returns a Kubernetes quantity ("500m", "16Gi", "4") as a number."""
    from kubernetes.utils.quantity import parse_quantity

    return float(parse_quantity(text))


def _when(event: Object) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")


def _last_pull(events: Sequence[Object]) -> str:
    """Returns the last message of the kubelet about an image that it could not pull."""
    messages = [" ".join(str(one.get("message") or "").split()) for one in events if one.get("reason") == "Failed"]
    return next((one for one in reversed(messages) if one.startswith("Failed to pull image")), "")


def _condition(pod: Object, kind: str) -> Object | None:
    return next((one for one in (pod.get("status") or {}).get("conditions") or [] if one["type"] == kind), None)
