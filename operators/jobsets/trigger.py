"""Trigger that waits for a gang: watches the JobSet's status and its pods, and reads the log of rank 0.

The JobSet's status decides whether the gang is done, with two exceptions, in which it would not change. A rank on a
lost node: Kubernetes keeps such a pod, and with it the whole JobSet, as long as the node object exists. And pods that
are held open by an injected sidecar (`ranks.is_held`): there the stage's containers decide, as for a single pod.
"""

import asyncio
import time
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

from operators.jobsets.manifest import JOBSET_NAME, RANKS
from operators.jobsets.ranks import RankHistory, current_pods, is_held, nodes_of, rank_of, restart_of
from operators.pods.api import JOBSETS, PODS, TRAINJOBS
from operators.pods.failure import Object, PodFailure, condition_of, has_succeeded, terminated, termination_lines
from operators.pods.outage import Refused, Unreachable
from operators.pods.trigger import DRAIN_S, StageTrigger, node_loss, outcome
from operators.pods.waiting import SURE_S, Wait, missing_dependency

_TERMINAL = {"Completed": "Completed", "Complete": "Completed", "Failed": "Failed"}
"""Terminal conditions of JobSets and, of success, of TrainJobs."""


PEERS_S = 120.0
"""Seconds for the other ranks to end after one has failed beside a sidecar: they fail in their next collective."""


