"""Monitor of pending pods: logs why they wait, and fails a wait at its time limit or when it is hopeless.

Reads events, nodes and Kueue workloads; each of these is optional, because Airflow may not have the right to read it.
"""

import time
from collections.abc import Callable
from datetime import datetime

from operators.pods.api import EVENTS, LOCAL_QUEUES, NODES, WORKLOADS, Api, Kind
from operators.pods.failure import Object, PodFailure, condition_of
from operators.pods.outage import Refused
from operators.pods.waiting import (
    SURE_S,
    UNLIKELY_S,
    Wait,
    hides_taints,
    pending_reason,
    queue_reason,
    unscheduled_message,
)

START_S = 1800.0
"""Seconds that a scheduled pod may take to start, such as for pulling a large image."""

_FALLBACK = {"/apis/kueue.x-k8s.io/v1beta2": "/apis/kueue.x-k8s.io/v1beta1"}
"""Earlier version of an API, for clusters that do not serve the newer one yet."""

CHECK_S = 10.0
"""Seconds between two checks of the reasons of a wait."""

REFUSED_S = 60.0
"""Seconds for which a kind is not read again after a refusal."""


class PendingPodMonitor:
    """Applies the time limits of one task's pending pods, and logs the reasons.

    Args:
        api: client of the cluster.
        namespace: namespace of the pods.
        queue: Kueue local queue; empty: none.
        queue_s: seconds to wait for a node or for admission.
        scale_up_s: seconds to wait for a missing node, without an event of an autoscaler.
        log_line: called with each new reason.
    """

    def __init__(
        self, api: Api, namespace: str, queue: str, queue_s: float, scale_up_s: float, log_line: Callable[[str], None]
    ) -> None:
        self.api, self.namespace, self.queue, self.log_line = api, namespace, queue, log_line
        self.queue_s, self.scale_up_s = queue_s, scale_up_s
        self._last_reason = ""
        self._hopeless_since: tuple[float, float] | None = None
        self._checked_at = float("-inf")
        self._refused: dict[Kind, float] = {}
        self._nodes: list[Object] | None = None
        self._use_fallback = False

    async def pod(self, pod: Object) -> PodFailure | None:
        """Returns the failure that ends the wait for a pending pod, or None to continue."""
        timeout = self._timeout(pod)
        if timeout or not self._is_due():
            return timeout
        if pod["spec"].get("schedulingGates"):
            return self.judge(await self.queued(pod))
        if self._nodes is None or hides_taints(unscheduled_message(pod)):
            # Otherwise read once: needed only to detect a request larger than any node.
            self._nodes = await self._list(NODES, namespace="")
        return self.judge(pending_reason(pod, await self.events(pod["metadata"]["name"]), self._nodes))

    async def gang(self, jobset: Object) -> PodFailure | None:
        """Returns the failure that ends the wait for a suspended JobSet or TrainJob, or None to continue."""
        waited = time.time() - epoch(jobset["metadata"]["creationTimestamp"])
        if waited > self.queue_s:
            return self._queue_timeout(f"gang {jobset['metadata']['name']}", waited)
        return self.judge(await self.queued(jobset)) if self._is_due() else None

    async def queued(self, owner: Object) -> Wait:
        """Returns why Kueue suspends an object."""
        missing = await self._check_queue()
        if missing:
            return Wait(missing.reason, missing)
        uid = owner["metadata"].get("uid")
        for workload in await self._list(WORKLOADS):
            if any(owner.get("uid") == uid for owner in workload["metadata"].get("ownerReferences") or []):
                return queue_reason(workload)
        return Wait("waiting in its Kueue queue")

    def judge(self, wait: Wait) -> PodFailure | None:
        """Logs a new reason, and returns the failure once the wait has been hopeless for long enough.

        The limit is `scale_up_s` for a growable wait, `UNLIKELY_S` for an unlikely one, else `SURE_S`.
        """
        reason = wait.reason
        if wait.growable:
            reason += f" [if no autoscaler adds a node within {self.scale_up_s:.0f} s, the task fails]"
        if reason != self._last_reason:
            self._last_reason = reason
            self.log_line(reason)
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
        """Resets the state when no pod is pending any more."""
        self._hopeless_since, self._last_reason = None, ""

    def _is_due(self) -> bool:
        now = time.monotonic()
        soon = self._hopeless_since is not None and self._hopeless_since[0] <= SURE_S
        if now - self._checked_at < CHECK_S and not soon:
            return False
        self._checked_at = now
        return True

    def _timeout(self, pod: Object) -> PodFailure | None:
        name = pod["metadata"]["name"]
        scheduled = condition_of(pod, "PodScheduled")
        if scheduled is None:
            waited = time.time() - epoch(pod["metadata"]["creationTimestamp"])
            return self._queue_timeout(f"pod {name}", waited) if waited > self.queue_s else None
        since = scheduled.get("lastTransitionTime") or pod["metadata"]["creationTimestamp"]
        if time.time() - epoch(since) <= START_S:
            return None
        return PodFailure("config", f"pod {name} did not start within {START_S / 60:.0f} minutes: {self._last_reason}")

    def _queue_timeout(self, description: str, waited: float) -> PodFailure:
        remedy = "raise [place.kubernetes] queue_s, or find out what uses the GPUs"
        return PodFailure(
            "config", f"{description} was not scheduled within {waited:.0f} s ({self._last_reason})", False, remedy
        )

    async def _check_queue(self) -> PodFailure | None:
        if not self.queue or self._unreadable(LOCAL_QUEUES):
            return None
        try:
            await self.api.get(self._served(LOCAL_QUEUES), self.namespace, self.queue, optional=True)
        except Refused as error:
            if error.unknown_kind and not self._use_fallback:
                self._use_fallback = True
                return await self._check_queue()
            if error.status == 404:
                return _queue_missing(self.queue, self.namespace, error)
            self._refused[LOCAL_QUEUES] = time.monotonic()
        return None

    def _served(self, kind: Kind) -> Kind:
        """Returns the kind in the API version that the cluster serves."""
        return Kind(_FALLBACK[kind.base], kind.plural) if self._use_fallback and kind.base in _FALLBACK else kind

    async def _list(self, kind: Kind, *, namespace: str | None = None, fields: str = "") -> list[Object]:
        if self._unreadable(kind):
            return []
        where = self.namespace if namespace is None else namespace
        try:
            listed = await self.api.list(self._served(kind), where, fields=fields, optional=True)
        except Refused:
            self._refused[kind] = time.monotonic()  # no right, or no such kind: the reason remains unknown
            return []
        return list(listed.get("items") or [])

    def _unreadable(self, kind: Kind) -> bool:
        return time.monotonic() - self._refused.get(kind, float("-inf")) < REFUSED_S


def _queue_missing(queue: str, namespace: str, error: Refused) -> PodFailure:
    if error.unknown_kind:
        remedy = "install Kueue (for the version see k8s/), or empty [place.kubernetes] queue"
        return PodFailure("config", f'the place names the queue "{queue}", and the cluster has no Kueue', True, remedy)
    remedy = "create the LocalQueue (k8s/ has one), or correct [place.kubernetes] queue"
    reason = f'there is no Kueue LocalQueue "{queue}" in namespace {namespace}'
    return PodFailure("config", reason, True, remedy)


def epoch(stamp: str) -> float:
    """Returns a Kubernetes timestamp as Unix time in seconds."""
    return datetime.fromisoformat(stamp).timestamp()
