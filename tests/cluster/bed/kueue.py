"""A small Kueue (v1beta2): a workload with a queue label waits until its ClusterQueue has quota for all of it."""

from __future__ import annotations

import hashlib
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.cluster.bed import quantity
from tests.cluster.bed.admission import with_limits
from tests.cluster.bed.controllers import Controller, owner
from tests.cluster.bed.jobsets import JOBSETS
from tests.cluster.bed.pod_run import set_condition
from tests.cluster.bed.resources import PODS, ApiError, Object, Resource
from tests.cluster.bed.store import Change

if TYPE_CHECKING:
    from tests.cluster.bed.server import Bed

_GROUP = "kueue.x-k8s.io"
WORKLOADS = Resource(_GROUP, "v1beta2", "workloads", "Workload")
LOCAL_QUEUES = Resource(_GROUP, "v1beta2", "localqueues", "LocalQueue")
CLUSTER_QUEUES = Resource(_GROUP, "v1beta2", "clusterqueues", "ClusterQueue", namespaced=False)
FLAVORS = Resource(_GROUP, "v1beta2", "resourceflavors", "ResourceFlavor", namespaced=False)
QUEUE = f"{_GROUP}/queue-name"
GATE = f"{_GROUP}/admission"
_OVER = ("Succeeded", "Failed")


class Kueue(Controller):
    """Admits workloads as a whole, by quota, in order of arrival.

    `delay_s` delays every workload; `preempt` evicts one.
    """

    resource = WORKLOADS
    watches = (PODS, JOBSETS, LOCAL_QUEUES, CLUSTER_QUEUES)

    def __init__(self, bed: Bed) -> None:
        super().__init__(bed)
        self.delay_s = 0.0
        self._seen: dict[str, float] = {}
        bed.define(LOCAL_QUEUES, CLUSTER_QUEUES, FLAVORS)
        bed.webhooks.append(_hold)

    def told(self, change: Change) -> None:
        """Any change may free or need quota."""
        obj = change.object
        if change.resource in (PODS, JOBSETS) and _queued(obj):
            if change.type == "DELETED":
                self._forget(obj)
            else:
                self._workload(change.resource, obj)
        self._admit()

    def preempt(self, name: str, namespace: str, again_s: float = 1.0) -> None:
        """Evicts a JobSet, as for a workload of higher priority; it is queued again after `again_s`."""
        jobset = self.store.get(JOBSETS, namespace, name)
        workload = self.store.get(WORKLOADS, namespace, _name(JOBSETS, jobset))
        said = "Preempted to accommodate a workload (UID: x) due to prioritization in the ClusterQueue"

        def edit(now: Object) -> None:
            set_condition(now["status"], "QuotaReserved", "False", reason="Pending", message=said)
            set_condition(now["status"], "Admitted", "False", reason="NoReservation", message="no reservation")
            set_condition(now["status"], "Evicted", "True", reason="Preempted", message=said)

        self._seen[workload["metadata"]["uid"]] = time.monotonic() + again_s - self.delay_s
        self.store.change(WORKLOADS, namespace, workload["metadata"]["name"], edit)
        self.store.change(JOBSETS, namespace, name, lambda now: now["spec"].update(suspend=True))
        self.bed.later(again_s, self._admit)

    def _workload(self, resource: Resource, obj: Object) -> None:
        meta, name = obj["metadata"], _name(resource, obj)
        if self.store.find(WORKLOADS, meta["namespace"], name) is None and "deletionTimestamp" not in meta:
            sets = _pod_sets(resource, obj)
            for one in sets:
                one["template"]["spec"] = with_limits(self.store, meta["namespace"], one["template"]["spec"])
            spec = {"queueName": meta["labels"][QUEUE], "podSets": sets, "priority": 0}
            new = {"name": name, "namespace": meta["namespace"], "ownerReferences": [owner(obj)]}
            self.store.create(WORKLOADS, {"metadata": new, "spec": spec, "status": {"conditions": []}})
        status = obj.get("status") or {}
        if status.get("terminalState") or status.get("phase") in _OVER:
            with suppress(ApiError):
                self.store.change(WORKLOADS, meta["namespace"], name, _finish)

    def _forget(self, obj: Object) -> None:
        for one in self.store.select(WORKLOADS, obj["metadata"]["namespace"]):
            if any(o["uid"] == obj["metadata"]["uid"] for o in one["metadata"].get("ownerReferences", [])):
                self.store.delete(WORKLOADS, one["metadata"]["namespace"], one["metadata"]["name"])

    def _admit(self) -> None:
        workloads = self.store.select(WORKLOADS)
        for one in sorted(workloads, key=lambda w: w["metadata"]["creationTimestamp"]):
            if _is(one, "Admitted") or _is(one, "Finished"):
                continue
            since = self._seen.setdefault(one["metadata"]["uid"], time.monotonic())
            left = since + self.delay_s - time.monotonic()
            if left > 0:
                self.bed.later(left + 0.05, self._admit)
                continue
            refusal = self._refusal(one, [w for w in workloads if _is(w, "Admitted") and not _is(w, "Finished")])
            self._decide(one, refusal)

    def _refusal(self, workload: Object, admitted: list[Object]) -> tuple[str, str] | None:
        """Reason and message if a workload is not admitted; None if it is."""
        queue = workload["spec"]["queueName"]
        local = self.store.find(LOCAL_QUEUES, workload["metadata"]["namespace"], queue)
        if local is None:
            return "Inadmissible", f"LocalQueue {queue} doesn't exist"
        cluster = self.store.find(CLUSTER_QUEUES, "", local["spec"]["clusterQueue"])
        if cluster is None:
            return "Inadmissible", f"ClusterQueue {local['spec']['clusterQueue']} doesn't exist"
        room, flavor = _room(cluster)
        names = [one["metadata"]["name"] for one in self._local(cluster)]
        used = quantity.total(_asked(one) for one in admitted if one["spec"]["queueName"] in names)
        where = f"couldn't assign flavors to pod set {workload['spec']['podSets'][0]['name']}"
        for what, amount in _asked(workload).items():
            if what == "pods":
                continue
            if what not in room:
                return "Inadmissible", f"{where}: resource {what} unavailable in ClusterQueue"
            if amount > room[what]:
                sums = f"previously considered podsets requests (0) + current podset request ({amount:g})"
                said = f"insufficient quota for {what} in flavor {flavor}, {sums} > maximum capacity ({room[what]:g})"
                return "Pending", f"{where}: {said}"
            more = amount + used.get(what, 0.0) - room[what]
            if more > 0:
                said = f"insufficient unused quota for {what} in flavor {flavor}, {more:g} more needed"
                return "Pending", f"{where}: {said}"
        return None

    def _local(self, cluster: Object) -> list[Object]:
        queues = self.store.select(LOCAL_QUEUES)
        return [one for one in queues if one["spec"]["clusterQueue"] == cluster["metadata"]["name"]]

    def _decide(self, workload: Object, refusal: tuple[str, str] | None) -> None:
        meta = workload["metadata"]

        def edit(now: Object) -> None:
            if refusal:
                set_condition(now["status"], "QuotaReserved", "False", reason=refusal[0], message=refusal[1])
                return
            for kind in ("QuotaReserved", "Admitted"):
                set_condition(now["status"], kind, "True", reason=kind, message=f"{kind} in the ClusterQueue")
            set_condition(now["status"], "Evicted", "False", reason=kind, message="")

        self.store.change(WORKLOADS, meta["namespace"], meta["name"], edit)
        if refusal:
            return
        above = meta["ownerReferences"][0]
        resource = JOBSETS if above["kind"] == "JobSet" else PODS
        with suppress(ApiError):
            self.store.change(resource, meta["namespace"], above["name"], self._release)

    def _release(self, obj: Object) -> None:
        """Starts an admitted object on the nodes of its flavor."""
        if obj["kind"] == "Pod":
            gates = [one for one in obj["spec"].get("schedulingGates") or [] if one["name"] != GATE]
            obj["spec"]["schedulingGates"] = gates
            return
        obj["spec"]["suspend"] = False
        local = self.store.get(LOCAL_QUEUES, obj["metadata"]["namespace"], obj["metadata"]["labels"][QUEUE])
        _, name = _room(self.store.get(CLUSTER_QUEUES, "", local["spec"]["clusterQueue"]))
        flavor = (self.store.find(FLAVORS, "", name) or {}).get("spec") or {}
        for group in obj["spec"]["replicatedJobs"]:
            pod = group["template"]["spec"]["template"]["spec"]
            pod["nodeSelector"] = {**(pod.get("nodeSelector") or {}), **(flavor.get("nodeLabels") or {})}
            given = pod.get("tolerations") or []
            pod["tolerations"] = given + [one for one in flavor.get("tolerations") or [] if one not in given]


