"""Creates, finds and deletes the Dask cluster of a DAG run through the Kubernetes API.

All calls are idempotent: an existing cluster is adopted, a missing one counts as deleted. Configuration errors (no
operator, no rights, no quota, no image, no such node pool) are reported within a minute.

Required rights in the namespace: create, get and delete of daskclusters and daskautoscalers; get of services; list
of pods and events; list of nodes if the cluster grants it.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, NoReturn, TypeVar

from kubernetes_asyncio.client.exceptions import ApiException
from kubernetes_asyncio.config import ConfigException

from operators.dask.manifests import API, COMM, OWNER, STATUS, Object
from operators.pods.api import EVENTS, NODES, PODS, Api, Kind, message_of
from operators.pods.failure import PodFailure, failure_of, heals_seldom
from operators.pods.outage import Unreachable
from operators.pods.waiting import SURE_S, UNLIKELY_S, broken_by, why_waiting
from tasks.core.errors import RecipeError, TransientError
from tasks.run.place import DaskPods

log = logging.getLogger("sluice.dask")

CLUSTERS = Kind(f"/apis/{API}", "daskclusters")
AUTOSCALERS = Kind(f"/apis/{API}", "daskautoscalers")
SERVICES = Kind("/api/v1", "services")

START_S = 600.0
"""How long a cluster may take where nothing is known to be wrong: a new node, a large image."""
OPERATOR_S = 30.0
"""Seconds within which the Dask operator must process a new cluster."""
OUTAGE_S = 45.0
REMOVE_S = 300.0
"""Seconds for the deletion of a cluster. The operator keeps it by a finalizer, and checks only once a minute while it
waits for a scheduler that never started."""
LOOK_S = 1.0
SAY_S = 30.0
"""Seconds between two lines of a deletion that takes long."""

T = TypeVar("T")


@dataclass(frozen=True)
class Cluster:
    """A cluster that is up: its name, and where it is reached."""

    name: str
    namespace: str
    address: str
    status_page: str

    def to_json(self) -> dict[str, str]:
        """Returns it as a task's XCom."""
        return asdict(self)


def make(pods: DaskPods, cluster: Object, autoscaler: Object | None) -> Cluster:
    """Creates a cluster, or adopts that of the run, and waits for its scheduler and its first worker.

    Raises:
        RecipeError: the cluster cannot be created as configured by the place.
        TransientError: it is not up in time, or the Kubernetes API is away.
    """
    return _run(lambda api: _make(api, cluster, autoscaler), pods)


class Removal(StrEnum):
    """How the deletion of a cluster ended, in words for the log."""

    REMOVED = "removed"
    ABSENT = "there is none any more"
    LEFT = "has no pods any more; its object is still listed, and goes when its finalizers do"
    """Kubernetes ends it without us: the deletion is accepted, and what belongs to it has owner references."""


def remove(pods: DaskPods, name: str) -> Removal:
    """Deletes a cluster and waits until its object is gone, at most for `REMOVE_S`.

    Raises:
        TransientError: pods of it are still there after that.
    """
    return _run(lambda api: _remove(api, pods.namespace, name), pods)


def _run(work: Callable[[Api], Coroutine[Any, Any, T]], pods: DaskPods) -> T:
    try:
        return asyncio.run(work(Api(pods.conn_id, OUTAGE_S)))
    except ApiException as error:
        _refused(error, pods.namespace)
    except ConfigException as error:
        raise RecipeError(
            f"the Airflow connection {pods.conn_id} leads to no Kubernetes cluster ({error})",
            "give it a kubeconfig, or set in_cluster",
        ) from None
    except Unreachable as error:
        raise TransientError(str(error), f"check the connection {pods.conn_id}") from None


def _refused(error: ApiException, namespace: str) -> NoReturn:
    """Raises the error for a refusal of the API server, with a remedy."""
    message = message_of(error)
    if error.status == 404 and "namespaces" in message:
        raise RecipeError(f"{message}", "correct [place.dask.kubernetes] namespace, or make it") from None
    if error.status == 404 and '"' in message:
        raise TransientError(f"the Dask cluster was removed while it was being made: {message}") from None
    if error.status == 404:
        raise RecipeError(
            f"this Kubernetes cluster knows no DaskCluster ({API})",
            "install the Dask operator: helm install dask --repo https://helm.dask.org dask-kubernetes-operator",
        ) from None
    if error.status == 403 and "exceeded quota" in message:
        raise RecipeError(f"no quota for a Dask cluster: {message}", "have the quota raised, or ask for less") from None
    if error.status in (401, 403):
        raise RecipeError(
            f"Airflow may not make Dask clusters in {namespace}: {message}",
            "bind the role of k8s/ for daskclusters and daskautoscalers to Airflow's service account",
        ) from None
    raise RecipeError(f"the Kubernetes API refuses the Dask cluster ({error.status}): {message}") from None


