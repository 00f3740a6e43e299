"""Kubernetes API client of the operators: JSON objects, retries during outages, list and watch.

The provider's hook is used for the connection; its calls are not, because each fails after 15 seconds (5 tries), and
long runs see longer outages. Objects are dictionaries: custom resources have no classes, and unknown fields are kept.
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

from operators.pods.outage import FORBIDDEN_S, OUTAGE_S, STARTING_S, Refused, patiently

log = logging.getLogger("sluice.pods")

WATCH_S = 60
"""Seconds after which a watch ends and the objects are listed again: bounds the delay of a silent watch."""

TICK_S = 5.0
"""Seconds after which the objects are yielded without a change, so that the reader checks its deadlines."""

_CALL_S = 30
_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")

Object = dict[str, Any]
Lines = AsyncGenerator[tuple[str, bool], None]


@dataclass(frozen=True)
class Kind:
    """Where the API keeps a kind of object."""

    base: str
    plural: str

    def path(self, namespace: str = "", name: str = "") -> str:
        """Returns the path of one object, or of all in a namespace, or of all."""
        inside = f"/namespaces/{namespace}" if namespace else ""
        return f"{self.base}{inside}/{self.plural}{'/' + name if name else ''}"


PODS = Kind("/api/v1", "pods")
EVENTS = Kind("/api/v1", "events")
NODES = Kind("/api/v1", "nodes")
JOBSETS = Kind("/apis/jobset.x-k8s.io/v1alpha2", "jobsets")
WORKLOADS = Kind("/apis/kueue.x-k8s.io/v1beta2", "workloads")
LOCAL_QUEUES = Kind("/apis/kueue.x-k8s.io/v1beta2", "localqueues")


class Api:
    """JSON to and from the API server that an Airflow connection names.

    Args:
        conn_id: Airflow connection of type `kubernetes`; resolved where this runs, so that no credential is copied
            into a trigger.
        outage_s: patience with a server that is away.
        extras: the connection's settings where they are known already (in a worker); None: they are looked up.
    """

    def __init__(self, conn_id: str, outage_s: float = OUTAGE_S, extras: Mapping[str, Any] | None = None) -> None:
        self.conn_id = conn_id
        self.outage_s = outage_s
        self.extras = extras
        self._hook: AsyncKubernetesHook | None = None
        self._allowed = False

    async def get(self, kind: Kind, namespace: str, name: str, *, optional: bool = False) -> Object:
        """Returns one object; raises Refused (404: there is none). `optional`: a 403 is not waited out."""
        return await self._patiently("GET", kind.path(namespace, name), optional=optional)

    async def list(
        self, kind: Kind, namespace: str, *, labels: str = "", fields: str = "", optional: bool = False
    ) -> Object:
        """Returns the list object: `items`, and `metadata.resourceVersion` to watch from; `optional` as in `get`."""
        return await self._patiently("GET", kind.path(namespace), _selected(labels, fields), optional=optional)

    async def create(self, kind: Kind, namespace: str, body: Object) -> Object:
        """Creates an object; raises Refused (409: the name is taken, also by an earlier try of this very call)."""
        return await self._patiently("POST", kind.path(namespace), body=body)

    async def delete(self, kind: Kind, namespace: str, name: str, *, grace_s: int | None, propagation: str) -> bool:
        """Requests the deletion of an object; returns False where there was none."""
        body: Object = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        try:
            await self._patiently("DELETE", kind.path(namespace, name), body=body)
        except Refused as error:
            if error.status != 404:
                raise
            return False
        return True

    async def annotate(self, kind: Kind, namespace: str, name: str, annotations: dict[str, str]) -> None:
        """Writes annotations of an object; one try."""
        body: Object = {"metadata": {"annotations": annotations}}
        await self._call("PATCH", kind.path(namespace, name), body=body, content="application/merge-patch+json")

    async def lines(self, path: str, query: Mapping[str, str], *, silence_s: float) -> Lines:
        """Yields the lines of a response as they arrive, each with whether it is complete; one try.

        Raises Refused; OSError or aiohttp.ClientError where the stream broke or was silent for `silence_s`.
        """
        timeout = aiohttp.ClientTimeout(total=None, connect=_CALL_S, sock_read=silence_s)
        async with (await self._open()).get_conn() as client:
            answer = await _send(client, "GET", path, query, None, None, timeout)
            try:
                if not 200 <= answer.status <= 299:
                    body = await answer.read()
                    raise Refused(answer.status, str(answer.reason), body)
                rest = b""
                async for chunk in answer.content.iter_any():
                    *whole, rest = (rest + chunk).split(b"\n")
                    for line in whole:
                        yield line.decode("utf-8", "replace"), True
                if rest:
                    yield rest.decode("utf-8", "replace"), False
            finally:
                answer.close()

    async def follow(
        self, kind: Kind, namespace: str, *, labels: str = "", fields: str = ""
    ) -> AsyncGenerator[dict[str, Object], None]:
        """Yields the selected objects by name: as they are, after each change, and every `TICK_S` in between.

        A watch that ends, breaks or is refused (410 Gone, 429, 5xx) leads to a new list. Raises Unreachable where lists
        have failed for longer than the patience, Refused where they are refused (403: no rights, 404: no such kind).
        """
        while True:
            listed = await self.list(kind, namespace, labels=labels, fields=fields)
            objects = {item["metadata"]["name"]: item for item in listed.get("items") or []}
            version = (listed.get("metadata") or {}).get("resourceVersion", "")
            yield dict(objects)
            changes = self._watch(kind, namespace, {**_selected(labels, fields), "resourceVersion": version})
            async with aclosing(_ticking(changes)) as looks:
                async for change in looks:
                    if change is not None:
                        name = change["object"]["metadata"]["name"]
                        objects[name] = change["object"]
                        if change["type"] == "DELETED":
                            yield dict(objects)  # its last words: why it was deleted
                            del objects[name]
                    yield dict(objects)

    async def _watch(self, kind: Kind, namespace: str, query: Mapping[str, str]) -> AsyncGenerator[Object, None]:
        parameters = {**query, "watch": "true", "timeoutSeconds": str(WATCH_S), "allowWatchBookmarks": "true"}
        try:
            async with aclosing(self.lines(kind.path(namespace), parameters, silence_s=WATCH_S + 10)) as lines:
                async for line, whole in lines:
                    event = json.loads(line) if whole else {"type": "ERROR"}
                    if event["type"] == "ERROR":
                        break  # 410 Gone, or a line cut short: list again
                    if event["type"] != "BOOKMARK":
                        yield event
        except (Refused, aiohttp.ClientError, OSError, ValueError) as error:
            log.debug("watch of %s ended: %s", kind.plural, error)
        # Also after a refusal, so that a server without watch, or without the right to it, is polled.
        # Jitter, so that not all watches reconnect at once.
        await asyncio.sleep(random.uniform(0.5, 1.5))

    async def _patiently(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        optional: bool = False,
    ) -> Object:
        forbidden_s = 0.0 if optional else FORBIDDEN_S if self._allowed else STARTING_S
        what = f"{method} {path}"
        answer = await patiently(lambda: self._call(method, path, query, body), self.outage_s, what, forbidden_s)
        self._allowed = True
        return answer

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content: str = "application/json",
    ) -> Object:
        async with (await self._open()).get_conn() as client:
            answer = await _send(client, method, path, query or {}, body, content, _CALL_S)
            data = await answer.read()
            if answer.status == 401:
                self._hook = None  # an expired token is read again
            if not 200 <= answer.status <= 299:
                raise Refused(answer.status, str(answer.reason), data, answer.headers.get("Retry-After", ""))
            found: Object = json.loads(data or b"{}")
            return found

    async def _open(self) -> AsyncKubernetesHook:
        if self._hook is None:
            extras = dict(await self._looked_up() if self.extras is None else self.extras)
            if not any(
                value for name, value in extras.items() if name.endswith(("in_cluster", "kube_config", "_path"))
            ):
                # As the provider's synchronous hook does, and its asynchronous one does not.
                extras["in_cluster"] = _TOKEN.exists()
            self._hook = AsyncKubernetesHook(conn_id=self.conn_id, connection_extras=extras)
        return self._hook

    async def _looked_up(self) -> dict[str, Any]:
        # Not through the hook: it calls the supervisor synchronously, which fails inside an event loop.
        try:
            return dict(await get_async_extra_dejson(await get_async_connection(self.conn_id)))
        except AirflowNotFoundException:
            return {}


async def _ticking(changes: AsyncGenerator[Object, None]) -> AsyncGenerator[Object | None, None]:
    """Yields the items; yields None whenever there was none for `TICK_S`."""
    coming = asyncio.ensure_future(anext(changes))
    try:
        while True:
            done, _ = await asyncio.wait({coming}, timeout=TICK_S)
            if not done:
                yield None
                continue
            try:
                change = coming.result()
            except StopAsyncIteration:
                return
            coming = asyncio.ensure_future(anext(changes))
            yield change
    finally:
        coming.cancel()
        await asyncio.wait({coming})
        await changes.aclose()


def _selected(labels: str, fields: str) -> dict[str, str]:
    selectors = {"labelSelector": labels, "fieldSelector": fields}
    return {name: value for name, value in selectors.items() if value}


async def _send(client: Any, method: str, path: str, query: Any, body: Any, content: str | None, timeout: Any) -> Any:
    headers = {"Accept": "application/json, */*", **({"Content-Type": content} if content else {})}
    options = {"body": body, "auth_settings": ["BearerToken"], "_preload_content": False, "_request_timeout": timeout}
    return await client.call_api(path, method, query_params=list(query.items()), header_params=headers, **options)


def message_of(error: ApiException) -> str:
    """Returns the message of the server's refusal."""
    return str(getattr(error, "message", error.reason))
