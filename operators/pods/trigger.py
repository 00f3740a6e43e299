"""Trigger that waits for the pod of a stage: watches the pod object, while a separate task reads its log.

A trigger only reads: it ends with one event with the outcome of the pod, and the operator acts. It deletes in one case,
`on_kill`, when a user has ended the task. A triggerer that is restarted, or whose triggers move to another one, must
not delete pods; that is why `on_kill` reads the task's state first.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async
from kubernetes_asyncio.config import ConfigException

from operators.alerts import AlertFinder
from operators.links import MlflowLink
from operators.pods.api import NODES, PODS, Api, Kind
from operators.pods.failure import PodFailure, disruption_of, failure_of, gone, has_ended, last_words, terminated
from operators.pods.link import LinkFinder
from operators.pods.logs import READ_UNTIL, LogReader
from operators.pods.outage import Refused, Unreachable
from operators.pods.pending import PendingPodMonitor, epoch
from operators.pods.refusal import no_cluster, refused
from tasks.run.place import AlertsPlace

Object = dict[str, Any]

LOST_S = 30.0
"""Seconds a pod may outlive its deletion, or stay in phase Unknown, before its node counts as lost."""

DRAIN_S = 20.0
"""How long to read on in the log of a pod that has ended."""

LAST_WORDS_S = 20.0
"""How long to read on in the log of a pod that is stopped; Airflow grants `on_kill` 30 s."""

_ENDED_STATES = ("success", "failed", "skipped", "upstream_failed", "removed")


class StageTrigger(BaseTrigger):  # type: ignore[misc]
    """What waiting for a pod and waiting for a gang have in common.

    Args:
        name: of the object.
        namespace: its namespace.
        conn_id: Airflow connection of the cluster.
        container: the container whose end and log count.
        queue: Kueue local queue; empty: none.
        queue_s: how long it may wait for its place.
        scale_up_s: seconds it may wait for a missing node, without an event of an autoscaler.
        grace_s: how long it may take to save when it is stopped.
        deadline: epoch second at which the task's `execution_timeout` is over; None: never.
        restarts: how often this try of the task has started it again; passed on with the event.
        alerts: `[place.alerts]` of the recipe.
    """

    kind: Kind
    propagation = "Background"

    def __init__(
        self,
        name: str,
        namespace: str,
        conn_id: str,
        container: str,
        queue: str,
        queue_s: float,
        scale_up_s: float,
        grace_s: int,
        deadline: float | None = None,
        restarts: int = 0,
        alerts: Object | None = None,
    ) -> None:
        super().__init__()
        self.name, self.namespace, self.conn_id, self.container = name, namespace, conn_id, container
        self.queue, self.queue_s, self.scale_up_s = queue, queue_s, scale_up_s
        self.grace_s, self.deadline, self.restarts = grace_s, deadline, restarts
        self.alerts = alerts or {}
        self.reader: LogReader | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Returns the arguments to recreate this trigger in another triggerer."""
        names = ("name", "namespace", "conn_id", "container", "queue", "queue_s", "scale_up_s", "grace_s", "deadline")
        kind = type(self)
        return f"{kind.__module__}.{kind.__qualname__}", {
            name: getattr(self, name) for name in (*names, "restarts", "alerts")
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yields one event: {name, namespace, restarts, mlflow_run_url} and the fields of `outcome`."""
        self.api = Api(self.conn_id)
        self.pending = PendingPodMonitor(self.api, self.namespace, self.queue, self.queue_s, self.scale_up_s, self.say)
        sending = AlertFinder(self.say, AlertsPlace(**self.alerts), self.task_instance)
        self.pass_on = LinkFinder(sending, self.task_instance, MlflowLink().xcom_key)
        try:
            found = await self.wait()
        except Unreachable as error:
            found = outcome(PodFailure("killed", str(error)), keep=True)
        except Refused as error:
            found = outcome(refused(error, self.kind, self.namespace), keep=True)
        except ConfigException as error:
            found = outcome(no_cluster(self.conn_id, error), keep=True)
        except Exception as error:  # an internal error must not leave an unknown pod
            self.log.exception("waiting for %s failed", self.name)
            found = outcome(PodFailure("killed", f"waiting failed: {type(error).__name__}: {error}"), keep=True)
        await self.pass_on.settled()
        await sending.settled()
        about = {"name": self.name, "namespace": self.namespace, "restarts": self.restarts}
        yield TriggerEvent({**about, "mlflow_run_url": self.pass_on.url, **found})

    async def wait(self) -> Object:
        """Returns what became of the object (`outcome`)."""
        raise NotImplementedError

    def say(self, line: str) -> None:
        """Writes a line into the task's log."""
        self.log.info("%s", line)

    def overdue(self) -> Object | None:
        """Returns the outcome of a task after its time limit."""
        if self.deadline is None or time.time() < self.deadline:
            return None
        return outcome(PodFailure("killed", f"{self.name} ran until the task's execution_timeout was over"))

    async def on_kill(self) -> None:
        """Deletes the object where the task has ended; leaves it where another try or triggerer adopts it."""
        state = await self._task_state()
        if state is not None and state not in _ENDED_STATES:
            self.say(f"{self.name} is left running: the task is {state} and will find it again")
            return
        self.say(f"stopping {self.name}, which has {self.grace_s} s to save")
        api = Api(self.conn_id, outage_s=20.0)
        try:
            await api.delete(
                self.kind, self.namespace, self.name, grace_s=self.stop_grace, propagation=self.propagation
            )
        except (Refused, Unreachable) as error:
            self.say(f"{self.name} in namespace {self.namespace} may still run, delete it: {error}")
            return
        if self.reader is not None:
            await self.reader.finish(LAST_WORDS_S)

    async def cleanup(self) -> None:
        """Stores how far the log was read, for a triggerer after a restart or another try."""
        if self.reader is not None and self.reader.spool.until and not self.reader.ended.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self.reader.note(), 5.0)

    @property
    def stop_grace(self) -> int | None:
        """Grace period of the deletion; None: that of the pods."""
        return self.grace_s

    async def _task_state(self) -> str | None:
        """Returns the state of the task; "cleared" where it has none, None where its run does not exist."""
        instance = self.task_instance
        if instance is None:
            return "unknown"
        states = await sync_to_async(RuntimeTaskInstance.get_task_states)(
            dag_id=instance.dag_id,
            task_ids=[instance.task_id],
            run_ids=[instance.run_id],
            map_index=instance.map_index,
        )
        found = states.get(instance.run_id) or {}
        key = f"{instance.task_id}_{instance.map_index}" if instance.map_index >= 0 else instance.task_id
        if key not in found:
            return None
        return str(getattr(found[key], "value", found[key]) or "cleared")


