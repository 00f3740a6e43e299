"""Kubernetes API client of the operators: JSON objects, retries during outages, list and watch requests.

Uses the provider's hook for the connection but not for requests: these fail after 15 seconds (5 tries), and long runs
see longer outages. Objects are dictionaries: custom resources have no classes, and unknown fields are kept.
"""

import asyncio
import json
import logging
import random
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from airflow.providers.cncf.kubernetes.hooks.kubernetes import AsyncKubernetesHook
from airflow.providers.common.compat.connection import get_async_connection, get_async_extra_dejson
from airflow.sdk.exceptions import AirflowNotFoundException
from kubernetes_asyncio.client.exceptions import ApiException

from operators.pods.failure import Object
from operators.pods.outage import FORBIDDEN_S, OUTAGE_S, STARTING_S, Refused, retry_outages

log = logging.getLogger("sluice.pods")

WATCH_S = 60
"""Seconds after which a watch ends and the objects are listed again; bounds the delay caused by a silent watch."""

TICK_S = 5.0
"""Seconds after which the objects are yielded without a change, so that the consumer checks its deadlines."""

_CALL_S = 30
_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")

Lines = AsyncGenerator[tuple[str, bool], None]


@dataclass(frozen=True)
class Kind:
    """A kind of object: the base path of its API group, and its plural."""

    base: str
    plural: str

    def path(self, namespace: str = "", name: str = "") -> str:
        """Returns the path of one object, of all objects in a namespace, or of all objects."""
        inside = f"/namespaces/{namespace}" if namespace else ""
        return f"{self.base}{inside}/{self.plural}{'/' + name if name else ''}"

    @property
    def singular(self) -> str:
        """Name of one object."""
        return self.plural.removesuffix("s")


PODS = Kind("/api/v1", "pods")
EVENTS = Kind("/api/v1", "events")
NODES = Kind("/api/v1", "nodes")
JOBSETS = Kind("/apis/jobset.x-k8s.io/v1alpha2", "jobsets")
TRAINJOBS = Kind("/apis/trainer.kubeflow.org/v1alpha1", "trainjobs")
WORKLOADS = Kind("/apis/kueue.x-k8s.io/v1beta2", "workloads")
LOCAL_QUEUES = Kind("/apis/kueue.x-k8s.io/v1beta2", "localqueues")


