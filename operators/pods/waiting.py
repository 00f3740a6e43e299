"""Why a pod is not running yet: it waits its turn, or it will wait for ever.

Used by the triggers while a pod is Pending or a gang is suspended. Waiting for a free GPU and waiting in a Kueue queue
are normal and end with `queue_s`. A node pool, a quota or a volume that does not exist is a mistake: it is told after
`SURE_S`, well within a minute, unless a cluster autoscaler has said that it is adding a node.

Reads events of the pod, the nodes and Kueue's workload as far as the rights of Airflow reach; what may not be read is
left out of the answer.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from operators.pods.failure import PodFailure, blocked

Object = dict[str, Any]

SURE_S = 30.0
"""How long a cause must stand before it is believed: an autoscaler takes 10 to 30 s to say what it does."""

_NODES = re.compile(r"(\d+)/(\d+) nodes are available: (.*)", re.S)
_PREEMPTION = re.compile(r" (?:no new claims to deallocate,? ?)?preemption:")
_NEVER = ("didn't match Pod's node affinity", "didn't match node selector", "had untolerated taint",
          "didn't match PersistentVolume's node affinity", "didn't find available persistent volumes")  # fmt: skip
_PASSING_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/", "cluster-autoscaler")
_GROWING = ("TriggeredScaleUp", "Nominated", "NodeClaimCreated")
_POOL_FULL = ("max node group size reached", "in backoff", "limits exceeded")
_BROKEN = ("FailedMount", "FailedAttachVolume", "FailedCreate", "FailedCreatePodSandBox")
_INADMISSIBLE = ("maximum capacity", "doesn't exist", "does not exist", "is inactive", "is stopped", "not found",
                 "unavailable in clusterqueue", "namespace doesn't match")  # fmt: skip
_MISSING = ("not found", "exceeded quota", "forbidden", "no such")


@dataclass(frozen=True)
class Wait:
    """Why a pod waits; `hopeless` says that waiting will not help."""

    reason: str
    hopeless: PodFailure | None = None


def why_waiting(pod: Object, events: Iterable[Object] = (), nodes: Sequence[Object] = ()) -> Wait:
    """Returns why a Pending pod that no queue holds back does not run.

    Args:
        pod: as the API gives it.
        events: those about the pod.
        nodes: all nodes, or none where they may not be read.
    """
    stopped = blocked(pod)
    if stopped:
        return Wait(stopped.reason, stopped)
    unscheduled = _condition(pod, "PodScheduled")
    if unscheduled and unscheduled.get("status") == "False":
        return _unscheduled(str(unscheduled.get("message") or ""), pod, list(events), nodes)
    broken = broken_by(events)
    if broken:
        return Wait(broken.reason, broken)
    node = (pod.get("spec") or {}).get("nodeName")
    return Wait(f"starting on {node}" if node else "not scheduled yet")


def why_queued(workload: Object | None) -> Wait:
    """Returns why Kueue holds something back; it is hopeless where the queue could never admit it."""
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
    """Returns what an event says is missing: a volume, a quota, a right. None where nothing is."""
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
    said = " ".join(str(one.get("message") or "") for one in events if one.get("reason") == "NotTriggerScaleUp")
    growing = any(one.get("reason") in _GROWING for one in events) or any(word in said for word in _POOL_FULL)
    if growing:
        return Wait(reason)
    if _all_never(message):
        remedy = "check [place.kubernetes] node_selector and tolerations against the labels and taints of the nodes"
        return Wait(reason, PodFailure("config", f"no node of this cluster can take the pod: {message}", True, remedy))
    short = _never_fits(pod, nodes)
    if short:
        remedy = "ask for less per pod, or name a node pool with larger nodes"
        return Wait(reason, PodFailure("config", short, True, remedy))
    return Wait(reason)


def _all_never(message: str) -> bool:
    """Tells whether every node is ruled out by what it is, not by what runs on it."""
    found = _NODES.match(message)
    if not found:
        return False
    told = found[3].rstrip(". ")
    ruled_out = 0
    for part in told.split(", "):
        count, _, why = part.partition(" ")
        passing = any(taint in why for taint in _PASSING_TAINTS)
        if count.isdigit() and not passing and any(word in why for word in _NEVER):
            ruled_out += int(count)
    return ruled_out >= int(found[2]) > 0


def _never_fits(pod: Object, nodes: Sequence[Object]) -> str:
    """Returns which request is larger than any node of the wanted kind, or ""."""
    wanted = (pod["spec"].get("nodeSelector") or {}).items()
    kind = [node for node in nodes if wanted <= (node["metadata"].get("labels") or {}).items()]
    requests: dict[str, str] = {}
    for container in pod["spec"]["containers"]:
        requests.update((container.get("resources") or {}).get("requests") or {})
    for name, asked in requests.items():
        most = max(
            (quantity(((node.get("status") or {}).get("allocatable") or {}).get(name, "0")) for node in kind),
            default=None,
        )
        if most is not None and quantity(asked) > most:
            return f"the pod asks for {asked} {name}, and the largest node that it may run on has {most:g}"
    return ""


def quantity(text: str) -> float:
    """Returns a Kubernetes quantity ("500m", "16Gi", "4") as a number."""
    from kubernetes.utils.quantity import parse_quantity

    return float(parse_quantity(text))


def _condition(pod: Object, kind: str) -> Object | None:
    return next((one for one in (pod.get("status") or {}).get("conditions") or [] if one["type"] == kind), None)
