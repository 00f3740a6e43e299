"""Monitor of pending pods: logs why they wait, and ends a wait at its time limit or when it is hopeless.

Reads events, nodes and Kueue's workload; each of these is optional, because Airflow may not have the right to read it.
"""

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from operators.pods.api import EVENTS, LOCAL_QUEUES, NODES, WORKLOADS, Api, Kind
from operators.pods.failure import PodFailure
from operators.pods.outage import Refused
from operators.pods.waiting import SURE_S, UNLIKELY_S, Wait, why_queued, why_waiting

Object = dict[str, Any]

START_S = 1800.0
"""How long a pod that has its node may take to start: pulling a large image."""

_OLDER = {"/apis/kueue.x-k8s.io/v1beta2": "/apis/kueue.x-k8s.io/v1beta1"}
"""Earlier version of an API, for clusters that do not serve the newer one yet."""

LOOK_S = 10.0
"""Seconds between two checks of the reasons of a wait."""

REFUSED_S = 60.0
"""Seconds for which a kind that could not be read is left out."""


class PendingPodMonitor:
    """Time limits of one task's waits, and their log lines.

    Args:
        api: the cluster.
        namespace: of the pods.
        queue: Kueue local queue; empty: none.
        queue_s: how long to wait for a place.
        scale_up_s: seconds to wait for a missing node, without an event of an autoscaler.
        say: called with each change of the reason.
    """

    def __init__(
        self, api: Api, namespace: str, queue: str, queue_s: float, scale_up_s: float, say: Callable[[str], None]
    ) -> None:
        self.api, self.namespace, self.queue, self.say = api, namespace, queue, say
        self.queue_s, self.scale_up_s = queue_s, scale_up_s
        self._last_reason = ""
        self._hopeless_since: tuple[float, float] | None = None
        self._looked = float("-inf")
        self._refused: dict[Kind, float] = {}
        self._nodes: list[Object] | None = None
        self._older = False

    async def pod(self, pod: Object) -> PodFailure | None:
        """Returns why waiting for a pending pod ends, or None while it continues."""
        late = self._late(pod)
        if late or not self._due():
            return late
        if pod["spec"].get("schedulingGates"):
            return self.judge(await self.queued(pod))
        if self._nodes is None:
            # Once: needed only to detect a request larger than any node.
            self._nodes = await self._list(NODES, namespace="")
        return self.judge(why_waiting(pod, await self.events(pod["metadata"]["name"]), self._nodes))

    async def gang(self, jobset: Object) -> PodFailure | None:
        """Returns why waiting for a suspended JobSet ends, or None while it continues."""
        waited = time.time() - epoch(jobset["metadata"]["creationTimestamp"])
        if waited > self.queue_s:
            return self._too_late(f"JobSet {jobset['metadata']['name']}", waited)
        return self.judge(await self.queued(jobset)) if self._due() else None

    async def queued(self, owner: Object) -> Wait:
        """Returns Kueue's state of a suspended object."""
        missing = await self._no_queue()
        if missing:
            return Wait(missing.reason, missing)
        uid = owner["metadata"].get("uid")
        for workload in await self._list(WORKLOADS):
            if any(one.get("uid") == uid for one in workload["metadata"].get("ownerReferences") or []):
                return why_queued(workload)
        return Wait("waiting in its Kueue queue")

    def judge(self, wait: Wait) -> PodFailure | None:
        """Logs a new reason, and returns it once it has been hopeless for long enough.

        That is `SURE_S`, for a growable wait `scale_up_s`, for an unlikely one `UNLIKELY_S`.
        """
        reason = wait.reason
        if wait.growable:
            reason += f" [if no autoscaler adds a node within {self.scale_up_s:.0f} s, the task fails]"
        if reason != self._last_reason:
            self._last_reason = reason
            self.say(reason)
        if wait.hopeless is None:
            self._hopeless_since = None
            return None
        now = time.monotonic()
        patience = self.scale_up_s if wait.growable else UNLIKELY_S if wait.unlikely else SURE_S
        if self._hopeless_since is None or self._hopeless_since[0] != patience:
            self._hopeless_since = (patience, now)
        return wait.hopeless if now - self._hopeless_since[1] >= patience else None

    async def events(self, name: str) -> list[Object]:
        """Returns the events about an object."""
        return await self._list(EVENTS, fields=f"involvedObject.name={name}")

    def started(self) -> None:
        """Resets the state when nothing waits any more."""
        self._hopeless_since, self._last_reason = None, ""

    def _due(self) -> bool:
        now = time.monotonic()
        soon = self._hopeless_since is not None and self._hopeless_since[0] <= SURE_S
        if now - self._looked < LOOK_S and not soon:
            return False
        self._looked = now
        return True

    def _late(self, pod: Object) -> PodFailure | None:
        name = pod["metadata"]["name"]
        placed = next(
            (one for one in (pod.get("status") or {}).get("conditions") or []
             if one["type"] == "PodScheduled" and one["status"] == "True"), None
        )  # fmt: skip
        if placed is None:
            waited = time.time() - epoch(pod["metadata"]["creationTimestamp"])
            return self._too_late(f"pod {name}", waited) if waited > self.queue_s else None
        since = placed.get("lastTransitionTime") or pod["metadata"]["creationTimestamp"]
        if time.time() - epoch(since) <= START_S:
            return None
        return PodFailure("config", f"pod {name} did not start within {START_S / 60:.0f} minutes: {self._last_reason}")

    def _too_late(self, what: str, waited: float) -> PodFailure:
        remedy = "raise [place.kubernetes] queue_s, or find out who holds the GPUs"
        return PodFailure("config", f"{what} got no place in {waited:.0f} s ({self._last_reason})", False, remedy)

    async def _no_queue(self) -> PodFailure | None:
        if not self.queue or self._unreadable(LOCAL_QUEUES):
            return None
        try:
            await self.api.get(self._served(LOCAL_QUEUES), self.namespace, self.queue, optional=True)
        except Refused as error:
            if error.unknown_kind and not self._older:
                self._older = True
                return await self._no_queue()
            if error.status == 404:
                return _queue_missing(self.queue, self.namespace, error)
            self._refused[LOCAL_QUEUES] = time.monotonic()
        return None

    def _served(self, kind: Kind) -> Kind:
        """Returns the kind in the version that the cluster serves."""
        return Kind(_OLDER[kind.base], kind.plural) if self._older and kind.base in _OLDER else kind

    async def _list(self, kind: Kind, *, namespace: str | None = None, fields: str = "") -> list[Object]:
        if self._unreadable(kind):
            return []
        where = self.namespace if namespace is None else namespace
        try:
            listed = await self.api.list(self._served(kind), where, fields=fields, optional=True)
        except Refused:
            self._refused[kind] = time.monotonic()  # no right, or no such kind: the reason stays unknown
            return []
        return list(listed.get("items") or [])

    def _unreadable(self, kind: Kind) -> bool:
        return time.monotonic() - self._refused.get(kind, float("-inf")) < REFUSED_S


def _queue_missing(queue: str, namespace: str, error: Refused) -> PodFailure:
    if error.unknown_kind:
        remedy = "install Kueue (k8s/ says which version), or empty [place.kubernetes] queue"
        return PodFailure("config", f'the place names the queue "{queue}", and the cluster has no Kueue', True, remedy)
    remedy = "make the LocalQueue (k8s/ has one), or correct [place.kubernetes] queue"
    reason = f'there is no Kueue LocalQueue "{queue}" in namespace {namespace}'
    return PodFailure("config", reason, True, remedy)


def epoch(stamp: str) -> float:
    """Returns a Kubernetes time as seconds."""
    return datetime.fromisoformat(stamp).timestamp()
