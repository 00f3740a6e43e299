"""The JobSet controller (v1alpha2, as of 0.12): jobs of a gang, restarts by failure policy, suspension, the end."""

from __future__ import annotations

import copy
import re
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.cluster.bed.controllers import Controller, owner
from tests.cluster.bed.jobs import failure, finished
from tests.cluster.bed.pod_run import set_condition
from tests.cluster.bed.resources import JOBS, SERVICES, ApiError, Object, Resource
from tests.cluster.bed.store import Change

if TYPE_CHECKING:
    from tests.cluster.bed.server import Bed

JOBSETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
_LABEL = "jobset.sigs.k8s.io"
_ATTEMPT = f"{_LABEL}/restart-attempt"
_COUNTED = ("RestartJobSet", "RestartJob")


class JobSets(Controller):
    """Creates the jobs of every JobSet, and recreates all of them according to its failure policy."""

    resource = JOBSETS
    watches = (JOBS,)

    def __init__(self, bed: Bed) -> None:
        super().__init__(bed)
        self._ports: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()
        bed.overlays.append(self._meeting_point)

    def on_create(self, obj: Object) -> None:
        network = obj["spec"].get("network") or {}
        name = network.get("subdomain") or obj["metadata"]["name"]
        with suppress(ApiError):
            meta = {"name": name, "namespace": obj["metadata"]["namespace"], "ownerReferences": [owner(obj)]}
            self.store.create(SERVICES, {"metadata": meta, "spec": {"clusterIP": "None"}})
        self._settle(obj)

    def on_update(self, obj: Object, before: Object) -> None:
        self._settle(obj)

    def on_related(self, change: Change) -> None:
        """A job has changed."""
        name = (change.object["metadata"].get("labels") or {}).get(f"{_LABEL}/jobset-name")
        found = self.store.find(JOBSETS, change.object["metadata"]["namespace"], name) if name else None
        if found:
            self._settle(found)

    def _settle(self, told: Object) -> None:
        jobset = self.current(told)
        if jobset is None or "deletionTimestamp" in jobset["metadata"]:
            return
        meta, status = jobset["metadata"], jobset.get("status") or {}
        jobs = self.store.select(JOBS, meta["namespace"], f"{_LABEL}/jobset-name={meta['name']}")
        attempt = status.get("restarts", 0)
        ours = [job for job in jobs if job["metadata"]["labels"][_ATTEMPT] == str(attempt)]
        old = [job for job in jobs if job not in ours]
        if status.get("terminalState"):
            return
        self._delete(old)
        failed = [job for job in ours if finished(job) == "Failed"]
        if failed:
            self._failed(jobset, failed, ours)
            return
        blocking = (jobset["spec"].get("failurePolicy") or {}).get("restartStrategy") == "BlockingRecreate"
        if not (old and blocking):
            self._create(jobset, attempt, {job["metadata"]["name"] for job in jobs})
        if ours and len(ours) == _count(jobset) and all(finished(job) == "Complete" for job in ours):
            self._over(jobset, "Completed", "AllJobsCompleted", "jobset completed successfully", ours)
            return
        self._suspend(jobset, ours)
        self._report(jobset, ours)

    def _create(self, jobset: Object, attempt: int, taken: set[str]) -> None:
        meta = jobset["metadata"]
        for group in jobset["spec"]["replicatedJobs"]:
            for index in range(group.get("replicas", 1)):
                name = f"{meta['name']}-{group['name']}-{index}"
                if name in taken:
                    continue
                labels = _labels(jobset, group, index, attempt)
                template = copy.deepcopy(group["template"])
                pod = template["spec"]["template"]
                pod.setdefault("metadata", {})
                for what in ("labels", "annotations"):
                    pod["metadata"][what] = {**(pod["metadata"].get(what) or {}), **labels}
                network = jobset["spec"].get("network") or {}
                pod["spec"]["subdomain"] = network.get("subdomain") or meta["name"]
                above = template.get("metadata") or {}
                job = {"name": name, "namespace": meta["namespace"], "ownerReferences": [owner(jobset)]}
                job["labels"] = {**(above.get("labels") or {}), **labels}
                spec = {**template["spec"], "suspend": bool(jobset["spec"].get("suspend"))}
                with suppress(ApiError):
                    self.bed.create(JOBS, {"metadata": job, "spec": spec})

    def _failed(self, jobset: Object, failed: list[Object], jobs: list[Object]) -> None:
        policy = jobset["spec"].get("failurePolicy")
        if policy is None:
            self._over(jobset, "Failed", "FailedJobs", "jobset failed due to one or more job failures", jobs)
            return
        name = failed[0]["metadata"]["name"]
        action = _action(policy, failed[0])
        status = jobset.get("status") or {}
        counted = status.get("restartsCountTowardsMax", 0)
        if action == "FailJobSet":
            said = f"jobset failed due to FailJobSet failure policy action (first failed job: {name})"
            self._over(jobset, "Failed", "FailJobSetFailurePolicyAction", said, jobs)
        elif action in _COUNTED and counted >= policy.get("maxRestarts", 0):
            said = f"jobset failed due to reaching max number of restarts (first failed job: {name})"
            self._over(jobset, "Failed", "ReachedMaxRestarts", said, jobs)
        else:
            counted += action in _COUNTED
            # As in the real one: a count of 0 is omitted.
            counts = {"restartsCountTowardsMax": counted} if counted else {}
            self.status(jobset, restarts=status.get("restarts", 0) + 1, **counts)

    def _suspend(self, jobset: Object, jobs: list[Object]) -> None:
        wanted = bool(jobset["spec"].get("suspend"))
        node_selectors = {
            group["name"]: group["template"]["spec"]["template"]["spec"] for group in jobset["spec"]["replicatedJobs"]
        }
        for job in jobs:
            if bool(job["spec"].get("suspend")) == wanted or finished(job):
                continue
            template = node_selectors[job["metadata"]["labels"][f"{_LABEL}/replicatedjob-name"]]

            def edit(now: Object, template: Object = template) -> None:
                now["spec"]["suspend"] = wanted
                for what in ("nodeSelector", "tolerations"):  # Kueue puts the node labels of the flavor into the JobSet
                    if template.get(what):
                        now["spec"]["template"]["spec"][what] = template[what]

            with suppress(ApiError):
                self.store.change(JOBS, job["metadata"]["namespace"], job["metadata"]["name"], edit)

    def _report(self, jobset: Object, jobs: list[Object]) -> None:
        suspended = bool(jobset["spec"].get("suspend"))

        def edit(now: Object) -> None:
            status = now.setdefault("status", {})
            status["replicatedJobsStatus"] = [_group_status(group, jobs) for group in now["spec"]["replicatedJobs"]]
            status.setdefault("restarts", 0)
            known = any(one["type"] == "Suspended" for one in status.get("conditions") or [])
            if suspended or known:
                reason = "SuspendedJobs" if suspended else "ResumeJobs"
                said = f"jobset is {'suspended' if suspended else 'resumed'}"
                set_condition(status, "Suspended", str(suspended), reason=reason, message=said)

        with suppress(ApiError):
            self.store.change(JOBSETS, jobset["metadata"]["namespace"], jobset["metadata"]["name"], edit)

    def _over(self, jobset: Object, state: str, reason: str, message: str, jobs: list[Object]) -> None:
        def edit(now: Object) -> None:
            status = now.setdefault("status", {})
            status["terminalState"] = state
            status["replicatedJobsStatus"] = [_group_status(group, jobs) for group in now["spec"]["replicatedJobs"]]
            set_condition(status, state, "True", reason=reason, message=message)

        where = (jobset["metadata"]["namespace"], jobset["metadata"]["name"])
        with suppress(ApiError):
            self.store.change(JOBSETS, *where, edit)
        self._delete([job for job in jobs if not finished(job)])
        if (kept := jobset["spec"].get("ttlSecondsAfterFinished")) is not None:
            self.bed.later(kept, lambda: self._expire(jobset))

    def _expire(self, jobset: Object) -> None:
        meta = jobset["metadata"]
        found = self.store.find(JOBSETS, meta["namespace"], meta["name"])
        if found and found["metadata"]["uid"] == meta["uid"]:
            self.store.delete(JOBSETS, meta["namespace"], meta["name"], policy="Foreground")

    def _delete(self, jobs: list[Object]) -> None:
        for job in jobs:
            if "deletionTimestamp" not in job["metadata"]:
                with suppress(ApiError):
                    self.store.delete(JOBS, job["metadata"]["namespace"], job["metadata"]["name"], policy="Foreground")

    def _meeting_point(self, pod: Object, env: dict[str, str]) -> dict[str, str]:
        """Host names do not resolve here: rank 0 of each attempt of a gang is a free port of loopback."""
        labels = pod["metadata"].get("labels") or {}
        if "PET_MASTER_ADDR" not in env or f"{_LABEL}/jobset-name" not in labels:
            return env
        attempt = (labels[f"{_LABEL}/jobset-uid"], labels["controller-uid"])
        with self._lock:  # pods of a gang start side by side
            if attempt not in self._ports:
                with socket.create_server(("127.0.0.1", 0)) as free:
                    self._ports[attempt] = free.getsockname()[1]
        return {**env, "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(self._ports[attempt])}


def _action(policy: Object, job: Object) -> str:
    """The action of the first matching rule for the failed job; by default all jobs restart."""
    reason, message = failure(job)
    group = job["metadata"]["labels"][f"{_LABEL}/replicatedjob-name"]
    for rule in policy.get("rules") or []:
        reasons, targets = rule.get("onJobFailureReasons"), rule.get("targetReplicatedJobs")
        patterns = rule.get("onJobFailureMessagePatterns")
        met = not patterns or any(re.search(pattern, message) for pattern in patterns)
        if met and (not reasons or reason in reasons) and (not targets or group in targets):
            return str(rule["action"])
    return "RestartJobSet"


def _labels(jobset: Object, group: Object, index: int, attempt: int) -> dict[str, str]:
    told = {
        "jobset-name": jobset["metadata"]["name"],
        "jobset-uid": jobset["metadata"]["uid"],
        "replicatedjob-name": group["name"],
        "replicatedjob-replicas": group.get("replicas", 1),
        "global-replicas": _count(jobset),
        "job-index": index,
        "job-global-index": index,
        "restart-attempt": attempt,
    }
    return {f"{_LABEL}/{name}": str(value) for name, value in told.items()}


def _count(jobset: Object) -> int:
    return sum(group.get("replicas", 1) for group in jobset["spec"]["replicatedJobs"])


def _group_status(group: Object, jobs: list[Object]) -> Object:
    mine = [job for job in jobs if job["metadata"]["labels"][f"{_LABEL}/replicatedjob-name"] == group["name"]]
    states = [job.get("status") or {} for job in mine]
    wanted = group["template"]["spec"].get("parallelism", 1)
    return {
        "name": group["name"],
        "ready": sum(one.get("ready", 0) + one.get("succeeded", 0) >= wanted for one in states),
        "succeeded": sum(finished(job) == "Complete" for job in mine),
        "failed": sum(finished(job) == "Failed" for job in mine),
        "active": sum(one.get("active", 0) > 0 for one in states),
        "suspended": sum(bool(job["spec"].get("suspend")) for job in mine),
    }
