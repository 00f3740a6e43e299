"""The clusters of the suite behind one interface: the bed on loopback, or the cluster of KUBECONFIG.

Tests read a cluster only through the Python client (`core`, `custom`), and disturb it through the
methods of `Cluster`. Operations of only one of the two are skipped on the other, with a reason.
"""

import json
import secrets
import shlex
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml
from kubernetes import client, config
from kubernetes.client import ApiException

from tests.cluster.bed import Bed
from tests.cluster.bed.dask import DaskAutoscalers, DaskClusters
from tests.cluster.bed.faults import Faults
from tests.cluster.bed.jobs import Jobs
from tests.cluster.bed.jobsets import JobSets
from tests.cluster.bed.kueue import Kueue
from tests.cluster.history import History
from tests.cluster.settings import PREFIX, Settings
from tests.waiting import until

JOBSETS = ("jobset.x-k8s.io", "v1alpha2")
KUEUE = ("kueue.x-k8s.io", "v1beta2")
DASK = ("kubernetes.dask.org", "v1")
OURS = "app.kubernetes.io/part-of=sluice"
POD_PLACE = """
[place.train]
where = "kubernetes"
nproc = 1
[place.kubernetes]
"""


class Cluster:
    """Operations of tests on a cluster.

    `namespace`, `image`, `nodes` (names of nodes for pods) and `history` (all pods, including deleted ones)
    exist on both; `slowness` is a factor for time limits relative to loopback.
    """

    image = "trainer:1"
    slowness = 1.0
    gpus = 1
    pod_env: dict[str, str] = {}
    queue = ""

    def __init__(self, kube_config: Path, namespace: str, folder: Path) -> None:
        self.kube_config, self.namespace, self.folder = kube_config, namespace, folder
        api = config.new_client_from_config(str(kube_config))
        api.user_agent = "observer"  # requests of tests are not affected by scripted faults
        self.core = client.CoreV1Api(api)
        self.custom = client.CustomObjectsApi(api)
        self.history = History(kube_config, namespace)

    # Parameters for operators

    def connection(self, kube_config: Path | None = None) -> str:
        """The Airflow connection of this cluster, for its environment variable."""
        extra = {"kube_config_path": str(kube_config or self.kube_config), "namespace": self.namespace}
        return json.dumps({"conn_type": "kubernetes", "extra": {**extra, "in_cluster": False}})

    def place(self, **changes: Any) -> str:
        """The `[place]` sections of a recipe for this cluster; keywords change `[place.kubernetes]`."""
        usual = {"namespace": self.namespace, "image": self.image, "gpus": self.gpus, "cpu": "100m", "memory": "2Gi"}
        wanted = {**usual, "grace_s": 30, "template": str(self.template), **changes}
        env = {"OMP_NUM_THREADS": "1", **self.pod_env, **wanted.pop("env", {})}
        lines = [f"{name} = {_toml(value)}" for name, value in wanted.items()]
        return POD_PLACE + "\n".join(lines) + "\n[place.kubernetes.env]\n" + _toml_table(env)

    def dask_place(self, **changes: Any) -> str:
        """The section of a recipe for Dask on this cluster; keywords change it. Skips if Dask is not available."""
        small = {"cpu": "100m", "memory": "1Gi", "scheduler_cpu": "100m", "min_workers": 1, "max_workers": 1}
        usual = {"namespace": self.namespace, "image": self.image, "service_type": self.dask_service(), **small}
        wanted = {**usual, "template": str(self.dask_template), "secrets": [], **changes}
        lines = [f"{name} = {_toml(value)}" for name, value in wanted.items()]
        return "\n[place.dask.kubernetes]\n" + "\n".join(lines) + "\n"

    def dask_service(self) -> str:
        """The service type by which a scheduler is reachable; ensures that there is a Dask operator, or skips."""
        raise NotImplementedError

    @property
    def dask_template(self) -> Path:
        """The pod template of schedulers and workers."""
        path = self.folder / "dask-template.yaml"
        pod = yaml.safe_load(self.template.read_text())
        pod["spec"]["containers"][0].pop("name")
        path.write_text(yaml.safe_dump(pod))
        return path

    def dask_clusters(self) -> list[Any]:
        """The current DaskClusters."""
        return list(self.custom.list_namespaced_custom_object(*DASK, self.namespace, "daskclusters")["items"])

    @property
    def template(self) -> Path:
        """The pod template: settings of this cluster in addition to those of the recipe."""
        container: dict[str, Any] = {"name": "base", "image": self.image}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": {"containers": [container]}}
        path = self.folder / "pod-template.yaml"
        path.write_text(yaml.safe_dump(pod))
        return path

    def store(self, folder: Path) -> Path:
        """A folder for the artifacts of one test, at the same path on this machine and in the pods."""
        return folder / "store"

    def stranger(self) -> Path:
        """A kubeconfig without rights: of a service account without role bindings."""
        account = client.V1ServiceAccount(metadata=client.V1ObjectMeta(name="stranger"))
        with suppress(ApiException):
            self.core.create_namespaced_service_account(self.namespace, account)
        asked = client.AuthenticationV1TokenRequest(spec=client.V1TokenRequestSpec(audiences=[]))
        token = self.core.create_namespaced_service_account_token("stranger", self.namespace, asked).status.token
        known = yaml.safe_load(self.kube_config.read_text())
        named = {one["name"]: one["context"] for one in known["contexts"]}[known["current-context"]]
        for one in known["users"]:
            if one["name"] == named["user"]:
                one["user"] = {"token": token}
        path = self.folder / "kubeconfig-stranger"
        path.write_text(yaml.safe_dump(known))
        return path

    # Queries

    def pod(self, phase: str = "Running", limit_s: float = 60, label: str = OURS) -> Any:
        """Waits for a pod of ours in this phase and returns it."""
        return self.until(
            lambda: next(
                (
                    pod
                    for pod in self.core.list_namespaced_pod(self.namespace, label_selector=label).items
                    if pod.status.phase == phase and pod.metadata.deletion_timestamp is None
                ),
                None,
            ),
            limit_s,
        )

    def pods(self, label: str = OURS) -> list[Any]:
        """Our current pods."""
        return list(self.core.list_namespaced_pod(self.namespace, label_selector=label).items)

    def log(self, pod: str, **more: Any) -> str:
        """A pod's current log."""
        answer = self.core.read_namespaced_pod_log(pod, self.namespace, _preload_content=False, **more)
        return str(answer.data.decode())

    def log_says(self, pod: str, words: str, limit_s: float = 60) -> None:
        """Waits until a pod's log contains `words`."""

        def said() -> bool:
            with suppress(ApiException):
                return words in self.log(pod)
            return False

        self.until(said, limit_s)

    def until(self, true: Callable[[], Any], limit_s: float = 60) -> Any:
        """Waits until `true()` is true and returns its value."""
        return until(true, limit_s * self.slowness)

    # Disturbances

    def evict(self, pod: str) -> None:
        """Evicts a pod through the API, with its own grace period."""
        meta = client.V1ObjectMeta(name=pod, namespace=self.namespace)
        self.core.create_namespaced_pod_eviction(pod, self.namespace, client.V1Eviction(metadata=meta))

    def kill_pod(self, pod: str) -> None:
        """Deletes a pod without a grace period."""
        self.core.delete_namespaced_pod(pod, self.namespace, grace_period_seconds=0)

    @property
    def faults(self) -> Faults:
        """Scripted faults of the API; only on the loopback bed."""
        raise NotImplementedError

    def stop_kubelet(self, node: str) -> None:
        """Stops the kubelet of a node; its containers keep running."""
        raise NotImplementedError

    def start_kubelet(self, node: str) -> None:
        """Restarts it."""
        raise NotImplementedError

    def silence_node(self, node: str) -> None:
        """Stops the kubelet of a node until its pods are abandoned; its containers keep running."""
        raise NotImplementedError

    def lose_node(self, node: str) -> None:
        """Removes a node with everything on it."""
        raise NotImplementedError

    def only_here(self, why: str) -> Bed:
        """The bed, for faults that cannot be caused from outside a cluster; skips on other clusters."""
        raise NotImplementedError

    def close(self) -> None:
        """Removes everything."""
        self.history.close()


