"""The whole bed: store, API server, nodes, kubelets, and operations on them for tests."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import ThreadingHTTPServer
from pathlib import Path

from tests.cluster.bed import admission
from tests.cluster.bed.controllers import Controller, Manager
from tests.cluster.bed.environment import image_environment
from tests.cluster.bed.faults import Faults
from tests.cluster.bed.http import Handler
from tests.cluster.bed.kubelet import Kubelet, disrupted
from tests.cluster.bed.nodes import Scheduler, node
from tests.cluster.bed.pod_run import set_condition
from tests.cluster.bed.resources import BUILT_IN, EVENTS, NAMESPACES, NODES, PODS, ApiError, Object, Resource
from tests.cluster.bed.store import Store, now


class Bed:
    """A cluster; listens on a free port of 127.0.0.1 until it is closed.

    Args:
        folder: working folder of pods; a temporary one by default.
        nodes: node objects (see `nodes.node`); two nodes with 4 GPUs each by default.
    """

    def __init__(
        self, folder: Path | None = None, nodes: list[Object] | None = None, namespace: str = "training"
    ) -> None:
        self.folder = folder or Path(tempfile.mkdtemp(prefix="bed-"))
        self.namespace = namespace
        self.store = Store()
        self.faults = Faults()
        self.kinds: list[Resource] = list(BUILT_IN)
        self.image_env = image_environment()
        self.missing_images: set[str] = set()
        self.registry_down = False
        """Whether every pull ends with 503."""

        self.overlays: list[Callable[[Object, dict[str, str]], dict[str, str]]] = []
        self.tokens: dict[str, str] = {}
        """Bearer token -> user; a user named here has no rights at all. Without a known token: all rights."""

        self.webhooks: list[Callable[[Resource, Object], None]] = []
        """Mutating admission: each may change or refuse a new object."""

        self.starts = 1
        """How often the API server was started; connections of an earlier start are cut off."""

        self.unsynced_until = 0.0
        """Until then all rights of all but administrators (the tests) are unknown to the API server."""

        self.closing = threading.Event()
        self.manager = Manager(self)
        self.kubelet = Kubelet(self)
        self.scheduler = Scheduler(self)
        self.manager.controllers += [self.scheduler, self.kubelet]
        for name in {namespace, "default", "kube-system"}:
            self.store.create(NAMESPACES, {"metadata": {"name": name}, "status": {"phase": "Active"}})
        for one in nodes if nodes is not None else [node("node-a", {"pool": "gpu"}), node("node-b", {"pool": "gpu"})]:
            self.store.create(NODES, one)
        self.manager.start()
        handler = type("BedHandler", (Handler,), {"bed": self})
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, args=(0.1,), name="bed-api", daemon=True).start()

    @property
    def url(self) -> str:
        """The API's address."""
        return f"http://127.0.0.1:{self.http.server_address[1]}"

    def kube_config(self, token: str = "", namespace: str = "") -> Path:
        """Writes a kubeconfig for this cluster and returns its path."""
        user = {"token": token} if token else {}
        context = {"cluster": "bed", "user": "bed", "namespace": namespace or self.namespace}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "bed",
            "clusters": [{"name": "bed", "cluster": {"server": self.url}}],
            "contexts": [{"name": "bed", "context": context}],
            "users": [{"name": "bed", "user": user}],
        }
        path = self.folder / f"kubeconfig{'-' + token[-6:] if token else ''}"
        path.write_text(json.dumps(config))
        return path

    def install(self, controller: Controller) -> None:
        """Adds a kind with its controller."""
        if controller.resource not in self.kinds:
            self.kinds.append(controller.resource)
        self.manager.controllers.append(controller)

    def define(self, *resources: Resource) -> None:
        """Adds kinds without a controller, like a custom resource definition."""
        self.kinds += [one for one in resources if one not in self.kinds]

    def create(self, resource: Resource, obj: Object, dry_run: bool = False) -> Object:
        """Creates an object through admission, like a request.

        Raises:
            ApiError: it is refused.
        """
        with self.store.changed:  # quota is checked and used in one step
            admission.admit(self.store, resource, obj)
            for webhook in self.webhooks:
                webhook(resource, obj)
            return self.store.create(resource, obj, dry_run)

    def later(self, seconds: float, function: Callable[[], None]) -> None:
        """Runs `function` on the controllers' thread, not before `seconds` from now."""
        self.manager.later(seconds, function)

    def overlay(self, pod: Object, env: dict[str, str]) -> dict[str, str]:
        """Differences from a real pod's environment, because host names do not resolve here."""
        for one in self.overlays:
            env = one(pod, env)
        return env

    def event(self, about: Object, reason: str, message: str, kind: str = "Normal", source: str = "kubelet") -> None:
        """Writes an event; repeated events increment its count."""
        name = f"{about['name']}.{abs(hash((about.get('uid'), reason, message))):016x}"
        namespace = about.get("namespace") or "default"

        def again(event: Object) -> None:
            event |= {"count": event["count"] + 1, "lastTimestamp": now()}

        with suppress(ApiError):
            if self.store.find(EVENTS, namespace, name):
                self.store.change(EVENTS, namespace, name, again)
                return
            times = {"firstTimestamp": now(), "lastTimestamp": now(), "count": 1}
            what = {"reason": reason, "message": message, "type": kind, "source": {"component": source}}
            meta = {"name": name, "namespace": namespace}
            self.store.create(EVENTS, {"metadata": meta, "involvedObject": about, **what, **times})

    def restart_api(self, unsynced_s: float = 0.2) -> None:
        """Restarts the API server: streams break, and for `unsynced_s` all other clients get 403."""
        self.unsynced_until = time.monotonic() + unsynced_s
        self.starts += 1

    def kill_kubelet(self, name: str) -> None:
        """Kills the node's kubelet: pods run on, nothing is reported, logs answer 500, deletions have no effect."""
        self.kubelet.dead.add(name)

    def start_kubelet(self, name: str) -> None:
        """Restarts the node's kubelet."""
        self.kubelet.revive(name)

    def lose_node(self, name: str, unreachable_s: float = 0.5, evicted_s: float = 1.0, removed_s: float = 2.0) -> None:
        """Kills a node with everything on it.

        Its pods stay Running; then the node is unreachable, the pods are marked for deletion, and removed with the
        node. In a cluster the steps take 40 s, 300 s more, and the cloud's detection time.
        """
        self.silence_node(name, unreachable_s, evicted_s)
        for run in list(self.kubelet.runs.values()):
            if run.node == name:
                run.kill()
        self.later(removed_s, lambda: self.remove_node(name))

    def silence_node(self, name: str, unreachable_s: float = 0.5, evicted_s: float = 1.0) -> None:
        """Kills a node's kubelet for good: its pods are marked for deletion, and their processes keep running."""
        self.kill_kubelet(name)
        self.later(unreachable_s, lambda: self._unreachable(name))
        self.later(evicted_s, lambda: self._drop_pods(name))

    def remove_node(self, name: str) -> None:
        """Deletes the node object with its pods."""
        with suppress(ApiError):
            self.store.delete(NODES, "", name)
        for pod in self.store.select(PODS, fields=f"spec.nodeName={name}"):
            disrupted(self.store, pod, "DeletionByPodGC", "PodGC: node no longer exists")
            where = (PODS, pod["metadata"]["namespace"], pod["metadata"]["name"])
            with suppress(ApiError):
                self.store.change(*where, lambda now_is: now_is["status"].update(phase="Failed"))
                self.store.delete(*where, grace_s=0)
                self.store.remove(*where)

    def _unreachable(self, name: str) -> None:
        def edit(one: Object) -> None:
            more = {"reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status."}
            set_condition(one["status"], "Ready", "Unknown", **more)
            one["spec"]["taints"] = [
                *(one["spec"].get("taints") or []),
                {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"},
                {"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"},
            ]

        def not_ready(pod: Object) -> None:
            set_condition(pod["status"], "Ready", "False")

        self.store.change(NODES, "", name, edit)
        for pod in self.store.select(PODS, fields=f"spec.nodeName={name},status.phase=Running"):
            self.kubelet.event(pod, "NodeNotReady", "Node is not ready", "Warning", "node-controller")
            self.store.change(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"], not_ready)

    def _drop_pods(self, name: str) -> None:
        for pod in self.store.select(PODS, fields=f"spec.nodeName={name}"):
            if pod["status"]["phase"] in ("Succeeded", "Failed"):
                continue
            disrupted(self.store, pod, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
            said = f"Node {name} which was running pod {pod['metadata']['name']} is unresponsive"

            def edit(now_is: Object, said: str = said) -> None:
                now_is["status"] |= {"reason": "NodeLost", "message": said}

            self.store.change(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"], edit)
            self.store.delete(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"])

    def close(self) -> None:
        """Stops the API and every pod.

        Raises:
            AssertionError: a controller raised an exception.
        """
        self.closing.set()
        self.manager.close()
        self.http.shutdown()
        self.http.server_close()
        assert not self.manager.errors, "\n".join(self.manager.errors)
