"""Controllers: their base class, the thread that runs them, and the garbage collector."""

from __future__ import annotations

import heapq
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tests.cluster.bed.resources import ApiError, Object, Resource
from tests.cluster.bed.store import FOREGROUND, Change

if TYPE_CHECKING:
    from tests.cluster.bed.server import Bed


class Controller:
    """Reacts to the objects of one kind; see the package's docstring."""

    resource: Resource
    watches: tuple[Resource, ...] = ()

    def __init__(self, bed: Bed) -> None:
        self.bed = bed
        self.store = bed.store

    def on_create(self, obj: Object) -> None:
        """A new object."""

    def on_update(self, obj: Object, before: Object) -> None:
        """A changed object; `metadata.deletionTimestamp` is set if its deletion has started."""

    def on_delete(self, obj: Object) -> None:
        """The last state of a deleted object."""

    def on_related(self, change: Change) -> None:
        """A change of a kind in `watches`."""

    def close(self) -> None:
        """The bed closes."""

    def status(self, obj: Object, **fields: Any) -> None:
        """Merges `fields` into the status of an object, if it still exists."""
        meta = obj["metadata"]

        def edit(now: Object) -> None:
            now.setdefault("status", {}).update(fields)

        with suppress(ApiError):
            self.store.change(self.resource, meta.get("namespace", ""), meta["name"], edit)

    def current(self, obj: Object) -> Object | None:
        """Returns an object of this kind as it is now, or None if it is gone.

        A change may be outdated. Acting on it would undo later changes.
        """
        meta = obj["metadata"]
        found = self.store.find(self.resource, meta.get("namespace", ""), meta["name"])
        return found if found and found["metadata"]["uid"] == meta["uid"] else None

    def told(self, change: Change) -> None:
        """Passes one change on."""
        if change.resource != self.resource:
            self.on_related(change)
        elif change.type == "ADDED":
            self.on_create(change.object)
        elif change.type == "MODIFIED":
            self.on_update(change.object, change.before or {})
        else:
            self.on_delete(change.object)


def owner(obj: Object, controller: bool = True) -> Object:
    """An owner reference to `obj`, for `metadata.ownerReferences` of what it owns."""
    meta = obj["metadata"]
    named = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "name": meta["name"], "uid": meta["uid"]}
    return {**named, "controller": controller, "blockOwnerDeletion": True}


class Manager:
    """One thread that dispatches every change to every controller, and runs their delayed calls."""

    def __init__(self, bed: Bed) -> None:
        self.bed = bed
        self.controllers: list[Controller] = []
        self.errors: list[str] = []
        self.collector = Collector(bed)
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="bed-controllers", daemon=True)

    def start(self) -> None:
        """Starts; later changes are dispatched."""
        self._thread.start()

    def later(self, seconds: float, function: Callable[[], None]) -> None:
        """Runs `function` on the controllers' thread, not before `seconds` from now."""
        with self.bed.store.changed:
            heapq.heappush(self._later, (time.monotonic() + seconds, id(function), function))
            self.bed.store.changed.notify_all()

    def close(self) -> None:
        """Ends the thread and the controllers."""
        self._closing = True
        self.later(0, lambda: None)
        self._thread.join(10)
        for controller in self.controllers:
            controller.close()

    def _run(self) -> None:
        seen = self.bed.store.version
        while not self._closing:
            wait = self._later[0][0] - time.monotonic() if self._later else 1.0
            try:
                changes = self.bed.store.after(seen, max(0.0, min(wait, 1.0)))
            except ApiError:  # history was compacted: earlier changes were dispatched already
                seen = self.bed.store.version
                continue
            for change in changes:
                seen = change.version
                for controller in list(self.controllers):
                    if change.resource in (controller.resource, *controller.watches):
                        self._guarded(lambda one=controller, what=change: one.told(what))
                self._guarded(lambda what=change: self.collector.told(what))
            self._due()

    def _due(self) -> None:
        while self._later and self._later[0][0] <= time.monotonic():
            with self.bed.store.changed:
                _, _, function = heapq.heappop(self._later)
            self._guarded(function)

    def _guarded(self, function: Callable[[], None]) -> None:
        try:
            function()
        except ApiError as error:
            if error.code not in (404, 409):  # deleted or created meanwhile: the next change handles it
                self.errors.append(traceback.format_exc())
        except Exception:
            self.errors.append(traceback.format_exc())


class Collector:
    """Deletes what belongs to an object with it, or before it (foreground)."""

    def __init__(self, bed: Bed) -> None:
        self.bed = bed

    def told(self, change: Change) -> None:
        """Checks whether a change starts or completes a deletion with dependents."""
        meta = change.object["metadata"]
        foreground = "deletionTimestamp" in meta and FOREGROUND in meta.get("finalizers", [])
        if change.type == "DELETED":
            for resource, one in self._owned(meta["uid"]):
                self._delete(resource, one, "Background")
            for reference in meta.get("ownerReferences", []):
                self._settle(reference, meta.get("namespace", ""))
        elif foreground:
            for resource, one in self._owned(meta["uid"]):
                if "deletionTimestamp" not in one["metadata"]:
                    self._delete(resource, one, "Foreground")
            self._release(change.resource, change.object)

    def _owned(self, uid: str) -> list[tuple[Resource, Object]]:
        found = []
        for resource in self.bed.kinds:
            for one in self.bed.store.select(resource):
                if any(reference["uid"] == uid for reference in one["metadata"].get("ownerReferences", [])):
                    found.append((resource, one))
        return found

    def _delete(self, resource: Resource, one: Object, policy: str) -> None:
        with suppress(ApiError):
            self.bed.store.delete(
                resource, one["metadata"].get("namespace", ""), one["metadata"]["name"], policy=policy
            )

    def _settle(self, reference: Object, namespace: str) -> None:
        for resource in self.bed.kinds:
            if (resource.kind, resource.group) == (reference["kind"], reference["apiVersion"].rpartition("/")[0]):
                above = self.bed.store.find(resource, namespace, reference["name"])
                if above and FOREGROUND in above["metadata"].get("finalizers", []):
                    self._release(resource, above)

    def _release(self, resource: Resource, obj: Object) -> None:
        meta = obj["metadata"]
        if self._owned(meta["uid"]):
            return

        def edit(now: Object) -> None:
            now["metadata"]["finalizers"] = [one for one in now["metadata"].get("finalizers", []) if one != FOREGROUND]

        with suppress(ApiError):
            self.bed.store.change(resource, meta.get("namespace", ""), meta["name"], edit)