class PodTrigger(StageTrigger):
    """Waits for one pod."""

    kind = PODS

    async def wait(self) -> Object:
        """Returns what became of the pod."""
        try:
            return await self._wait()
        finally:
            if self.reader is not None:
                self.reader.cancel()

    async def _wait(self) -> Object:
        seen: Object | None = None
        async with aclosing(self.api.follow(PODS, self.namespace, fields=f"metadata.name={self.name}")) as looks:
            async for pods in looks:
                pod = pods.get(self.name)
                if pod is None or (seen and pod["metadata"].get("uid") != seen["metadata"].get("uid")):
                    return await self._vanished(seen)
                seen = pod
                found = await self._look(pod) or self.overdue()
                if found:
                    return found
        raise AssertionError("a watch goes on for ever")

    async def _look(self, pod: Object) -> Object | None:
        """Returns the outcome, or None while the pod runs."""
        if has_ended(pod) or terminated(pod, self.container):
            self._read_log(pod)
            await self._drain(words=last_words(pod, self.container))
            return outcome(failure_of(pod, self.container, self._tail()))
        if (pod.get("status") or {}).get("phase") == "Pending":
            failure = await self.pending.pod(pod)
            return outcome(failure) if failure else None
        self.pending.started()
        self._read_log(pod)
        lost = lost_since(pod, await self._node_gone(pod))
        return outcome(self._with_tail(lost)) if lost else None

    async def _vanished(self, seen: Object | None) -> Object:
        if seen is None:
            seen = {"metadata": {"name": self.name}}
        await self._drain(2.0)
        return outcome(self._with_tail(gone(seen)), gone=True)

    async def _node_gone(self, pod: Object) -> bool:
        """Returns whether the pod's node has left the cluster; read only where the pod is not ready."""
        node = pod["spec"].get("nodeName")
        ready = [one for one in pod["status"].get("conditions") or [] if one["type"] == "Ready"]
        if not node or not ready or ready[0]["status"] == "True":
            return False
        try:
            await self.api.get(NODES, "", node, optional=True)
        except Refused as error:
            return bool(error.status == 404)
        return False

    def _read_log(self, pod: Object) -> None:
        if self.reader is None:
            until = (pod["metadata"].get("annotations") or {}).get(READ_UNTIL, "")
            self.reader = LogReader(self.api, self.namespace, self.name, self.container, self.pass_on, until).start()

    async def _drain(self, patience_s: float | None = None, words: Sequence[str] = ()) -> None:
        if self.reader is not None:
            await self.reader.stop(DRAIN_S if patience_s is None else patience_s, words)

    def _tail(self) -> tuple[str, ...]:
        return tuple(self.reader.spool.last_lines) if self.reader is not None else ()

    def _with_tail(self, failure: PodFailure) -> PodFailure:
        return replace(failure, last_lines=failure.last_lines or self._tail())


def outcome(failure: PodFailure | None, *, keep: bool = False, gone: bool = False) -> Object:
    """Returns the event fields of an end."""
    return {"failure": failure.to_json() if failure else None, "keep": keep, "gone": gone}


def lost_since(pod: Object, node_gone: bool) -> PodFailure | None:
    """Returns the failure of a lost node: the pod outlives its deletion, or has no status update for `LOST_S`.

    A node that is merely not ready is left to Kubernetes, which evicts its pods after their toleration
    (`[place.kubernetes] node_silent_s`): a kubelet that restarts leaves its containers running.
    """
    status, name, node = pod["status"], pod["metadata"]["name"], pod["spec"].get("nodeName", "its node")
    if node_gone:
        return PodFailure("node_lost", f"pod {name} was lost: {node} has left the cluster")
    deleted = pod["metadata"].get("deletionTimestamp")
    if deleted and time.time() > epoch(deleted) + LOST_S:
        kind, reason = disruption_of(pod) or ("node_lost", f"pod {name} does not end: {node} is silent")
        return PodFailure("node_lost" if kind == "killed" else kind, reason)
    if status.get("phase") == "Unknown":
        since = [
            epoch(one["lastTransitionTime"]) for one in status.get("conditions") or [] if one.get("lastTransitionTime")
        ]
        if not since or time.time() > max(since) + LOST_S:
            return PodFailure("node_lost", f"pod {name} has not been heard of: {node} is silent")
    return None
