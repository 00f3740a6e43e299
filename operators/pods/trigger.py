"""Trigger that waits for the pod of a stage: watches the pod object, while a separate task reads its log.

A trigger only reads: it ends with one event that has the outcome of the pod, and the operator acts on it. The exception
is `on_kill`, which deletes the pod after a user has ended the task. A triggerer that restarts, or whose triggers are
moved, must not delete pods; that is why `on_kill` reads the task's state first.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any, ClassVar

from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async
from kubernetes_asyncio.config import ConfigException

from operators.alerts import AlertFinder
from operators.links import MlflowLink
from operators.pods.api import NODES, PODS, Api, Kind
from operators.pods.failure import (
    Object,
    PodFailure,
    deletion_failure,
    disruption_of,
    failure_of,
    has_ended,
    has_succeeded,
    terminated,
    termination_lines,
)
from operators.pods.link import LinkFinder
from operators.pods.logs import READ_UNTIL, LogReader
from operators.pods.outage import Refused, Unreachable
from operators.pods.pending import PendingPodMonitor, epoch
from operators.pods.refusal import connection_failure, refusal_failure
from tasks.run.place import AlertsPlace

LOST_S = 30.0
"""Seconds a pod may outlive its deletion, or remain in phase Unknown, before its node counts as lost."""

DRAIN_S = 20.0
"""Seconds to continue reading the log of a pod that has ended."""

FINAL_READ_S = 20.0
"""Seconds to continue reading the log of a pod that is being stopped; Airflow's limit for `on_kill` is 30 s."""

_ENDED_STATES = ("success", "failed", "skipped", "upstream_failed", "removed")


class StageTrigger(BaseTrigger):  # type: ignore[misc]
    """Base class of the triggers that wait for a pod or a gang.

    Args:
        name: name of the pod, JobSet or TrainJob.
        namespace: its namespace.
        conn_id: Airflow connection of the cluster.
        container: name of the stage's container, whose exit and log are read.
        queue: Kueue local queue; empty: none.
        queue_s: seconds it may wait for admission and a node.
        scale_up_s: seconds it may wait for a missing node, without an event of an autoscaler.
        grace_s: grace period to save when it is stopped, in seconds.
        deadline: Unix time at which the task's `execution_timeout` expires; None: never.
        restarts: number of restarts in this try of the task; included in the event.
        alerts: `[place.alerts]` of the recipe.
    """

    kind: ClassVar[Kind]

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
        self.pending = PendingPodMonitor(
            self.api, self.namespace, self.queue, self.queue_s, self.scale_up_s, self.log_line
        )
        alert_finder = AlertFinder(self.log_line, AlertsPlace(**self.alerts), self.task_instance)
        self.pass_on = LinkFinder(alert_finder, self.task_instance, MlflowLink().xcom_key)
        try:
            result = await self.wait()
        except Unreachable as error:
            result = outcome(PodFailure("killed", str(error)), keep=True)
        except Refused as error:
            result = outcome(refusal_failure(error, self.kind, self.namespace), keep=True)
        except ConfigException as error:
            result = outcome(connection_failure(self.conn_id, error), keep=True)
        except Exception as error:  # the event names the pod, so that the operator can report or adopt it
            self.log.exception("waiting for %s failed", self.name)
            result = outcome(PodFailure("killed", f"waiting failed: {type(error).__name__}: {error}"), keep=True)
        finally:
            if self.reader is not None:
                self.reader.cancel()
        await self.pass_on.settled()
        await alert_finder.settled()
        identity = {"name": self.name, "namespace": self.namespace, "restarts": self.restarts}
        yield TriggerEvent({**identity, "mlflow_run_url": self.pass_on.url, **result})

    async def wait(self) -> Object:
        """Returns the outcome of the object (`outcome`)."""
        last: Object | None = None
        async with aclosing(self.api.follow(self.kind, self.namespace, fields=f"metadata.name={self.name}")) as updates:
            async for objects in updates:
                now = objects.get(self.name)
                if now is None or (last and now["metadata"].get("uid") != last["metadata"].get("uid")):
                    failure = await self.vanished(last or {"metadata": {"name": self.name}})
                    return outcome(self.with_tail(failure), gone=True)
                last = now
                result = await self.check(now) or self.timeout_outcome()
                if result:
                    return result
        raise AssertionError("a watch does not end")

    async def check(self, now: Object) -> Object | None:
        """Returns the outcome of the object in its current state, or None while it runs."""
        raise NotImplementedError

    async def vanished(self, last: Object) -> PodFailure:
        """Returns the failure of an object that does not exist any more, from its last known state."""
        raise NotImplementedError

    @staticmethod
    def success_of(found: Object, container: str) -> bool | None:
        """Returns whether the object has succeeded (True) or failed (False); None while it runs."""
        raise NotImplementedError

    def read_log(self, pod: Object) -> None:
        """Starts to read the log of a pod, after the lines that an earlier triggerer has read."""
        until = (pod["metadata"].get("annotations") or {}).get(READ_UNTIL, "")
        name = pod["metadata"]["name"]
        self.reader = LogReader(self.api, self.namespace, name, self.container, self.pass_on, until).start()

    async def drain(self, patience_s: float, lines: Sequence[str] = ()) -> None:
        """Reads the rest of the log of a pod that has ended; `lines` are those of its termination message."""
        if self.reader is not None:
            await self.reader.stop(patience_s, lines)

    def with_tail(self, failure: PodFailure) -> PodFailure:
        """Returns a failure with the last lines of the log, if it has none."""
        return replace(failure, last_lines=failure.last_lines or self.tail)

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines of the log."""
        return tuple(self.reader.spool.last_lines) if self.reader is not None else ()

    def log_line(self, line: str) -> None:
        """Writes a line to the task's log."""
        self.log.info("%s", line)

    def timeout_outcome(self) -> Object | None:
        """Returns the outcome if the task's time limit has expired, else None."""
        if self.deadline is None or time.time() < self.deadline:
            return None
        return outcome(PodFailure("killed", f"{self.name} ran until the task's execution_timeout expired"))

    async def on_kill(self) -> None:
        """Deletes the object if the task has ended; keeps it if another try or triggerer will adopt it."""
        state = await self._task_state()
        if state is not None and state not in _ENDED_STATES:
            self.log_line(f"{self.name} keeps running: the task is {state} and will adopt it again")
            return
        self.log_line(f"stopping {self.name}, which has {self.grace_s} s to save")
        api = Api(self.conn_id, outage_s=20.0)
        try:
            await api.delete(self.kind, self.namespace, self.name, self.grace_s)
        except (Refused, Unreachable) as error:
            self.log_line(f"{self.name} in namespace {self.namespace} may still run, delete it: {error}")
            return
        if self.reader is not None:
            await self.reader.finish(FINAL_READ_S)

    async def cleanup(self) -> None:
        """Stores the position in the log for the next triggerer or try."""
        if self.reader is not None and self.reader.spool.until and not self.reader.ended.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self.reader.note(), 5.0)

    async def _task_state(self) -> str | None:
        """Returns the state of the task; "cleared" if it has none, None if its run does not exist."""
        instance = self.task_instance
        if instance is None:
            return "unknown"
        states = await sync_to_async(RuntimeTaskInstance.get_task_states)(
            dag_id=instance.dag_id,
            task_ids=[instance.task_id],
            run_ids=[instance.run_id],
            map_index=instance.map_index,
        )
        task_states = states.get(instance.run_id) or {}
        key = f"{instance.task_id}_{instance.map_index}" if instance.map_index >= 0 else instance.task_id
        if key not in task_states:
            return None
        return str(getattr(task_states[key], "value", task_states[key]) or "cleared")


