"""Maps the path of a request to kind, namespace, name and verb; answers discovery requests."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tests.cluster.bed.resources import Resource

_PATH = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+)/(?P<version>[^/]+))(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<part>[^/]+))?)?"
)
_NAMESPACE = re.compile(r"/api/v1/namespaces(?:/(?P<name>[^/]+)(?:/(?P<part>status|finalize))?)?")
_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True)
class Route:
    """One request: `verb` is create, get, list, watch, patch, update, delete or log; `part` a subresource or ""."""

    verb: str
    resource: Resource
    namespace: str
    name: str
    part: str


def route(kinds: Iterable[Resource], method: str, path: str, query: dict[str, str]) -> Route | None:
    """Returns the parsed request; None for an unknown path."""
    path = path.rstrip("/")
    if at := _NAMESPACE.fullmatch(path):
        found = {"core": "v1", "group": None, "version": None, "plural": "namespaces", "namespace": None}
        found |= at.groupdict()
    elif at := _PATH.fullmatch(path):
        found = at.groupdict()
    else:
        return None
    group, plural = found["group"] or "", found["plural"]
    resource = next((one for one in kinds if (one.group, one.plural) == (group, plural)), None)
    if resource is None:
        return None
    name, part = found["name"] or "", found["part"] or ""
    verb = _VERBS.get(method, "")
    if method == "GET" and part == "log":
        verb = "log"
    elif method == "GET" and query.get("watch") in ("true", "True", "1"):
        verb = "watch"
    elif method == "GET" and not name:
        verb = "list"
    return Route(verb, resource, found["namespace"] or "", name, part)


def discovery(kinds: Iterable[Resource], path: str) -> Any:
    """Returns the response to a discovery request, or None for any other path."""
    path = path.rstrip("/")
    if path == "/version":
        return {"major": "1", "minor": "36", "gitVersion": "v1.36.2", "platform": "linux/amd64"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    groups: dict[str, list[Resource]] = {}
    for one in kinds:
        groups.setdefault(one.api_version, []).append(one)
    if path == "/apis":
        named = [(one, one.partition("/")) for one in groups if "/" in one]
        found = [
            {"name": group, "versions": [one], "preferredVersion": one}
            for one, group in (({"groupVersion": full, "version": v}, g) for full, (g, _, v) in named)
        ]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": found}
    version = path.removeprefix("/apis/").removeprefix("/api/")
    if path.startswith("/api") and version in groups:
        resources = [
            {"name": one.plural, "kind": one.kind, "namespaced": one.namespaced, "singularName": one.kind.lower()}
            | {"verbs": ["create", "delete", "get", "list", "patch", "update", "watch"]}
            for one in groups[version]
        ]
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}
    return None
