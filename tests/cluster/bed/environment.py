"""A container's environment: defaults of the image, `envFrom`, `env` with references, and `$(NAME)` in its command."""

from __future__ import annotations

import base64
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.bed import quantity
from tests.cluster.bed.resources import CONFIG_MAPS, SECRETS, Object, Resource

if TYPE_CHECKING:
    from tests.cluster.bed.store import Store

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
_KEYED = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
_FIELDS = {"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName"}


class ConfigError(Exception):
    """The container cannot be created: CreateContainerConfigError."""


def image_environment() -> dict[str, str]:
    """Environment of the tests' image: this interpreter and its import path."""
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    return {"PATH": path, "PYTHONPATH": ":".join(one for one in sys.path if one), "LANG": "C.UTF-8"}


def environment(store: Store, pod: Object, container: Object, image: dict[str, str]) -> dict[str, str]:
    """Returns the environment of one container of `pod`.

    Raises:
        ConfigError: a secret, a config map or a key of theirs is missing.
    """
    namespace = pod["metadata"]["namespace"]
    env = {**image, "HOSTNAME": pod["spec"].get("hostname") or pod["metadata"]["name"]}
    for source in container.get("envFrom") or []:
        for resource, name in ((SECRETS, "secretRef"), (CONFIG_MAPS, "configMapRef")):
            if reference := source.get(name):
                data = _data(store, resource, namespace, reference)
                env |= {f"{source.get('prefix') or ''}{key}": value for key, value in (data or {}).items()}
    for one in container.get("env") or []:
        value = one.get("value")
        if one.get("valueFrom"):
            value = _referenced(store, pod, container, one["valueFrom"])
            if value is None:
                continue
        env[one["name"]] = expanded(value or "", env)
    return env


def expanded(text: str, env: dict[str, str]) -> str:
    """Expands `$(NAME)`; an unknown name is unchanged, `$$` is a dollar sign."""
    return _REFERENCE.sub(lambda one: "$" if one[0] == "$$" else env.get(one[1], one[0]), text)


def _data(store: Store, resource: Resource, namespace: str, reference: Object) -> dict[str, str] | None:
    found = store.find(resource, namespace, reference["name"])
    if found is None:
        if reference.get("optional"):
            return None
        raise ConfigError(f'{resource.kind.lower()} "{reference["name"]}" not found')
    data = found.get("data") or {}
    if resource == SECRETS:
        data = {key: base64.b64decode(value).decode() for key, value in data.items()} | (found.get("stringData") or {})
    return dict(data)


def _referenced(store: Store, pod: Object, container: Object, source: Object) -> str | None:
    namespace = pod["metadata"]["namespace"]
    for resource, name in ((SECRETS, "secretKeyRef"), (CONFIG_MAPS, "configMapKeyRef")):
        if reference := source.get(name):
            data = _data(store, resource, namespace, reference)
            if data is not None and reference["key"] in data:
                return data[reference["key"]]
            if reference.get("optional"):
                return None
            kind = resource.kind
            raise ConfigError(f"couldn't find key {reference['key']} in {kind} {namespace}/{reference['name']}")
    if field := source.get("fieldRef"):
        return _field(pod, field["fieldPath"])
    where, _, what = source["resourceFieldRef"]["resource"].partition(".")
    return f"{quantity.number(((container.get('resources') or {}).get(where) or {}).get(what, 0)):g}"


def _field(pod: Object, path: str) -> str:
    if keyed := _KEYED.fullmatch(path):
        return str((pod["metadata"].get(keyed[1]) or {}).get(keyed[2], ""))
    if path in ("status.podIP", "status.hostIP"):
        return "127.0.0.1"
    if path not in _FIELDS:
        raise ConfigError(f"field label not supported: {path}")
    above, _, name = path.partition(".")
    return str(pod[above].get(name, ""))
