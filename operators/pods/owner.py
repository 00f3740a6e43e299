"""Ownership of the object of a task (pod, JobSet, TrainJob): adopts that of an earlier process, or creates it.

Every object has the task's identity as a label, whichever process created it: a killed worker, an earlier try, the task
before it was cleared. The name is derived from the identity too, so that of two processes that create the object
concurrently one gets a 409 from the API server.

An existing object is adopted if it has the same command and, if it succeeded, its artifact exists. If the recipe has
changed meanwhile, the object is deleted first, with its grace period to save, and the new one resumes from there. The
number at the end of the name allows a new object beside one that cannot be deleted because its node does not respond.
"""

import asyncio
import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from operators.pods.api import PODS, Api, Kind
from operators.pods.failure import Object
from operators.pods.outage import Refused
from operators.pods.pending import epoch
from operators.pods.trigger import LOST_S

log = logging.getLogger("sluice.pods")


OWNER = "sluice/owner"
"""Label with the digest of the task that owns an object."""

WORK = "sluice/work"
"""Annotation with the hash of an object's spec."""

NAME_LENGTH = 40
"""Longest name: a gang's host names add 23 characters, and a host name has at most 63."""

_TRIES = 5


@dataclass(frozen=True)
class Owner:
    """The task that owns an object, the same for all its tries."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int

    @classmethod
    def of(cls, context: Mapping[str, Any]) -> "Owner":
        """Returns the task of an Airflow context."""
        instance = context["ti"]
        index = getattr(instance, "map_index", -1)
        return cls(instance.dag_id, context["run_id"], instance.task_id, -1 if index is None else index)

    @property
    def digest(self) -> str:
        """Hash of the identity, as a label value."""
        identity = json.dumps([self.dag_id, self.run_id, self.task_id, self.map_index])
        return hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()

    def name(self, prefix: str, number: int) -> str:
        """Returns the name of the task's object: readable part, hash of the owner, number."""
        end = f"-{self.digest[:10]}-{number}"
        readable = re.sub(r"[^a-z0-9]+", "-", prefix.lower()).strip("-")
        return f"{readable[: NAME_LENGTH - len(end)].strip('-')}{end}"


@dataclass(frozen=True)
class Claim:
    """Creates, finds and judges the objects of one task.

    Args:
        kind: pods, JobSets or TrainJobs.
        namespace: namespace of the objects.
        owner: the task.
        prefix: beginning of their names.
        build: returns the manifest for a name.
        success_of: returns whether an object has succeeded (True) or failed (False); None while it runs.
        has_artifact: returns whether the task's artifact is in the store.
        grace_s: grace period of a deletion, in seconds.
    """

    kind: Kind
    namespace: str
    owner: Owner
    prefix: str
    build: Callable[[str], Object]
    success_of: Callable[[Object], bool | None]
    has_artifact: Callable[[], bool]
    grace_s: int

    async def take(self, api: Api) -> Object:
        """Returns the task's object: adopts an existing one, or creates it.

        Raises:
            Refused: the server refuses to create it.
            Unreachable: the server is away.
        """
        for _ in range(_TRIES):
            existing = await self._adopt(api)
            if isinstance(existing, dict):
                return existing
            body = self._manifest(self.owner.name(self.prefix, existing + 1))
            try:
                created = await api.create(self.kind, self.namespace, body)
            except Refused as error:
                if error.status != 409:
                    raise
                continue  # another process of this task was faster, or the response to our own request was lost
            log.info("started %s %s", self.kind.singular, created["metadata"]["name"])
            return created
        raise Refused(409, f"the name {self.owner.name(self.prefix, 1)} is in use by another object")

    @property
    def label(self) -> str:
        """Label selector of the task's objects."""
        return f"{OWNER}={self.owner.digest}"

    def leftover_hint(self, name: str) -> str:
        """Returns a message that an object of the task may still run, and how to adopt or delete it."""
        description = f"{self.kind.singular} {name} in namespace {self.namespace}"
        return f"The {description} was not deleted and may still run: clear the task to adopt it, or delete it"

    async def remove(self, api: Api, name: str) -> None:
        """Deletes an object of the task, with the grace period for its pods to save."""
        await api.delete(self.kind, self.namespace, name, self.grace_s)

    async def _adopt(self, api: Api) -> Object | int:
        """Returns the object to adopt; else deletes unfit objects and returns the highest number still in use."""
        items = (await api.list(self.kind, self.namespace, labels=self.label)).get("items") or []
        in_use = 0
        for item in sorted(items, key=_number, reverse=True):
            name = item["metadata"]["name"]
            if not item["metadata"].get("deletionTimestamp"):
                reason = self._mismatch(item)
                if not reason:
                    log.info("adopted %s, which an earlier process of this task started", name)
                    return dict(item)
                log.info("removing %s: %s", name, reason)
                await self.remove(api, name)
            if not await self._wait_deleted(api, item):
                log.warning("%s is not deleted: its node does not respond; a new one is started beside it", name)
                in_use = max(in_use, _number(item))
        return in_use

    async def _wait_deleted(self, api: Api, item: Object) -> bool:
        """Waits until an object is deleted; returns False if it outlives its grace period."""
        until = time.time() + self.grace_s + LOST_S
        deleted_at = item["metadata"].get("deletionTimestamp")
        if deleted_at and self.kind == PODS:
            until = epoch(deleted_at) + LOST_S  # a pod's deletionTimestamp includes the grace period
        while True:
            try:
                now = await api.get(self.kind, self.namespace, item["metadata"]["name"])
            except Refused as error:
                if error.status != 404:
                    raise
                return True
            if now["metadata"].get("uid") != item["metadata"].get("uid"):
                return True
            if time.time() > until:
                return False
            await asyncio.sleep(1.0)

    def _manifest(self, name: str) -> Object:
        body = self.build(name)
        metadata = body["metadata"]
        metadata["name"] = name
        metadata["labels"] = {**(metadata.get("labels") or {}), OWNER: self.owner.digest}
        metadata["annotations"] = {**(metadata.get("annotations") or {}), WORK: self._spec_hash}
        return body

    @cached_property
    def _spec_hash(self) -> str:
        # The hash must not depend on the name, which a gang has in its environment.
        spec = json.dumps(self.build("any")["spec"], sort_keys=True)
        return hashlib.blake2b(spec.encode(), digest_size=8).hexdigest()

    def _mismatch(self, item: Object) -> str:
        """Returns why an object cannot be adopted, or "" if it can."""
        succeeded = self.success_of(item)
        if succeeded is False:
            return "it has failed"
        if (item["metadata"].get("annotations") or {}).get(WORK) != self._spec_hash:
            return "the recipe has changed"
        return "it has succeeded, but there is no artifact" if succeeded and not self.has_artifact() else ""


def _number(item: Object) -> int:
    last = item["metadata"]["name"].rpartition("-")[2]
    return int(last) if last.isdigit() else 0