class Api:
    """Client of the API server of an Airflow connection.

    Args:
        conn_id: Airflow connection of type `kubernetes`; resolved in the process that uses it, so that no credential
            is copied into a trigger.
        outage_s: how long requests are retried while the server is unavailable.
        extras: the extra fields of the connection where they are known already (in a worker); None: look them up.
    """

    def __init__(self, conn_id: str, outage_s: float = OUTAGE_S, extras: Mapping[str, Any] | None = None) -> None:
        self.conn_id = conn_id
        self.outage_s = outage_s
        self.extras = extras
        self._hook: AsyncKubernetesHook | None = None
        self._authorized = False

    async def get(self, kind: Kind, namespace: str, name: str, *, optional: bool = False) -> Object:
        """Returns one object; raises Refused (404: not found). `optional`: a 403 is not retried."""
        return await self._request("GET", kind.path(namespace, name), optional=optional)

    async def list(
        self, kind: Kind, namespace: str, *, labels: str = "", fields: str = "", optional: bool = False
    ) -> Object:
        """Returns the list object with `items` and `metadata.resourceVersion`; `optional` as in `get`."""
        return await self._request("GET", kind.path(namespace), _selectors(labels, fields), optional=optional)

    async def create(self, kind: Kind, namespace: str, body: Object) -> Object:
        """Creates an object; raises Refused (409: the name exists, perhaps from an earlier try of this same call)."""
        return await self._request("POST", kind.path(namespace), body=body)

    async def delete(self, kind: Kind, namespace: str, name: str, grace_s: int = 0) -> bool:
        """Requests the deletion of an object; returns False if it does not exist.

        A pod has `grace_s` seconds to end. The pods of other objects are deleted by the garbage collector before these,
        with the grace period of their own spec.
        """
        body: Object = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground"}
        if kind == PODS:
            body |= {"propagationPolicy": "Background", "gracePeriodSeconds": grace_s}
        try:
            await self._request("DELETE", kind.path(namespace, name), body=body)
        except Refused as error:
            if error.status != 404:
                raise
            return False
        return True

    async def annotate(self, kind: Kind, namespace: str, name: str, annotations: dict[str, str]) -> None:
        """Writes annotations of an object; does not retry."""
        body: Object = {"metadata": {"annotations": annotations}}
        await self._call("PATCH", kind.path(namespace, name), body=body, content="application/merge-patch+json")

    async def lines(self, path: str, query: Mapping[str, str], *, silence_s: float) -> Lines:
        """Yields the lines of a response as they arrive, each with whether it is complete; does not retry.

        Raises:
            Refused: the server answered with an error.
            OSError, aiohttp.ClientError: the stream broke, or was silent for `silence_s`.
        """
        timeout = aiohttp.ClientTimeout(total=None, connect=_CALL_S, sock_read=silence_s)
        async with (await self._open()).get_conn() as client:
            response = await _send(client, "GET", path, query, None, None, timeout)
            try:
                if not 200 <= response.status <= 299:
                    body = await response.read()
                    raise Refused(response.status, str(response.reason), body)
                rest = b""
                async for chunk in response.content.iter_any():
                    *whole, rest = (rest + chunk).split(b"\n")
                    for line in whole:
                        yield line.decode("utf-8", "replace"), True
                if rest:
                    yield rest.decode("utf-8", "replace"), False
            finally:
                response.close()

    async def follow(
        self, kind: Kind, namespace: str, *, labels: str = "", fields: str = ""
    ) -> AsyncGenerator[dict[str, Object], None]:
        """Yields the selected objects by name: initially, after each change, and every `TICK_S` in between.

        After a watch that ends, breaks or is refused (410 Gone, 429, 5xx), the objects are listed again.

        Raises:
            Unreachable: list requests have failed for longer than `outage_s`.
            Refused: a list request was refused (403: no rights, 404: no such kind).
        """
        while True:
            listed = await self.list(kind, namespace, labels=labels, fields=fields)
            objects = {item["metadata"]["name"]: item for item in listed.get("items") or []}
            version = (listed.get("metadata") or {}).get("resourceVersion", "")
            yield dict(objects)
            changes = self._watch(kind, namespace, {**_selectors(labels, fields), "resourceVersion": version})
            async with aclosing(_with_ticks(changes)) as items:
                async for change in items:
                    if change is not None:
                        name = change["object"]["metadata"]["name"]
                        objects[name] = change["object"]
                        if change["type"] == "DELETED":
                            yield dict(objects)  # its last state says why it was deleted
                            del objects[name]
                    yield dict(objects)

    async def _watch(self, kind: Kind, namespace: str, query: Mapping[str, str]) -> AsyncGenerator[Object, None]:
        parameters = {**query, "watch": "true", "timeoutSeconds": str(WATCH_S), "allowWatchBookmarks": "true"}
        try:
            async with aclosing(self.lines(kind.path(namespace), parameters, silence_s=WATCH_S + 10)) as lines:
                async for line, whole in lines:
                    event = json.loads(line) if whole else {"type": "ERROR"}
                    if event["type"] == "ERROR":
                        break  # 410 Gone or a truncated line: list again
                    if event["type"] != "BOOKMARK":
                        yield event
        except (Refused, aiohttp.ClientError, OSError, ValueError) as error:
            log.debug("watch of %s ended: %s", kind.plural, error)
        # Also after a refusal, so that the objects are polled where watch is not available or not permitted.
        # Jitter, so that not all watches reconnect at once.
        await asyncio.sleep(random.uniform(0.5, 1.5))

    async def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        optional: bool = False,
    ) -> Object:
        forbidden_s = 0.0 if optional else FORBIDDEN_S if self._authorized else STARTING_S
        description = f"{method} {path}"
        response = await retry_outages(
            lambda: self._call(method, path, query, body), self.outage_s, description, forbidden_s
        )
        self._authorized = True
        return response

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content: str = "application/json",
    ) -> Object:
        async with (await self._open()).get_conn() as client:
            response = await _send(client, method, path, query or {}, body, content, _CALL_S)
            data = await response.read()
            if response.status == 401:
                self._hook = None  # the next call reads a new token
            if not 200 <= response.status <= 299:
                raise Refused(response.status, str(response.reason), data, response.headers.get("Retry-After", ""))
            result: Object = json.loads(data or b"{}")
            return result

    async def _open(self) -> AsyncKubernetesHook:
        if self._hook is None:
            extras = dict(await self._connection_extras() if self.extras is None else self.extras)
            if not any(
                value for name, value in extras.items() if name.endswith(("in_cluster", "kube_config", "_path"))
            ):
                # The default of the provider's synchronous hook; its asynchronous hook has none.
                extras["in_cluster"] = _TOKEN.exists()
            self._hook = AsyncKubernetesHook(conn_id=self.conn_id, connection_extras=extras)
        return self._hook

    async def _connection_extras(self) -> dict[str, Any]:
        # Not through the hook: it calls the supervisor synchronously, which fails inside an event loop.
        try:
            return dict(await get_async_extra_dejson(await get_async_connection(self.conn_id)))
        except AirflowNotFoundException:
            return {}


async def _with_ticks(changes: AsyncGenerator[Object, None]) -> AsyncGenerator[Object | None, None]:
    """Yields the items, and None whenever no item has arrived for `TICK_S`."""
    pending = asyncio.ensure_future(anext(changes))
    try:
        while True:
            done, _ = await asyncio.wait({pending}, timeout=TICK_S)
            if not done:
                yield None
                continue
            try:
                change = pending.result()
            except StopAsyncIteration:
                return
            pending = asyncio.ensure_future(anext(changes))
            yield change
    finally:
        pending.cancel()
        await asyncio.wait({pending})
        await changes.aclose()


def _selectors(labels: str, fields: str) -> dict[str, str]:
    query = {"labelSelector": labels, "fieldSelector": fields}
    return {name: value for name, value in query.items() if value}


async def _send(client: Any, method: str, path: str, query: Any, body: Any, content: str | None, timeout: Any) -> Any:
    headers = {"Accept": "application/json, */*", **({"Content-Type": content} if content else {})}
    options = {"body": body, "auth_settings": ["BearerToken"], "_preload_content": False, "_request_timeout": timeout}
    return await client.call_api(path, method, query_params=list(query.items()), header_params=headers, **options)


def message_of(error: ApiException) -> str:
    """Returns the message of an error response."""
    return str(getattr(error, "message", error.reason))