def _hold(resource: Resource, obj: Object) -> None:
    """The webhook: an object with a queue label starts suspended or gated."""
    if not _queued(obj):
        return
    if resource == JOBSETS:
        obj["spec"]["suspend"] = True
    elif resource == PODS:
        gates = obj["spec"].get("schedulingGates") or []
        obj["spec"]["schedulingGates"] = [*gates, {"name": GATE}]
        obj["metadata"]["labels"][f"{_GROUP}/managed"] = "true"


def _queued(obj: Object) -> bool:
    return QUEUE in (obj["metadata"].get("labels") or {})


def _name(resource: Resource, obj: Object) -> str:
    kind = resource.kind.lower()
    mark = hashlib.sha1(obj["metadata"]["uid"].encode()).hexdigest()[:5]
    return f"{kind}-{obj['metadata']['name']}-{mark}"


def _pod_sets(resource: Resource, obj: Object) -> list[Object]:
    if resource == PODS:
        return [{"name": "main", "count": 1, "template": {"spec": obj["spec"]}}]
    return [
        {
            "name": group["name"],
            "count": group.get("replicas", 1) * group["template"]["spec"].get("parallelism", 1),
            "template": group["template"]["spec"]["template"],
        }
        for group in obj["spec"]["replicatedJobs"]
    ]


def _asked(workload: Object) -> dict[str, float]:
    return quantity.total(
        {what: amount * one["count"] for what, amount in quantity.requests(one["template"]["spec"]).items()}
        for one in workload["spec"]["podSets"]
    )


def _room(cluster: Object) -> tuple[dict[str, float], str]:
    """Quota by resource, and the name of its flavor."""
    room, name = {}, ""
    for group in cluster["spec"].get("resourceGroups") or []:
        flavor = group["flavors"][0]
        name = flavor["name"]
        room |= {one["name"]: quantity.number(one["nominalQuota"]) for one in flavor["resources"]}
    return room, name


def _is(workload: Object, kind: str) -> bool:
    conditions = (workload.get("status") or {}).get("conditions") or []
    return any(one["type"] == kind and one["status"] == "True" for one in conditions)


def _finish(workload: Object) -> None:
    set_condition(workload["status"], "Finished", "True", reason="Finished", message="")
