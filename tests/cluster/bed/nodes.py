"""Nodes with capacity, and the scheduler that binds pods to them or reports why it cannot, in the scheduler's words."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tests.cluster.bed import quantity
from tests.cluster.bed.controllers import Controller
from tests.cluster.bed.kubelet import disrupted
from tests.cluster.bed.pod_run import set_condition
from tests.cluster.bed.resources import NODES, PODS, ApiError, Object
from tests.cluster.bed.store import Change

if TYPE_CHECKING:
    from tests.cluster.bed.server import Bed

_OVER = ("Succeeded", "Failed")
_PREEMPTING = "default-scheduler: preempting to accommodate a higher priority pod"


def node(name: str, labels: dict[str, str] | None = None, **sizes: str) -> Object:
    """A node object; `sizes` by resource, `gpus` for nvidia.com/gpu."""
    room = {"cpu": "32", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "110"}
    room |= {"nvidia.com/gpu": sizes.pop("gpus", "4"), **sizes}
    room = {what: amount for what, amount in room.items() if amount != "0"}
    status = {"allocatable": room, "capacity": room, "conditions": [{"type": "Ready", "status": "True"}]}
    named = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **(labels or {})}
    return {"metadata": {"name": name, "labels": named}, "spec": {}, "status": status}


class Scheduler(Controller):
    """Binds every pod without node to the first node with free capacity; preempts pods of lower priority."""

    resource = NODES
    watches = (PODS,)

    def __init__(self, bed: Bed) -> None:
        super().__init__(bed)

    def told(self, change: Change) -> None:
        """Any change may free capacity."""
        waiting = [one for one in self.store.select(PODS) if _waits(one)]
        for pod in sorted(waiting, key=lambda one: (-one["spec"].get("priority", 0), one["metadata"]["uid"])):
            self._place(pod)

    def _place(self, pod: Object) -> None:
        why: Counter[str] = Counter()
        nodes = self.store.select(NODES)
        for one in nodes:
            reasons = self._refusals(pod, one)
            if not reasons:
                self._bind(pod, one["metadata"]["name"])
                return
            why.update(reasons)
        if self._preempt(pod, nodes):
            return
        short = sum(count for reason, count in why.items() if reason.startswith(("Insufficient", "Too many")))
        helps = [f"{short} No preemption victims found for incoming pod"] if short else []
        helps += [f"{len(nodes) - short} Preemption is not helpful for scheduling"] if len(nodes) > short else []
        said = f"0/{len(nodes)} nodes are available: {', '.join(sorted(f'{n} {one}' for one, n in why.items()))}. "
        said += f"no new claims to deallocate, preemption: 0/{len(nodes)} nodes are available: {', '.join(helps)}."
        self._refuse(pod, said if nodes else "no nodes available to schedule pods")

    def _refusals(self, pod: Object, one: Object) -> list[str]:
        """Why the pod does not fit on this node; the first reason that applies, as in the scheduler."""
        spec, labels = pod["spec"], one["metadata"].get("labels") or {}
        if one["spec"].get("unschedulable"):
            return ["node(s) were unschedulable"]
        for taint in one["spec"].get("taints") or []:
            blocks = taint["effect"] in ("NoSchedule", "NoExecute")
            if blocks and not any(_tolerates(toleration, taint) for toleration in spec.get("tolerations") or []):
                return ["node(s) had untolerated taint(s)"]  # without the key, as from Kubernetes 1.36 on
        wanted = (spec.get("nodeSelector") or {}).items()
        if any(labels.get(key) != value for key, value in wanted) or not _affine(spec, labels):
            return ["node(s) didn't match Pod's node affinity/selector"]
        free = self._free(one)
        short = [what for what, n in quantity.requests(spec).items() if n > free.get(what, 0.0)]
        return [f"Insufficient {what}" if what != "pods" else "Too many pods" for what in short]

    def _free(self, one: Object, without: tuple[str, ...] = ()) -> dict[str, float]:
        """Free capacity of a node; terminating pods still occupy theirs."""
        free = {what: quantity.number(amount) for what, amount in one["status"]["allocatable"].items()}
        for pod in self.store.select(PODS, fields=f"spec.nodeName={one['metadata']['name']}"):
            if pod["status"]["phase"] not in _OVER and pod["metadata"]["uid"] not in without:
                for what, amount in quantity.requests(pod["spec"]).items():
                    free[what] = free.get(what, 0.0) - amount
        return free

    def _preempt(self, pod: Object, nodes: list[Object]) -> bool:
        """Deletes pods of lower priority if that frees enough capacity; True if it did now or before."""
        asked, priority = quantity.requests(pod["spec"]), pod["spec"].get("priority", 0)
        for one in nodes:
            there = self.store.select(PODS, fields=f"spec.nodeName={one['metadata']['name']}")
            lower = [p for p in there if p["spec"].get("priority", 0) < priority and p["status"]["phase"] not in _OVER]
            free = self._free(one, tuple(p["metadata"]["uid"] for p in lower))
            if not lower or any(n > free.get(what, 0.0) for what, n in asked.items()):
                continue
            for victim in lower:
                if "deletionTimestamp" not in victim["metadata"]:
                    self.preempt(victim)
            return True
        return False

    def preempt(self, victim: Object) -> None:
        """Preempts a pod in favor of another one."""
        disrupted(self.store, victim, "PreemptionByScheduler", _PREEMPTING)
        self.bed.kubelet.event(victim, "Preempted", "Preempted by a pod of higher priority", source="default-scheduler")
        with suppress(ApiError):
            self.store.delete(PODS, victim["metadata"]["namespace"], victim["metadata"]["name"])

    def _bind(self, pod: Object, name: str) -> None:
        def edit(now: Object) -> None:
            now["spec"]["nodeName"] = name
            set_condition(now.setdefault("status", {}), "PodScheduled", "True")

        meta = pod["metadata"]
        with suppress(ApiError):
            self.store.change(PODS, meta["namespace"], meta["name"], edit)
            said = f"Successfully assigned {meta['namespace']}/{meta['name']} to {name}"
            self.bed.kubelet.event(pod, "Scheduled", said, source="default-scheduler")

    def _refuse(self, pod: Object, message: str) -> None:
        old = next((c for c in pod["status"].get("conditions", []) if c["type"] == "PodScheduled"), {})
        if old.get("message") == message:
            return

        def edit(now: Object) -> None:
            set_condition(now["status"], "PodScheduled", "False", reason="Unschedulable", message=message)

        with suppress(ApiError):
            self.store.change(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"], edit)
            self.bed.kubelet.event(pod, "FailedScheduling", message, "Warning", "default-scheduler")


def _waits(pod: Object) -> bool:
    placed = pod["spec"].get("nodeName") or pod["spec"].get("schedulingGates")
    return not placed and "deletionTimestamp" not in pod["metadata"] and pod["status"]["phase"] == "Pending"


def _tolerates(toleration: Object, taint: Object) -> bool:
    key, effect = toleration.get("key"), toleration.get("effect")
    if (key and key != taint["key"]) or (effect and effect != taint["effect"]):
        return False
    return toleration.get("operator") == "Exists" or (toleration.get("value") or "") == (taint.get("value") or "")


def _affine(spec: Object, labels: dict[str, str]) -> bool:
    """Whether required node affinity holds: any of its terms, all expressions of the term."""
    affinity: Any = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    if not affinity:
        return True
    terms = [term.get("matchExpressions") or [] for term in affinity["nodeSelectorTerms"]]
    return any(all(_holds(one, labels) for one in term) for term in terms)


def _holds(one: Object, labels: dict[str, str]) -> bool:
    value, values = labels.get(one["key"]), one.get("values") or []
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[one["operator"]]
