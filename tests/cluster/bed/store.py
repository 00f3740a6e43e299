"""The object store behind the API: any kind, with resource versions, history for watches, and deletion in steps."""

import copy
import secrets
import threading
import uuid
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tests.cluster.bed.resources import Object, Resource, already_exists, conflict, expired, not_found
from tests.cluster.bed.selectors import fields_match, labels_match

Key = tuple[str, str, str, str]
FOREGROUND = "foregroundDeletion"


def now(after_s: float = 0) -> str:
    """The current time in the format of Kubernetes."""
    return (datetime.now(UTC) + timedelta(seconds=after_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class Change:
    """One entry of the history, as sent by a watch. `before` is the previous object."""

    version: int
    type: str
    resource: Resource
    object: Object
    before: Object | None


class Store:
    """Objects by kind, namespace and name. Every method returns copies; thread-safe."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.version = 1000
        self.oldest = 0
        self.history: list[Change] = []
        self.grace: dict[Resource, Callable[[Object, int | None], int]] = {}
        self._objects: dict[Key, Object] = {}

    def create(self, resource: Resource, obj: Object, dry_run: bool = False) -> Object:
        """Stores a new object under its name (or `generateName` and five random characters).

        Raises:
            ApiError: 409, the name is taken.
        """
        obj = copy.deepcopy(obj)
        meta = obj.setdefault("metadata", {})
        if not meta.get("name"):
            meta["name"] = meta.get("generateName", "") + secrets.token_hex(3)[:5]
        obj |= {"apiVersion": resource.api_version, "kind": resource.kind}
        with self.changed:
            key = _key(resource, meta.get("namespace", ""), meta["name"])
            if key in self._objects:
                raise already_exists(resource, meta["name"])
            meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": now(), "generation": 1}
            if dry_run:
                return obj
            self._commit("ADDED", resource, key, obj, None)
            return copy.deepcopy(obj)

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        """Returns an object.

        Raises:
            ApiError: 404.
        """
        with self.changed:
            found = self._objects.get(_key(resource, namespace, name))
            if found is None:
                raise not_found(resource, name)
            return copy.deepcopy(found)

    def find(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """Returns an object, or None."""
        with self.changed:
            return copy.deepcopy(self._objects.get(_key(resource, namespace, name)))

    def select(self, resource: Resource, namespace: str = "", labels: str = "", fields: str = "") -> list[Object]:
        """Returns the objects that match both selectors, by default in all namespaces."""
        with self.changed:
            return [
                copy.deepcopy(obj)
                for (group, plural, where, _), obj in sorted(self._objects.items())
                if (group, plural) == (resource.group, resource.plural)
                and namespace in ("", where)
                and labels_match(labels, obj["metadata"].get("labels") or {})
                and fields_match(fields, obj)
            ]

    def change(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        edit: Callable[[Object], Object | None],
        dry_run: bool = False,
    ) -> Object:
        """Edits an object in place, or replaces it by the result of `edit`; without a difference nothing happens.

        Raises:
            ApiError: 404; 409, the edited object has an old resource version.
        """
        with self.changed:
            old = self.get(resource, namespace, name)
            new = copy.deepcopy(old)
            new = edit(new) or new
            if new["metadata"].get("resourceVersion") not in (None, "", old["metadata"]["resourceVersion"]):
                raise conflict(resource, name)
            for kept in ("uid", "name", "namespace", "creationTimestamp", "resourceVersion", "deletionTimestamp"):
                if kept in old["metadata"]:
                    new["metadata"][kept] = old["metadata"][kept]
            if new == old or dry_run:
                return new
            if new.get("spec") != old.get("spec"):
                new["metadata"]["generation"] = old["metadata"].get("generation", 1) + 1
            key = _key(resource, namespace, name)
            self._commit("MODIFIED", resource, key, new, old)
            self._end(resource, key)
            return copy.deepcopy(new)

    def delete(
        self, resource: Resource, namespace: str, name: str, grace_s: int | None = None, policy: str = "Background"
    ) -> Object:
        """Starts the deletion of an object: at once, or after its grace period and its finalizers."""
        with self.changed:
            obj = self.get(resource, namespace, name)
            meta, old = obj["metadata"], copy.deepcopy(obj)
            grace = self.grace[resource](obj, grace_s) if resource in self.grace else 0
            if policy == "Foreground" and FOREGROUND not in meta.get("finalizers", []):
                meta["finalizers"] = [*meta.get("finalizers", []), FOREGROUND]
            shorter = grace < meta.get("deletionGracePeriodSeconds", grace + 1)
            if "deletionTimestamp" not in meta or shorter:
                meta |= {"deletionTimestamp": now(grace), "deletionGracePeriodSeconds": grace}
            key = _key(resource, namespace, name)
            if obj != old:
                self._commit("MODIFIED", resource, key, obj, old)
            self._end(resource, key)
            return copy.deepcopy(obj)

    def remove(self, resource: Resource, namespace: str, name: str) -> None:
        """Ends the grace period of an object, if it still exists; finalizers still block its deletion."""
        with self.changed:
            key = _key(resource, namespace, name)
            if obj := self._objects.get(key):
                obj["metadata"].setdefault("deletionTimestamp", now())
                obj["metadata"]["deletionGracePeriodSeconds"] = 0
                self._end(resource, key)

    def after(self, version: int, timeout_s: float) -> list[Change]:
        """Waits for changes after `version` and returns them; an empty list after `timeout_s`.

        Raises:
            ApiError: 410, the history of that version has expired.
        """
        with self.changed:
            if version < self.oldest:
                raise expired(str(version), self.oldest)
            if self.version <= version:
                self.changed.wait(timeout_s)
            if version < self.oldest:
                raise expired(str(version), self.oldest)
            return self.history[bisect_right(self.history, version, key=lambda one: one.version) :]

    def compact(self) -> None:
        """Drops the history: every open watch ends with 410, and older versions are expired."""
        with self.changed:
            self.version += 1
            self.oldest = self.version
            self.history.clear()
            self.changed.notify_all()

    def _end(self, resource: Resource, key: Key) -> None:
        meta = (obj := self._objects[key])["metadata"]
        if "deletionTimestamp" in meta and not meta.get("deletionGracePeriodSeconds") and not meta.get("finalizers"):
            self._commit("DELETED", resource, key, copy.deepcopy(obj), obj)

    def _commit(self, kind: str, resource: Resource, key: Key, obj: Object, before: Object | None) -> None:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        if kind == "DELETED":
            del self._objects[key]
        else:
            self._objects[key] = obj
        self.history.append(Change(self.version, kind, resource, copy.deepcopy(obj), before))
        self.changed.notify_all()


def _key(resource: Resource, namespace: str, name: str) -> Key:
    return (resource.group, resource.plural, namespace if resource.namespaced else "", name)
