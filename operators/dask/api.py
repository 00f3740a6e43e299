"""Creates, finds and deletes the Dask cluster of a DAG run through the Kubernetes API.

All calls are idempotent: an existing cluster is adopted, a missing one counts as deleted. Configuration errors (no
DaskCluster resource, no rights, no quota, no image, no such node pool) are reported within a minute; an operator that
does not answer, after `OPERATOR_S`.

Required rights in the namespace: create, get and delete of daskclusters and daskautoscalers; get of services; list
of pods and events; list of nodes if the cluster grants it.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Any, NoReturn, TypeVar

from kubernetes_asyncio.client.exceptions import ApiException
from kubernetes_asyncio.config import ConfigException

from operators.dask.manifests import API, COMM, OWNER, STATUS
from operators.pods.api import EVENTS, NODES, PODS, Api, Kind, message_of
from operators.pods.failure import Object, PodFailure, condition_of, failure_of, registry_unreachable
from operators.pods.outage import Unreachable
from operators.pods.waiting import SURE_S, UNLIKELY_S, missing_dependency, pending_reason
from tasks.core.errors import RecipeError, TransientError
from tasks.run.place import DaskPods

log = logging.getLogger("sluice.dask")

CLUSTERS = Kind(f"/apis/{API}", "daskclusters")
AUTOSCALERS = Kind(f"/apis/{API}", "daskautoscalers")
SERVICES = Kind("/api/v1", "services")

START_S = 600.0
"""Longest start of a cluster without a known error: a new node, a large image."""
OPERATOR_S = 150.0
"""Seconds within which the Dask operator must process a new cluster. After its own start it serves nobody for 65 to 85
seconds (2026.3, Kubernetes 1.36), and before that its pod may have to move to another node."""
OUTAGE_S = 45.0
REMOVE_S = 300.0
"""Longest deletion of a cluster. The operator holds the object with a finalizer, and checks only once a minute while it
waits for a scheduler that never started."""
POLL_S = 1.0
LOG_S = 30.0
"""Seconds between two log lines of a slow deletion."""

T = TypeVar("T")


def create_cluster(pods: DaskPods, cluster: Object, autoscaler: Object | None) -> dict[str, str]:
    """Creates the cluster of a run, or adopts the existing one, and waits for its scheduler and first worker.

    Returns:
        its name, its namespace, the address of its scheduler and the URL of its status page (`status_page`).

    Raises:
        RecipeError: the cluster cannot be created as the place configures it.
        TransientError: it did not start in time, or the Kubernetes API is unavailable.
    """
    return _call(lambda api: _create_cluster(api, cluster, autoscaler), pods)


class Removal(StrEnum):
    """Outcome of the deletion of a cluster, as text for the log."""

    REMOVED = "removed"
    ABSENT = "does not exist any more"
    STUCK = "has no pods any more; its object is deleted when its finalizers are removed"
    """Kubernetes completes it: the deletion is accepted, and dependent objects have owner references."""


def delete_cluster(pods: DaskPods, name: str) -> Removal:
    """Deletes a cluster and waits up to `REMOVE_S` until its object does not exist any more.

    Raises:
        TransientError: some of its pods still exist after that time.
    """
    return _call(lambda api: _delete_cluster(api, pods.namespace, name), pods)


def _call(work: Callable[[Api], Coroutine[Any, Any, T]], pods: DaskPods) -> T:
    try:
        return asyncio.run(work(Api(pods.conn_id, OUTAGE_S)))
    except ApiException as error:
        _raise_refusal(error, pods.namespace)
    except ConfigException as error:
        raise RecipeError(
            f"the Airflow connection {pods.conn_id} leads to no Kubernetes cluster ({error})",
            "give it a kubeconfig, or set in_cluster",
        ) from None
    except Unreachable as error:
        raise TransientError(str(error), f"check the connection {pods.conn_id}") from None


def _raise_refusal(error: ApiException, namespace: str) -> NoReturn:
    """Raises the error for a refusal of the API server, with a remedy."""
    message = message_of(error)
    if error.status == 404 and "namespaces" in message:
        raise RecipeError(f"{message}", "correct [place.dask.kubernetes] namespace, or create the namespace") from None
    if error.status == 404 and '"' in message:
        raise TransientError(f"the Dask cluster was removed while it was being created: {message}") from None
    if error.status == 404:
        raise RecipeError(
            f"this Kubernetes cluster has no DaskCluster resource ({API})",
            "install the Dask operator: helm install dask --repo https://helm.dask.org dask-kubernetes-operator",
        ) from None
    if error.status == 403 and "exceeded quota" in message:
        raise RecipeError(f"no quota for a Dask cluster: {message}", "raise the quota, or request less") from None
    if error.status in (401, 403):
        raise RecipeError(
            f"Airflow may not create Dask clusters in {namespace}: {message}",
            "bind the role of k8s/ for daskclusters and daskautoscalers to Airflow's service account",
        ) from None
    raise RecipeError(f"the Kubernetes API refuses the Dask cluster ({error.status}): {message}") from None


async def _create_cluster(api: Api, cluster: Object, autoscaler: Object | None) -> dict[str, str]:
    meta = cluster["metadata"]
    owner = await _create_or_adopt(api, cluster)
    if autoscaler is not None:
        try:
            await api.create(AUTOSCALERS, meta["namespace"], _with_owner(autoscaler, owner))
        except ApiException as error:
            if error.status != 409:
                raise
    return await _StartupWait(api, meta["namespace"], meta["name"]).wait()


def _with_owner(body: Object, owner: Object) -> Object:
    """Returns the manifest with an owner reference: Kubernetes then deletes the object together with its owner."""
    reference = {name: owner[name] for name in ("apiVersion", "kind")}
    reference |= {name: owner["metadata"][name] for name in ("name", "uid")}
    return {**body, "metadata": {**body["metadata"], "ownerReferences": [reference]}}


async def _create_or_adopt(api: Api, cluster: Object) -> Object:
    """Creates the cluster; adopts an existing one of the same run; waits while one is being deleted."""
    meta = cluster["metadata"]
    deadline = time.monotonic() + REMOVE_S
    while True:
        try:
            created = await api.create(CLUSTERS, meta["namespace"], cluster)
            log.info("Dask cluster %s: created in %s", meta["name"], meta["namespace"])
            return {**cluster, "metadata": created["metadata"]}
        except ApiException as error:
            if error.status != 409:
                raise
        with contextlib.suppress(ApiException):
            existing = (await api.get(CLUSTERS, meta["namespace"], meta["name"]))["metadata"]
            owner = (existing.get("annotations") or {}).get(OWNER, "an unknown owner")
            if owner != meta["annotations"][OWNER]:
                raise RecipeError(
                    f"the DaskCluster {meta['name']} belongs to {owner}", "delete it or rename the recipe"
                )
            if "deletionTimestamp" not in existing:
                log.info("Dask cluster %s: exists already, adopted", meta["name"])
                return {**cluster, "metadata": existing}
        if time.monotonic() > deadline:
            raise _deletion_timeout(meta["name"])
        await asyncio.sleep(POLL_S)


class _StartupWait:
    """Waits for one cluster; determines why it is not ready yet."""

    def __init__(self, api: Api, namespace: str, name: str) -> None:
        self.api, self.namespace, self.name = api, namespace, name
        self.began = time.monotonic()
        self.hopeless_since: float | None = None
        self.last_reason = ""

    async def wait(self) -> dict[str, str]:
        """Returns the cluster when scheduler and first worker are ready."""
        while True:
            reason, hopeless = await self._look()
            if not reason and (cluster := await self._cluster()):
                log.info("Dask cluster %s: up at %s after %.0f s", self.name, cluster["address"], self._age())
                return cluster
            self._judge(reason or "its service has no address yet", hopeless)
            await asyncio.sleep(POLL_S)

    async def _look(self) -> tuple[str, PodFailure | None]:
        """Returns the reason for waiting ("" for none), and the failure if waiting is hopeless."""
        status = (await self.api.get(CLUSTERS, self.namespace, self.name)).get("status") or {}
        if status.get("phase") == "Error":
            return "", PodFailure("config", f"the Dask operator reports {self.name} as invalid; see its log", True)
        if not status.get("phase"):
            failure = PodFailure("config", f"no Dask operator has processed the DaskCluster {self.name}", False,
                                 "start the operator, or have it watch this namespace")  # fmt: skip
            return "waiting for the Dask operator", failure if self._age() > OPERATOR_S else None
        for component in ("scheduler", "worker"):
            pods = await self._pods(component)
            if not any(condition_of(pod, "Ready") for pod in pods):
                return await self._why(component, pods)
        return "", None

    async def _why(self, component: str, pods: list[Object]) -> tuple[str, PodFailure | None]:
        events = [
            event
            for event in (await self._listed(EVENTS))
            if str((event.get("involvedObject") or {}).get("name", "")).startswith(self.name)
        ]
        if not pods:
            return f"no {component} pod yet", missing_dependency(events)
        failure = failure_of(pods[-1], component) or _crash_loop(pods[-1], component)
        if failure:
            return failure.reason, failure
        wait = pending_reason(pods[-1], events, await self._listed(NODES, everywhere=True))
        return f"{component}: {wait.reason}", None if wait.growable else wait.hopeless

    async def _pods(self, component: str) -> list[Object]:
        labels = f"dask.org/cluster-name={self.name},dask.org/component={component}"
        pods: list[Object] = (await self.api.list(PODS, self.namespace, labels=labels)).get("items") or []
        return pods

    async def _listed(self, kind: Kind, *, everywhere: bool = False) -> list[Object]:
        try:
            return (await self.api.list(kind, "" if everywhere else self.namespace, optional=True)).get("items") or []
        except ApiException:
            return []  # without the right to read them the reason is only less exact

    async def _cluster(self) -> dict[str, str] | None:
        try:
            service = await self.api.get(SERVICES, self.namespace, f"{self.name}-scheduler")
        except ApiException as error:
            if error.status != 404:
                raise
            return None
        ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
        host = f"{self.name}-scheduler.{self.namespace}.svc"
        if service["spec"].get("type") == "LoadBalancer":
            ingress = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or []
            if not ingress:
                return None
            host = ingress[0].get("hostname") or ingress[0]["ip"]
        urls = {"address": f"tcp://{host}:{ports[COMM]}", "status_page": f"http://{host}:{ports[STATUS]}"}
        return {"name": self.name, "namespace": self.namespace, **urls}

    def _judge(self, reason: str, hopeless: PodFailure | None) -> None:
        if reason != self.last_reason:
            self.last_reason = reason
            log.info("Dask cluster %s: %s", self.name, reason)
        self.hopeless_since = (self.hopeless_since or time.monotonic()) if hopeless else None
        patience = UNLIKELY_S if hopeless and registry_unreachable(hopeless) else SURE_S
        if hopeless and self.hopeless_since and time.monotonic() - self.hopeless_since > patience:
            kind = RecipeError if hopeless.permanent else TransientError
            detail = f": {hopeless.last_lines[-1]}" if hopeless.last_lines else ""
            remedy = hopeless.remedy.replace("[place.kubernetes]", "[place.dask.kubernetes]")
            raise kind(f"Dask cluster {self.name}: {hopeless.reason}{detail}", remedy)
        if self._age() > START_S:
            raise TransientError(f"Dask cluster {self.name} is not up after {START_S:.0f} s: {reason}")

    def _age(self) -> float:
        return time.monotonic() - self.began


def _crash_loop(pod: Object, container: str) -> PodFailure | None:
    """Returns the failure of a container that crashes after each restart, or None."""
    for status in (pod.get("status") or {}).get("containerStatuses") or []:
        ended = (status.get("lastState") or {}).get("terminated")
        if status["name"] == container and ended and status.get("restartCount", 0) > 1:
            lines = tuple(str(ended.get("message") or "").strip().splitlines()[-1:])
            name = pod["metadata"]["name"]
            reason = f"pod {name} ended {status['restartCount']} times, last with exit code {ended.get('exitCode')}"
            return PodFailure("exit", reason, False, "read its log, and check the image", ended.get("exitCode"), lines)
    return None


async def _delete_cluster(api: Api, namespace: str, name: str) -> Removal:
    with contextlib.suppress(ApiException):  # it has an owner reference, too
        await api.delete(AUTOSCALERS, namespace, name)
    if not await api.delete(CLUSTERS, namespace, name):
        return Removal.ABSENT
    began, next_log_line, finalizers = time.monotonic(), time.monotonic() + LOG_S, ""
    while time.monotonic() - began < REMOVE_S:
        try:
            cluster = await api.get(CLUSTERS, namespace, name)
        except ApiException as error:
            if error.status == 404:
                return Removal.REMOVED
            raise
        finalizers = ", ".join(cluster["metadata"].get("finalizers") or []) or "none"
        if time.monotonic() > next_log_line:
            log.info("Dask cluster %s: waiting for its deletion; finalizers: %s", name, finalizers)
            next_log_line += LOG_S
        await asyncio.sleep(POLL_S)
    pods = await api.list(PODS, namespace, labels=f"dask.org/cluster-name={name}")
    if pods.get("items"):
        raise _deletion_timeout(name)
    log.warning(
        "Dask cluster %s: still listed after %.0f s; finalizers: %s. Is the operator running?",
        name,
        REMOVE_S,
        finalizers,
    )
    return Removal.STUCK


def _deletion_timeout(name: str) -> TransientError:
    return TransientError(
        f"the DaskCluster {name} is still being deleted after {REMOVE_S:.0f} s", "is the Dask operator running?"
    )
