"""Executes requests on the store: create, read, change and delete any object; evictions and tokens."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from tests.cluster.bed import admission
from tests.cluster.bed.kubelet import disrupted
from tests.cluster.bed.resources import PODS, SERVICE_ACCOUNTS, ApiError, Object, invalid
from tests.cluster.bed.routes import Route
from tests.cluster.bed.selectors import patched

if TYPE_CHECKING:
    from tests.cluster.bed.server import Bed

_EVICTION = "Eviction API: evicting"
_NOT_ALLOWED = ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def act(bed: Bed, wanted: Route, query: dict[str, str], body: Any, content_type: str) -> tuple[Object, int]:
    """Executes a request and returns its response and status.

    Raises:
        ApiError: it is refused.
    """
    one = (wanted.resource, wanted.namespace, wanted.name)
    dry = "All" in query.get("dryRun", "")
    if wanted.verb == "create":
        return _post(bed, wanted, body, dry), 201
    if wanted.verb == "get":
        return bed.store.get(*one), 200
    if wanted.verb == "list":
        return _list(bed, wanted, query), 200
    if wanted.verb == "update":
        return bed.store.change(*one, lambda now: _replaced(now, body, wanted.part), dry), 200
    if wanted.verb == "patch":
        return bed.store.change(*one, lambda now: _patched(now, body, content_type, wanted), dry), 200
    if wanted.verb == "delete" and wanted.name:
        return _delete(bed, wanted, query, body or {}), 200
    if wanted.verb == "delete":
        return _delete_many(bed, wanted, query, body or {}), 200
    raise _NOT_ALLOWED


def _post(bed: Bed, wanted: Route, body: Any, dry: bool) -> Object:
    if not wanted.name:
        return _create(bed, wanted, body, dry)
    if wanted.part == "eviction" and wanted.resource == PODS:
        return _evict(bed, wanted, body)
    if wanted.part == "token" and wanted.resource == SERVICE_ACCOUNTS:
        return _token(bed, wanted)
    raise _NOT_ALLOWED


def _create(bed: Bed, wanted: Route, body: Any, dry: bool) -> Object:
    if not isinstance(body, dict):
        raise ApiError(400, "BadRequest", "the object provided is unrecognized")
    meta = body.setdefault("metadata", {})
    if wanted.resource.namespaced:
        if meta.get("namespace") not in (None, "", wanted.namespace):
            said = "the namespace of the provided object does not match the namespace sent on the request"
            raise ApiError(400, "BadRequest", said)
        meta["namespace"] = wanted.namespace
    meta = {key: value for key, value in meta.items() if value is not None}
    body["metadata"] = meta
    if not meta.get("name") and not meta.get("generateName"):
        raise invalid(wanted.resource, "", "metadata.name: Required value: name or generateName is required")
    return bed.create(wanted.resource, body, dry)


def _list(bed: Bed, wanted: Route, query: dict[str, str]) -> Object:
    with bed.store.changed:
        items = bed.store.select(
            wanted.resource, wanted.namespace, query.get("labelSelector", ""), query.get("fieldSelector", "")
        )
        meta = {"resourceVersion": str(bed.store.version)}
    kind = f"{wanted.resource.kind}List"
    return {"kind": kind, "apiVersion": wanted.resource.api_version, "metadata": meta, "items": items}


def _replaced(now: Object, body: Object, part: str) -> Object:
    if part == "status":
        return {**now, "status": body.get("status") or {}, "metadata": {**now["metadata"], **_version(body)}}
    return {**body, "status": now.get("status")} if "status" in now else body


def _version(body: Object) -> Object:
    version = (body.get("metadata") or {}).get("resourceVersion")
    return {"resourceVersion": version} if version else {}


def _patched(now: Object, body: Any, content_type: str, wanted: Route) -> Object:
    new = patched(now, body, content_type)
    if wanted.part == "status":
        return {**now, "status": new.get("status") or {}, "metadata": {**now["metadata"], **_version(new)}}
    admission.check_names(wanted.resource, new["metadata"])
    return {**new, "status": now["status"]} if "status" in now else new


def _delete(bed: Bed, wanted: Route, query: dict[str, str], body: Object) -> Object:
    asked = body.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
    policy = body.get("propagationPolicy") or query.get("propagationPolicy") or "Background"
    uid = (body.get("preconditions") or {}).get("uid")
    obj = bed.store.get(wanted.resource, wanted.namespace, wanted.name)
    if uid and uid != obj["metadata"]["uid"]:
        raise ApiError(409, "Conflict", f"Precondition failed: UID in precondition: {uid}")
    grace = None if asked is None else int(asked)
    return bed.store.delete(wanted.resource, wanted.namespace, wanted.name, grace, policy)


def _delete_many(bed: Bed, wanted: Route, query: dict[str, str], body: Object) -> Object:
    for obj in _list(bed, wanted, query)["items"]:
        where = Route("delete", wanted.resource, obj["metadata"].get("namespace", ""), obj["metadata"]["name"], "")
        _delete(bed, where, query, body)
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


def _evict(bed: Bed, wanted: Route, body: Object) -> Object:
    pod = bed.store.get(PODS, wanted.namespace, wanted.name)
    disrupted(bed.store, pod, "EvictionByEvictionAPI", _EVICTION)
    asked = ((body or {}).get("deleteOptions") or {}).get("gracePeriodSeconds")
    bed.store.delete(PODS, wanted.namespace, wanted.name, asked)
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def _token(bed: Bed, wanted: Route) -> Object:
    """A token of a service account; without role bindings it has no rights."""
    bed.store.get(SERVICE_ACCOUNTS, wanted.namespace, wanted.name)
    token = secrets.token_hex(16)
    bed.tokens[token] = f"system:serviceaccount:{wanted.namespace}:{wanted.name}"
    return {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {}, "spec": {}} | {
        "status": {"token": token, "expirationTimestamp": "2100-01-01T00:00:00Z"}
    }
