"""The kubelets of all nodes: they start pods bound to their node, report their state, stop them, serve logs."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.cluster.bed import quantity
from tests.cluster.bed.container import Container
from tests.cluster.bed.controllers import Controller
from tests.cluster.bed.pod_run import PodRun, set_condition
from tests.cluster.bed.resources import PODS, ApiError, Object

if TYPE_CHECKING:
    from tests.cluster.bed.server import Bed

_OVER = ("Succeeded", "Failed")


class Kubelet(Controller):
    """All kubelets; `dead` has the nodes whose kubelet neither answers nor reports."""

    resource = PODS

    def __init__(self, bed: Bed) -> None:
        super().__init__(bed)
        self.runs: dict[str, PodRun] = {}
        self.dead: set[str] = set()
        self.starts: list[tuple[str, str]] = []
        """(pod, container) of every process that was ever started, in order."""

        self._closing = threading.Event()
        self.store.grace[PODS] = _grace
        threading.Thread(target=self._watch_memory, name="bed-oom", daemon=True).start()

    def on_create(self, obj: Object) -> None:
        """Starts a pod that is created with a node name."""
        self.on_update(obj, {})

    def on_update(self, obj: Object, before: Object) -> None:
        """Starts pods bound to a node, stops pods that are being deleted."""
        uid, node = obj["metadata"]["uid"], obj["spec"].get("nodeName")
        if not node or node in self.dead:
            return
        run, leaving = self.runs.get(uid), "deletionTimestamp" in obj["metadata"]
        if run is None and not leaving and obj["status"]["phase"] not in _OVER:
            self.runs[uid] = PodRun(self, obj)
        elif leaving and run is not None and not run.ended.is_set():
            if not (before.get("metadata") or {}).get("deletionTimestamp"):
                self.event(obj, "Killing", f"Stopping container {run.main[0].name}")
            if before.get("metadata", {}).get("deletionTimestamp") != obj["metadata"]["deletionTimestamp"]:
                run.stop(obj["metadata"].get("deletionGracePeriodSeconds", 0))
        elif leaving:
            self.store.remove(PODS, obj["metadata"]["namespace"], obj["metadata"]["name"])

    def on_delete(self, obj: Object) -> None:
        """Kills a pod that the API has forgotten."""
        run = self.runs.get(obj["metadata"]["uid"])
        if run is not None and run.node not in self.dead:
            run.kill()

    def sync(self, run: PodRun) -> None:
        """Reports the state of a pod, unless its kubelet is dead; removes it when its deletion is complete."""
        if run.node in self.dead:
            return
        namespace, name = run.meta["namespace"], run.meta["name"]

        def edit(pod: Object) -> None:
            if pod["metadata"]["uid"] == run.meta["uid"]:
                run.edit(pod)

        with suppress(ApiError):
            now_is = self.store.change(PODS, namespace, name, edit)
            gone = run.ended.is_set() and "deletionTimestamp" in now_is["metadata"]
            if gone and now_is["metadata"]["uid"] == run.meta["uid"]:
                self.store.remove(PODS, namespace, name)

    def started(self, run: PodRun, container: Container) -> None:
        """Records that a container's process was started."""
        self.starts.append((run.meta["name"], container.name))
        self.event(run.pod, "Pulled", f'Container image "{container.spec["image"]}" already present on machine')
        self.event(run.pod, "Started", f"Started container {container.name}")

    def event(self, pod: Object, reason: str, message: str, kind: str = "Normal", source: str = "kubelet") -> None:
        """Writes an event about a pod; repeated events increment its count."""
        meta = pod["metadata"]
        about = {"kind": "Pod", "namespace": meta["namespace"], "name": meta["name"], "uid": meta.get("uid")}
        self.bed.event(about, reason, message, kind, source)

    def revive(self, node: str) -> None:
        """Restarts the kubelet of `node`: it reports the current states and handles missed changes."""
        self.dead.discard(node)
        for run in list(self.runs.values()):
            if run.node != node:
                continue
            pod = self.store.find(PODS, run.meta["namespace"], run.meta["name"])
            if pod is None or pod["metadata"]["uid"] != run.meta["uid"]:
                run.kill()
            else:
                self.sync(run)
        for pod in self.store.select(PODS, fields=f"spec.nodeName={node}"):
            self.on_update(pod, {})

    def run_of(self, pod: Object) -> PodRun | None:
        """The processes of a pod, if it has been started."""
        return self.runs.get(pod["metadata"]["uid"])

    def evict(self, pod: Object, message: str = "The node was low on resource: memory. ") -> None:
        """Evicts a pod because of node pressure: it fails with reason Evicted and is kept."""
        run = self.runs[pod["metadata"]["uid"]]
        run.failure = ("Evicted", message)
        disrupted(self.store, pod, "TerminationByKubelet", message)
        self.event(pod, "Evicted", message, "Warning")
        run.kill()

    def close(self) -> None:
        """Kills every pod."""
        self._closing.set()
        for run in self.runs.values():
            run.kill()
        for run in self.runs.values():
            run.ended.wait(10)

    def _watch_memory(self) -> None:
        while not self._closing.wait(0.25):
            for run in list(self.runs.values()):
                for one in run.main:
                    limit = ((one.spec.get("resources") or {}).get("limits") or {}).get("memory")
                    if limit and one.exit_code is None and one.memory() > quantity.number(limit):
                        one.kill("OOMKilled")


def disrupted(store: object, pod: Object, reason: str, message: str) -> None:
    """Sets the condition DisruptionTarget."""
    meta = pod["metadata"]

    def edit(now_is: Object) -> None:
        set_condition(now_is.setdefault("status", {}), "DisruptionTarget", "True", reason=reason, message=message)

    with suppress(ApiError):
        store.change(PODS, meta["namespace"], meta["name"], edit)  # type: ignore[attr-defined]


def _grace(pod: Object, asked: int | None) -> int:
    """The grace period of a deletion: zero for a pod that does not run."""
    if not pod["spec"].get("nodeName") or (pod.get("status") or {}).get("phase") in _OVER:
        return 0
    return asked if asked is not None else int(pod["spec"].get("terminationGracePeriodSeconds", 30))