class Loopback(Cluster):
    """The bed of the tests, new for each test."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.bed = Bed(folder)
        self.bed.install(Jobs(self.bed))
        self.bed.install(JobSets(self.bed))
        self.kueue = Kueue(self.bed)
        self.bed.install(self.kueue)
        self.dask: DaskClusters | None = None
        self.nodes = ("node-a", "node-b")
        super().__init__(self.bed.kube_config(), self.bed.namespace, folder)

    def dask_service(self) -> str:
        if not self.dask:
            (self.bed.folder / "spill").mkdir()
            self.dask = DaskClusters(self.bed)
            self.bed.install(self.dask)
            self.bed.install(DaskAutoscalers(self.bed))
        return "LoadBalancer"

    @property
    def faults(self) -> Faults:
        return self.bed.faults

    def stop_kubelet(self, node: str) -> None:
        self.bed.kill_kubelet(node)

    def start_kubelet(self, node: str) -> None:
        self.bed.start_kubelet(node)

    def silence_node(self, node: str) -> None:
        self.bed.silence_node(node)

    def lose_node(self, node: str) -> None:
        self.bed.lose_node(node)

    def only_here(self, why: str) -> Bed:
        return self.bed

    def close(self) -> None:
        super().close()
        self.bed.close()


class Real(Cluster):
    """The cluster of KUBECONFIG."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        folder.mkdir()
        if not settings.image or not settings.store:
            pytest.fail(f"KUBECONFIG is set: set {PREFIX}IMAGE and {PREFIX}STORE too (tests/cluster/README.md)")
        self.settings = settings
        self.image, self.slowness, self.gpus = settings.image, settings.slowness, settings.gpus
        self.pod_env, self.queue = settings.pod_env, settings.queue
        kube_config = Path(settings.kube_config)
        self.made = "" if settings.namespace else f"sluice-test-{secrets.token_hex(3)}"
        if self.made:
            api = client.CoreV1Api(config.new_client_from_config(str(kube_config)))
            api.create_namespace({"metadata": {"name": self.made}})
        super().__init__(kube_config, settings.namespace or self.made, folder)
        self.nodes = settings.nodes or tuple(one.metadata.name for one in self.core.list_node().items)
        self._stopped: list[str] = []
        self._lost: list[str] = []

    @property
    def template(self) -> Path:
        if self.settings.template:
            return Path(self.settings.template)
        path = super().template
        pod = yaml.safe_load(path.read_text())
        volumes = [one.split(":") for one in self.settings.volumes]
        pod["spec"]["hostNetwork"] = self.settings.host_network
        pod["spec"]["volumes"] = [
            {"name": f"host-{at}", "hostPath": {"path": host}} for at, (host, *_) in enumerate(volumes)
        ]
        pod["spec"]["containers"][0]["volumeMounts"] = [
            {"name": f"host-{at}", "mountPath": rest[0] if rest else host, "readOnly": rest[1:] == ["ro"]}
            for at, (host, *rest) in enumerate(volumes)
        ]
        path.write_text(yaml.safe_dump(pod))
        return path

    def store(self, folder: Path) -> Path:
        return Path(self.settings.store) / f"{folder.name}-{secrets.token_hex(3)}"

    def dask_service(self) -> str:
        try:
            self.dask_clusters()
        except ApiException:
            _skip("the cluster has no Dask operator (no DaskCluster of kubernetes.dask.org/v1)")
        if not self.settings.dask_service:
            _skip(f"set {PREFIX}DASK_SERVICE to how a Dask scheduler is reached from here: LoadBalancer or ClusterIP")
        return self.settings.dask_service

    @property
    def faults(self) -> Faults:
        _skip("faults of the API server are scripted on the loopback bed only (unset KUBECONFIG)")

    def stop_kubelet(self, node: str) -> None:
        self._command("STOP_KUBELET", self.settings.stop_kubelet, node)
        self._stopped.append(node)

    def start_kubelet(self, node: str) -> None:
        self._command("START_KUBELET", self.settings.start_kubelet, node)
        self._stopped.remove(node)

    def silence_node(self, node: str) -> None:
        # Kubernetes abandons the pods after 40 s and `[place.kubernetes] node_silent_s`.
        self.stop_kubelet(node)

    def lose_node(self, node: str) -> None:
        self._command("LOSE_NODE", self.settings.lose_node, node)
        self._lost.append(node)

    def only_here(self, why: str) -> Bed:
        _skip(f"{why}: on the loopback bed only (unset KUBECONFIG)")

    def close(self) -> None:
        super().close()
        for node in list(self._stopped):
            self.start_kubelet(node)
        for node in self._lost if self.settings.return_node else ():
            self._command("RETURN_NODE", self.settings.return_node, node)
        self._sweep()
        if self.made:
            self.core.delete_namespace(self.made)

    def _sweep(self) -> None:
        """Removes the objects of a test, and waits for their deletion, because the next test counts pods."""
        with suppress(ApiException):
            for one in self.custom.list_namespaced_custom_object(*JOBSETS, self.namespace, "jobsets")["items"]:
                where = (*JOBSETS, self.namespace, "jobsets", one["metadata"]["name"])
                self.custom.delete_namespaced_custom_object(*where, propagation_policy="Foreground")
        with suppress(ApiException):
            for one in self.dask_clusters():
                where = (*DASK, self.namespace, "daskclusters", one["metadata"]["name"])
                self.custom.delete_namespaced_custom_object(*where, propagation_policy="Foreground")
        for pod in self.pods():
            with suppress(ApiException):
                self.core.delete_namespaced_pod(pod.metadata.name, self.namespace, grace_period_seconds=5)
        self.until(lambda: not self.pods(), 60)

    def _command(self, name: str, command: str, node: str) -> None:
        if not command:
            _skip(f"set {PREFIX}{name} to a command with {{node}} in it")
        subprocess.run(command.replace("{node}", shlex.quote(node)), shell=True, check=True, timeout=120)


def _skip(why: str) -> NoReturn:
    pytest.skip(why)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(one) for one in value) + "]"
    return json.dumps(value)


def _toml_table(values: dict[str, str]) -> str:
    return "".join(f"{json.dumps(name)} = {_toml(value)}\n" for name, value in values.items())