async def _make(api: Api, cluster: Object, autoscaler: Object | None) -> Cluster:
    meta = cluster["metadata"]
    made = await _created(api, cluster)
    if autoscaler is not None:
        with _there_already():
            await api.create(AUTOSCALERS, meta["namespace"], _owned(autoscaler, made))
    return await _Start(api, meta["namespace"], meta["name"]).wait()


def _owned(made: Object, owner: Object) -> Object:
    """Returns an object that Kubernetes deletes with its owner, whoever deletes that."""
    reference = {name: owner[name] for name in ("apiVersion", "kind")}
    reference |= {name: owner["metadata"][name] for name in ("name", "uid")}
    return {**made, "metadata": {**made["metadata"], "ownerReferences": [reference]}}


async def _created(api: Api, cluster: Object) -> Object:
    """Creates the cluster; adopts an existing one of the same run, waits for one that is being deleted."""
    meta = cluster["metadata"]
    deadline = time.monotonic() + REMOVE_S
    while True:
        try:
            made = await api.create(CLUSTERS, meta["namespace"], cluster)
            log.info("Dask cluster %s: made in %s", meta["name"], meta["namespace"])
            return {**cluster, "metadata": made["metadata"]}
        except ApiException as error:
            if error.status != 409:
                raise
        with contextlib.suppress(ApiException):
            there = (await api.get(CLUSTERS, meta["namespace"], meta["name"]))["metadata"]
            owner = (there.get("annotations") or {}).get(OWNER, "nobody that is known")
            if owner != meta["annotations"][OWNER]:
                raise RecipeError(f"the DaskCluster {meta['name']} is of {owner}", "remove it or rename the recipe")
            if "deletionTimestamp" not in there:
                log.info("Dask cluster %s: there already, adopted", meta["name"])
                return {**cluster, "metadata": there}
        if time.monotonic() > deadline:
            raise _still_there(meta["name"])
        await asyncio.sleep(LOOK_S)


