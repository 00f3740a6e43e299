"""Ownership of a task's object (pod or JobSet): finds that of an earlier process of the task, or creates it.

Every object has the task's identity as a label, whichever process created it: a killed worker, another try, the same
task cleared. Its name is derived from that identity too, so that of two processes that create it concurrently one gets
a 409 from the API server.

An existing object is adopted if it has the same command and, where it succeeded, its artifact exists. If the recipe has
changed meanwhile, it is deleted first, with its grace period to save, and its successor resumes from there. A number at
the end of the name allows a new object beside one that cannot be deleted because its node does not respond.
"""

import asyncio
import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from operators.pods.api import Api, Kind
from operators.pods.outage import Refused
from operators.pods.pending import epoch
from operators.pods.trigger import LOST_S

log = logging.getLogger("sluice.pods")

Object = dict[str, Any]

OWNER = "sluice/owner"
"""Label: which task an object belongs to."""

WORK = "sluice/work"
"""Annotation: hash of its command."""

NAME_LENGTH = 40
"""Longest name: a gang's host names add 23 characters to it, and a host name may have 63."""

_ROUNDS = 5


@dataclass(frozen=True)
class Owner:
    """The task that an object belongs to, the same for all its tries."""

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
        """Returns the identity as a label value."""
        identity = json.dumps([self.dag_id, self.run_id, self.task_id, self.map_index])
        return hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()

    def name(self, words: str, number: int) -> str:
        """Returns the name of the task's object: readable part, hash of the owner, number."""
        end = f"-{self.digest[:10]}-{number}"
        spoken = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
        return f"{spoken[: NAME_LENGTH - len(end)].strip('-')}{end}"


@dataclass(frozen=True)
class Claim:
    """How to make, find and judge the objects of one task.

    Args:
        kind: Pods or JobSets.
        namespace: where they are.
        owner: the task.
        words: beginning of their names.
        build: makes the manifest for a name.
        ended: tells of an object whether it is over: True (well), False (badly), None (it lives).
        made: tells whether the task's artifact is in the store.
        grace_s: what an object gets to save when it is stopped.
        propagation: how its deletion treats what it owns.
    """

    kind: Kind
    namespace: str
    owner: Owner
    words: str
    build: Callable[[str], Object]
    ended: Callable[[Object], bool | None]
    made: Callable[[], bool]
    grace_s: int
    propagation: str = "Background"

    async def take(self, api: Api) -> Object:
        """Returns the task's object: an existing one, or a new one.

        Raises:
            Refused: the server refuses to create it.
            Unreachable: the server is away.
        """
        for _ in range(_ROUNDS):
            found = await self._sift(api)
            if isinstance(found, dict):
                return found
            body = self._manifest(self.owner.name(self.words, found + 1))
            try:
                made = await api.create(self.kind, self.namespace, body)
            except Refused as error:
                if error.status != 409:
                    raise
                continue  # another process of this task was faster, or the response to our own request was lost
            log.info("started %s %s", self.kind.plural[:-1], made["metadata"]["name"])
            return made
        raise Refused(409, f"the name {self.owner.name(self.words, 1)} belongs to something else")

    @property
    def label(self) -> str:
        """Returns the selector of what belongs to the task."""
        return f"{OWNER}={self.owner.digest}"

    def left(self, name: str) -> str:
        """Returns where an object of the task may still run, and how it is taken over or ended."""
        what = f"{self.kind.plural[:-1]} {name} in namespace {self.namespace}"
        return f"The {what} was left alone and may still run: clear the task to take it over, or delete it"

    async def remove(self, api: Api, name: str) -> None:
        """Deletes an object of the task; its pods have their grace period to save."""
        # The pods of a gang are deleted by the garbage collector, with the grace period of their own spec.
        grace = self.grace_s if self.kind.plural == "pods" else None
        await api.delete(self.kind, self.namespace, name, grace_s=grace, propagation=self.propagation)

    async def _sift(self, api: Api) -> Object | int:
        """Returns the object to adopt, or the highest number in use, after deleting ended ones."""
        mine = (await api.list(self.kind, self.namespace, labels=self.label)).get("items") or []
        in_use = 0
        for one in sorted(mine, key=_number, reverse=True):
            name = one["metadata"]["name"]
            if not one["metadata"].get("deletionTimestamp"):
                unfit = self._unfit(one)
                if not unfit:
                    log.info("took over %s, which an earlier process of this task has started", name)
                    return dict(one)
                log.info("removing %s: %s", name, unfit)
                await self.remove(api, name)
            if not await self._left(api, one):
                log.warning("%s does not go away: its node is silent; going on beside it", name)
                in_use = max(in_use, _number(one))
        return in_use

    async def _left(self, api: Api, one: Object) -> bool:
        """Waits until an object is deleted; returns False where it outlives its grace period."""
        until = time.time() + self.grace_s + LOST_S
        leaving = one["metadata"].get("deletionTimestamp")
        if leaving and self.kind.plural == "pods":
            until = epoch(leaving) + LOST_S  # the API counts the grace period into a pod's time
        while True:
            try:
                now = await api.get(self.kind, self.namespace, one["metadata"]["name"])
            except Refused as error:
                if error.status != 404:
                    raise
                return True
            if now["metadata"].get("uid") != one["metadata"].get("uid"):
                return True
            if time.time() > until:
                return False
            await asyncio.sleep(1.0)

    def _manifest(self, name: str) -> Object:
        body = self.build(name)
        metadata = body["metadata"]
        metadata["name"] = name
        metadata["labels"] = {**(metadata.get("labels") or {}), OWNER: self.owner.digest}
        metadata["annotations"] = {**(metadata.get("annotations") or {}), WORK: self._work}
        return body

    @property
    def _work(self) -> str:
        # One placeholder for all names, because a gang's host names are in its environment.
        spec = json.dumps(self.build("any")["spec"], sort_keys=True)
        return hashlib.blake2b(spec.encode(), digest_size=8).hexdigest()

    def _unfit(self, one: Object) -> str:
        """Returns why an object cannot be taken over, or "" where it can."""
        over = self.ended(one)
        if over is False:
            return "it has failed"
        if (one["metadata"].get("annotations") or {}).get(WORK) != self._work:
            return "the recipe has changed"
        return "it has ended well, and there is no artifact" if over and not self.made() else ""


def _number(one: Object) -> int:
    last = one["metadata"]["name"].rpartition("-")[2]
    return int(last) if last.isdigit() else 0
