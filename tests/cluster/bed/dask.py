"""The Dask operator in the bed: a DaskCluster becomes real `dask scheduler` and `dask worker` processes.

Like the operator 2026.3, with these differences: pods are created without a Deployment, ports are free
ports of this machine, and the service has type LoadBalancer at 127.0.0.1 (names do not resolve here). A pod
that was deleted or failed is recreated, as by a Deployment.
"""

import asyncio
import copy
import secrets
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.cluster.bed import admission
from tests.cluster.bed.controllers import Controller, owner
from tests.cluster.bed.resources import PODS, SERVICES, ApiError, Object, Resource
from tests.cluster.bed.server import Bed
from tests.cluster.bed.store import Change

CLUSTERS = Resource("kubernetes.dask.org", "v1", "daskclusters", "DaskCluster")
AUTOSCALERS = Resource("kubernetes.dask.org", "v1", "daskautoscalers", "DaskAutoscaler")
FINALIZER = "kopf.zalando.org/KopfFinalizerMarker"
NAME, COMPONENT = "dask.org/cluster-name", "dask.org/component"


class DaskClusters(Controller):
    """Scheduler, service and workers of each DaskCluster; deletes clusters idle for `idleTimeout`."""

    resource = CLUSTERS
    watches = (PODS,)

    def __init__(self, bed: Bed, every_s: float = 0.5) -> None:
        super().__init__(bed)
        self.ports: dict[str, tuple[int, int]] = {}
        self.made: list[str] = []
        """Names of the clusters that were ever made, in order."""
        self.every_s = every_s
        self.targets: dict[str, int] = {}
        self.busy_s = 0.5
        """How long the operator waits for a scheduler that never came up before it looks at a deletion (really: 60)."""

        threading.Thread(target=self._ask_schedulers, name="bed-dask", daemon=True).start()

    def on_create(self, obj: Object) -> None:
        """Adopts a new cluster, and adds a finalizer like every operator based on kopf."""
        name = obj["metadata"]["name"]
        self.made.append(name)
        where = (CLUSTERS, obj["metadata"]["namespace"], name)
        self.store.change(*where, lambda now: now["metadata"].setdefault("finalizers", []).append(FINALIZER))
        self.status(obj, phase="Created")
        self.ports[name] = _free_ports()
        self._service(obj)
        self._settle(obj)
        self.status(obj, phase="Running")

    def on_update(self, obj: Object, before: Object) -> None:
        """Handles a changed number of workers or a deletion: a silent scheduler blocks the operator for `busy_s`."""
        leaving = "deletionTimestamp" in obj["metadata"]
        if leaving and "deletionTimestamp" not in (before.get("metadata") or {}):
            up = any(_ready(pod) for pod in self.pods(obj["metadata"]["name"], "scheduler"))
            self.bed.later(0 if up else self.busy_s, lambda: self._release(obj))
        self._settle(obj)

    def _release(self, obj: Object) -> None:
        def let_go(now: Object) -> None:
            now["metadata"]["finalizers"] = [one for one in now["metadata"].get("finalizers", []) if one != FINALIZER]

        with suppress(ApiError):
            self.store.change(CLUSTERS, obj["metadata"]["namespace"], obj["metadata"]["name"], let_go)

    def on_delete(self, obj: Object) -> None:
        """Its ports are free again."""
        self.ports.pop(obj["metadata"]["name"], None)

    def on_related(self, change: Change) -> None:
        """A pod of a cluster was deleted or failed."""
        meta = change.object["metadata"]
        cluster = self.store.find(CLUSTERS, meta["namespace"], (meta.get("labels") or {}).get(NAME, ""))
        if cluster is None:
            return
        if change.type != "DELETED" and (change.object.get("status") or {}).get("phase") == "Failed":
            self.store.delete(PODS, meta["namespace"], meta["name"], grace_s=0)
        elif change.type == "DELETED":
            self._settle(cluster)

    def pods(self, name: str, component: str) -> list[Object]:
        """The living pods of one component of a cluster."""
        found = self.store.select(PODS, labels=f"{NAME}={name},{COMPONENT}={component}")
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def workers(self, name: str) -> int:
        """The current target number of workers of a cluster."""
        found = [one for one in self.store.select(CLUSTERS) if one["metadata"]["name"] == name]
        return int(self.targets.get(name) or found[0]["spec"]["worker"]["replicas"])

    def _settle(self, cluster: Object) -> None:
        if "deletionTimestamp" in cluster["metadata"]:
            return
        name = cluster["metadata"]["name"]
        for component, wanted in (("scheduler", 1), ("worker", self.workers(name))):
            have = self.pods(name, component)
            for _ in range(wanted - len(have)):
                self._pod(cluster, component)
            for pod in have[wanted:]:
                self.store.delete(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"])

    def _pod(self, cluster: Object, component: str) -> None:
        meta = cluster["metadata"]
        name = f"{meta['name']}-{component}-{secrets.token_hex(5)}"
        labels = {**(meta.get("labels") or {}), NAME: meta["name"], COMPONENT: component}
        spec = copy.deepcopy(cluster["spec"][component]["spec"])
        self._on_loopback(spec["containers"][0], meta["name"], name)
        pod = {
            "metadata": {
                "name": name,
                "namespace": meta["namespace"],
                "labels": labels,
                "ownerReferences": [owner(cluster)],
            },
            "spec": spec,
        }
        try:
            admission.admit(self.store, PODS, pod)
            self.store.create(PODS, pod)
        except ApiError as error:
            about = {"kind": "ReplicaSet", "namespace": meta["namespace"], "name": f"{meta['name']}-{component}-1"}
            self.bed.event(about, "FailedCreate", f"Error creating: {error}", "Warning", "replicaset-controller")
            self.bed.later(1, lambda: self._again(meta["namespace"], meta["name"]))

    def _again(self, namespace: str, name: str) -> None:
        cluster = self.store.find(CLUSTERS, namespace, name)
        if cluster is not None:
            self._settle(cluster)

    def _on_loopback(self, container: Object, cluster: str, pod: str) -> None:
        comm, status = self.ports[cluster]
        here = {
            "0.0.0.0": "127.0.0.1",
            "8786": str(comm),
            ":8787": f"127.0.0.1:{status}",
            ":8788": "127.0.0.1:0",
            "/tmp/dask": str(Path(self.bed.folder) / "spill"),
        }
        container["command"] = [here.get(word, word) for word in container["command"]]
        if container["name"] == "worker":
            container["command"] += ["--host", "127.0.0.1"]
        container["env"] += [
            {"name": "DASK_WORKER_NAME", "value": pod},
            # Dask sets its process title, which would overwrite the mark by which the kubelet finds the process.
            {"name": "SPT_NOENV", "value": "1"},
            {"name": "DASK_SCHEDULER_ADDRESS", "value": f"tcp://127.0.0.1:{comm}"},
        ]

    def _service(self, cluster: Object) -> None:
        meta, spec = cluster["metadata"], copy.deepcopy(cluster["spec"]["scheduler"]["service"])
        for port, number in zip(spec["ports"], self.ports[meta["name"]], strict=True):
            port["port"] = number
        status = {"loadBalancer": {"ingress": [{"ip": "127.0.0.1"}]}} if spec["type"] == "LoadBalancer" else {}
        name = {
            "name": f"{meta['name']}-scheduler",
            "namespace": meta["namespace"],
            "ownerReferences": [owner(cluster)],
        }
        self.store.create(SERVICES, {"metadata": name, "spec": spec, "status": status})

    def _ask_schedulers(self) -> None:
        """Adapts the number of workers and ends idle clusters, as the operator's timers do every 5 s."""
        while not self.bed.closing.wait(self.every_s):
            for cluster in self.store.select(CLUSTERS):
                name = cluster["metadata"]["name"]
                if name in self.ports:
                    with suppress(Exception):  # no scheduler yet, or none any more
                        wanted, idle_since = asyncio.run(_asked(self.ports[name][0]))
                        self._adapt(cluster, wanted, idle_since)

    def _adapt(self, cluster: Object, wanted: int, idle_since: float) -> None:
        meta, timeout = cluster["metadata"], cluster["spec"].get("idleTimeout", 0)
        if timeout and idle_since and time.time() > idle_since + timeout:
            self.store.delete(CLUSTERS, meta["namespace"], meta["name"])
            return
        for scaler in self.store.select(AUTOSCALERS, meta["namespace"]):
            spec = scaler["spec"]
            if spec["cluster"] == meta["name"]:
                target = min(max(spec["minimum"], wanted), spec["maximum"])
                if target > self.workers(
                    meta["name"]
                ):  # the operator scales down by a quarter at a time; here it only scales up
                    self.targets[meta["name"]] = target
                    self.bed.later(0, lambda: self._again(meta["namespace"], meta["name"]))


class DaskAutoscalers(Controller):
    """Makes each autoscaler a dependent of its cluster, so that it is deleted with it."""

    resource = AUTOSCALERS

    def on_create(self, obj: Object) -> None:
        """Adopted by its cluster."""
        meta = obj["metadata"]
        cluster = self.store.get(CLUSTERS, meta["namespace"], obj["spec"]["cluster"])
        self.store.change(
            AUTOSCALERS,
            meta["namespace"],
            meta["name"],
            lambda now: now["metadata"].update(ownerReferences=[owner(cluster)]),
        )


def _ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


async def _asked(port: int) -> tuple[int, float]:
    from distributed.core import rpc

    async with rpc(f"tcp://127.0.0.1:{port}") as scheduler:
        wanted: Any = await scheduler.adaptive_target()
        idle: Any = await scheduler.check_idle()
        return int(wanted), float(idle or 0)


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]