class PodTrigger(StageTrigger):
    """Waits for one pod."""

    kind = PODS

    @staticmethod
    def success_of(pod: Object, container: str) -> bool | None:
        """See the base class; only the stage's container counts."""
        if has_succeeded(pod, container):
            return True
        return False if has_ended(pod) or terminated(pod, container) else None

    async def check(self, pod: Object) -> Object | None:
        """Returns the outcome, or None while the pod runs."""
        if self.success_of(pod, self.container) is not None:
            self._read_log_once(pod)
            await self.drain(DRAIN_S, termination_lines(pod, self.container))
            return outcome(failure_of(pod, self.container, self.tail))
        if (pod.get("status") or {}).get("phase") == "Pending":
            failure = await self.pending.pod(pod)
            return outcome(failure) if failure else None
        self.pending.started()
        self._read_log_once(pod)
        lost = node_loss(pod, await self._node_gone(pod))
        return outcome(self.with_tail(lost)) if lost else None

    async def vanished(self, last: Object) -> PodFailure:
        """See the base class."""
        await self.drain(2.0)
        return deletion_failure(last)

    async def _node_gone(self, pod: Object) -> bool:
        """Returns whether the pod's node has left the cluster; requests the node only if the pod is not ready."""
        node = pod["spec"].get("nodeName")
        ready = [condition for condition in pod["status"].get("conditions") or [] if condition["type"] == "Ready"]
        if not node or not ready or ready[0]["status"] == "True":
            return False
        try:
            await self.api.get(NODES, "", node, optional=True)
        except Refused as error:
            return bool(error.status == 404)
        return False

    def _read_log_once(self, pod: Object) -> None:
        if self.reader is None:
            self.read_log(pod)


def outcome(failure: PodFailure | None, *, keep: bool = False, gone: bool = False) -> Object:
    """Returns the fields of the trigger event for an outcome.

    Args:
        failure: None for success.
        keep: whether to keep the object, because it may still run.
        gone: whether the object does not exist any more.
    """
    return {"failure": failure.to_json() if failure else None, "keep": keep, "gone": gone}


def node_loss(pod: Object, node_gone: bool) -> PodFailure | None:
    """Returns the failure if the pod's node is lost, else None.

    A node is lost if it has left the cluster, or if for `LOST_S` the pod outlives its deletion or has phase Unknown. A
    node that is merely not ready does not count: Kubernetes evicts its pods after their toleration
    (`[place.kubernetes] node_silent_s`), and containers survive a restart of the kubelet.
    """
    status, name, node = pod["status"], pod["metadata"]["name"], pod["spec"].get("nodeName", "its node")
    if node_gone:
        return PodFailure("node_lost", f"pod {name} was lost: {node} has left the cluster")
    deleted = pod["metadata"].get("deletionTimestamp")
    if deleted and time.time() > epoch(deleted) + LOST_S:
        kind, reason = disruption_of(pod) or ("node_lost", f"pod {name} does not end: {node} does not respond")
        return PodFailure("node_lost" if kind == "killed" else kind, reason)
    if status.get("phase") == "Unknown":
        since = [
            epoch(condition["lastTransitionTime"])
            for condition in status.get("conditions") or []
            if condition.get("lastTransitionTime")
        ]
        if not since or time.time() > max(since) + LOST_S:
            return PodFailure("node_lost", f"pod {name} has reported no status: {node} does not respond")
    return None