class JobSetTrigger(StageTrigger):
    """Waits for one JobSet."""

    kind = JOBSETS
    noun = "JobSet"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ranks = RankHistory(self.container)
        self.pods: dict[str, Object] = {}
        self._resumed_at: float | None = None
        self._failed_beside_sidecar_at: float | None = None
        self._restarts = 0

    @staticmethod
    def success_of(jobset: Object, container: str) -> bool | None:
        """See the base class; the JobSet counts, and not its containers."""
        return {"Completed": True, "Failed": False}.get(terminal_state(jobset))

    async def wait(self) -> Object:
        """Returns the outcome of the gang; logs that of each rank."""
        pods = asyncio.create_task(self._watch_pods())
        try:
            result = await super().wait()
            await asyncio.sleep(1.0)  # the pods' last states arrive on another watch
            if self.reader is not None:
                await self.drain(DRAIN_S, termination_lines(self.pods.get(self.reader.pod) or {}, self.container))
        finally:
            pods.cancel()
        for line in self.ranks.report():
            self.log_line(line)
        return result

    async def vanished(self, last: Object) -> PodFailure:
        """See the base class."""
        return self._failure("was deleted while it ran")

    async def check(self, jobset: Object) -> Object | None:
        """Returns the outcome, or None while the gang runs."""
        status = jobset.get("status") or {}
        ended = terminal_state(jobset)
        if ended == "Completed":
            return outcome(None)
        if ended == "Failed":
            await asyncio.sleep(1.0)
            return outcome(self._failure(_failed_state(jobset)))
        if status.get("restarts", 0) > self._restarts:
            self._restarts = status["restarts"]
            counted = status.get("restartsCountTowardsMax", 0)  # JobSet leaves out what is 0
            first = self.ranks.first_failure()
            cause = f": {first.reason}" if first else ""
            self.log_line(f"the gang is restarted (restart {self._restarts}, of which {counted} count){cause}")
        if jobset["spec"].get("suspend"):
            self._resumed_at = None
            failure = await self.pending.gang(jobset)
            return outcome(failure) if failure else None
        return self._check_held(jobset) or await self._check_pods()

    def _check_held(self, jobset: Object) -> Object | None:
        """Returns the outcome of a gang whose pods are held open by sidecars, by the stage's container of each rank.

        JobSet does not see a failure in such pods and restarts nothing: the gang ends, and the task's retry resumes it.
        """
        pods = current_pods(self.pods.values(), (jobset.get("status") or {}).get("restarts", 0))
        if not any(is_held(pod, self.container) for pod in pods):
            self._failed_beside_sidecar_at = None
            return None
        complete = len(pods) >= nodes_of(jobset)
        if complete and all(has_succeeded(pod, self.container) for pod in pods):
            return outcome(None)
        ranks = RankHistory(self.container)
        for pod in pods:
            ranks.update(pod)
        first = ranks.first_failure()
        if first is None:
            return None
        now = time.monotonic()
        self._failed_beside_sidecar_at = self._failed_beside_sidecar_at or now
        ended = complete and all(terminated(pod, self.container) for pod in pods)
        if ended or first.permanent or now - self._failed_beside_sidecar_at > PEERS_S:
            return outcome(self._failure("is held open by a sidecar", first))
        return None

    async def _check_pods(self) -> Object | None:
        self._resumed_at = self._resumed_at or time.monotonic()
        for pod in self.pods.values():
            lost = node_loss(pod, node_gone=False)
            if lost:
                return outcome(lost)
        pending = [pod for pod in self.pods.values() if (pod.get("status") or {}).get("phase") == "Pending"]
        if pending:
            failure = await self.pending.pod(min(pending, key=rank_of))
            return outcome(failure) if failure else None
        if not self.pods and time.monotonic() - self._resumed_at > SURE_S / 2:
            # The Job cannot create its pods: a quota, a missing service account.
            missing = missing_dependency(await self.pending.events(f"{self.name}-{RANKS}-0"))
            failure = self.pending.judge(Wait(missing.reason if missing else "no pods yet", missing))
            return outcome(failure) if failure else None
        self.pending.started()
        return None

    def _failure(self, state: str, first: PodFailure | None = None) -> PodFailure:
        """Returns the failure of the gang: that of the rank that failed first, or else the JobSet's state."""
        first = first or self.ranks.first_failure()
        if first is None:
            return PodFailure("killed", f"{self.noun} {self.name} {state}")
        reason = f"{first.reason.rstrip('.')} ({self.noun} {self.name} {state})"
        return self.with_tail(replace(first, reason=reason))

    async def _watch_pods(self) -> None:
        with suppress(Refused, Unreachable):  # the JobSet's own watch reports it; without the right there is no log
            labels = f"{JOBSET_NAME}={self.name}"
            async with aclosing(self.api.follow(PODS, self.namespace, labels=labels)) as updates:
                async for pods in updates:
                    self.pods = pods
                    for pod in pods.values():
                        self.ranks.update(pod)
                    self._read_rank_zero()

    def _read_rank_zero(self) -> None:
        """Starts to read the log of the newest pod of rank 0 once that pod has started."""
        started = [
            pod
            for pod in self.pods.values()
            if rank_of(pod) == 0 and (pod.get("status") or {}).get("phase") not in (None, "Pending")
        ]
        if not started:
            return
        pod = max(started, key=lambda pod: (restart_of(pod), pod["metadata"].get("creationTimestamp") or ""))
        name = pod["metadata"]["name"]
        if self.reader is not None and self.reader.pod == name:
            return
        if self.reader is not None:
            self.reader.ended.set()  # it reads the rest of the old log, then stops
        self.log_line(f"[rank 0 is pod {name}]")
        self.read_log(pod)


class TrainJobTrigger(JobSetTrigger):
    """Waits for one TrainJob. Its JobSet and pods have the names of a gang without Kubeflow Trainer."""

    kind = TRAINJOBS
    noun = "TrainJob"


def terminal_state(jobset: Object) -> str:
    """Returns "Completed", "Failed", or "" while the gang of a JobSet or TrainJob runs."""
    status = jobset.get("status") or {}
    if status.get("terminalState"):
        return str(status["terminalState"])
    return next((state for kind, state in _TERMINAL.items() if condition_of(jobset, kind)), "")


def _failed_state(jobset: Object) -> str:
    failed = condition_of(jobset, "Failed")
    return f"failed: {failed.get('reason', '')} {failed.get('message', '')}".strip() if failed else "failed"