class _Start:
    """Waits for one cluster; determines why it is not ready yet."""

    def __init__(self, api: Api, namespace: str, name: str) -> None:
        self.api, self.namespace, self.name = api, namespace, name
        self.began = time.monotonic()
        self.wrong_since: float | None = None
        self.last_reason = ""

    async def wait(self) -> Cluster:
        """Returns the cluster when scheduler and first worker are ready."""
        while True:
            reason, hopeless = await self._look()
            if not reason and (found := await self._reached()):
                log.info("Dask cluster %s: up at %s after %.0f s", self.name, found.address, self._age())
                return found
            self._judge(reason or "its service has no address yet", hopeless)
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> tuple[str, PodFailure | None]:
        """Returns the reason for waiting ("" for none), and a failure for which waiting is useless."""
        status = (await self.api.get(CLUSTERS, self.namespace, self.name)).get("status") or {}
        if status.get("phase") == "Error":
            return "", PodFailure("config", f"the Dask operator calls {self.name} invalid; see its log", True)
        if not status.get("phase"):
            lacking = PodFailure("config", f"no Dask operator has taken up the DaskCluster {self.name}", False,
                                 "start the operator, or have it watch this namespace")  # fmt: skip
            return "waiting for the Dask operator", lacking if self._age() > OPERATOR_S else None
        for component in ("scheduler", "worker"):
            pods = await self._pods(component)
            if not any(_ready(pod) for pod in pods):
                return await self._why(component, pods)
        return "", None

    async def _why(self, component: str, pods: list[Object]) -> tuple[str, PodFailure | None]:
        events = [
            event
            for event in (await self._listed(EVENTS))
            if str((event.get("involvedObject") or {}).get("name", "")).startswith(self.name)
        ]
        if not pods:
            return f"no {component} pod yet", broken_by(events)
        failed = failure_of(pods[-1], component) or _crashing(pods[-1], component)
        if failed:
            return failed.reason, failed
        waits = why_waiting(pods[-1], events, await self._listed(NODES, everywhere=True))
        return f"{component}: {waits.reason}", None if waits.growable else waits.hopeless

    async def _pods(self, component: str) -> list[Object]:
        labels = f"dask.org/cluster-name={self.name},dask.org/component={component}"
        found: list[Object] = (await self.api.list(PODS, self.namespace, labels=labels)).get("items") or []
        return found

    async def _listed(self, kind: Kind, *, everywhere: bool = False) -> list[Object]:
        try:
            return (await self.api.list(kind, "" if everywhere else self.namespace, optional=True)).get("items") or []
        except ApiException:
            return []  # without the right to read them the answer is only less exact

    async def _reached(self) -> Cluster | None:
        try:
            service = await self.api.get(SERVICES, self.namespace, f"{self.name}-scheduler")
        except ApiException as error:
            if error.status != 404:
                raise
            return None
        ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
        host = f"{self.name}-scheduler.{self.namespace}.svc"
        if service["spec"].get("type") == "LoadBalancer":
            given = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or []
            if not given:
                return None
            host = given[0].get("hostname") or given[0]["ip"]
        status_page = f"http://{host}:{ports[STATUS]}"
        return Cluster(self.name, self.namespace, f"tcp://{host}:{ports[COMM]}", status_page)

    def _judge(self, reason: str, hopeless: PodFailure | None) -> None:
        if reason != self.last_reason:
            self.last_reason = reason
            log.info("Dask cluster %s: %s", self.name, reason)
        self.wrong_since = (self.wrong_since or time.monotonic()) if hopeless else None
        patience = UNLIKELY_S if hopeless and heals_seldom(hopeless) else SURE_S
        if hopeless and self.wrong_since and time.monotonic() - self.wrong_since > patience:
            kind = RecipeError if hopeless.permanent else TransientError
            detail = f": {hopeless.last_lines[-1]}" if hopeless.last_lines else ""
            remedy = hopeless.remedy.replace("[place.kubernetes]", "[place.dask.kubernetes]")
            raise kind(f"Dask cluster {self.name}: {hopeless.reason}{detail}", remedy)
        if self._age() > START_S:
            raise TransientError(f"Dask cluster {self.name} is not up after {START_S:.0f} s: {reason}")

    def _age(self) -> float:
        return time.monotonic() - self.began


def _ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _crashing(pod: Object, container: str) -> PodFailure | None:
    """Returns why a container that is started again and again ends each time, or None where it does not."""
    for one in (pod.get("status") or {}).get("containerStatuses") or []:
        ended = (one.get("lastState") or {}).get("terminated")
        if one["name"] == container and ended and one.get("restartCount", 0) > 1:
            lines = tuple(str(ended.get("message") or "").strip().splitlines()[-1:])
            name = pod["metadata"]["name"]
            reason = f"pod {name} ended {one['restartCount']} times, last with exit code {ended.get('exitCode')}"
            return PodFailure("exit", reason, False, "read its log, and check the image", ended.get("exitCode"), lines)
    return None


async def _remove(api: Api, namespace: str, name: str) -> Removal:
    with contextlib.suppress(ApiException):  # it has an owner reference, too
        await api.delete(AUTOSCALERS, namespace, name, grace_s=None, propagation="Background")
    if not await api.delete(CLUSTERS, namespace, name, grace_s=None, propagation="Foreground"):
        return Removal.ABSENT
    began, saying, held = time.monotonic(), time.monotonic() + SAY_S, ""
    while time.monotonic() - began < REMOVE_S:
        try:
            found = await api.get(CLUSTERS, namespace, name)
        except ApiException as error:
            if error.status == 404:
                return Removal.REMOVED
            raise
        held = ", ".join(found["metadata"].get("finalizers") or []) or "nothing"
        if time.monotonic() > saying:
            log.info("Dask cluster %s: waiting until it is gone; it is held by %s", name, held)
            saying += SAY_S
        await asyncio.sleep(LOOK_S)
    pods = await api.list(PODS, namespace, labels=f"dask.org/cluster-name={name}")
    if pods.get("items"):
        raise _still_there(name)
    log.warning("Dask cluster %s: still listed after %.0f s, held by %s. Does the operator run?", name, REMOVE_S, held)
    return Removal.LEFT


def _still_there(name: str) -> TransientError:
    return TransientError(
        f"the DaskCluster {name} is still being deleted after {REMOVE_S:.0f} s", "is the Dask operator running?"
    )


@contextlib.contextmanager
def _there_already() -> Any:
    try:
        yield
    except ApiException as error:
        if error.status != 409:
            raise
