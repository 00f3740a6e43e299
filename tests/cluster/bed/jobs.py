"""The Job controller: indexed pods, the pod failure policy, the back-off limit."""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.cluster.bed.controllers import Controller, owner
from tests.cluster.bed.pod_run import set_condition
from tests.cluster.bed.resources import JOBS, PODS, ApiError, Object
from tests.cluster.bed.store import Change, now

if TYPE_CHECKING:
    from tests.cluster.bed.server import Bed

INDEX = "batch.kubernetes.io/job-completion-index"
_OVER = ("Succeeded", "Failed")
Verdict = tuple[str, str, str]


class Jobs(Controller):
    """Keeps one pod per completion index until all have succeeded or the job has failed."""

    resource = JOBS
    watches = (PODS,)

    def __init__(self, bed: Bed) -> None:
        super().__init__(bed)
        self._ended: dict[str, dict[str, Object]] = {}
        """Job uid -> pod uid -> the pod as it was when it ended."""

    def on_create(self, obj: Object) -> None:
        self._settle(obj)

    def on_update(self, obj: Object, before: Object) -> None:
        self._settle(obj)

    def on_related(self, change: Change) -> None:
        """Records the results of pods of jobs, also if they are deleted."""
        pod = change.object
        reference = next((o for o in pod["metadata"].get("ownerReferences", []) if o["kind"] == "Job"), None)
        if reference is None:
            return
        if change.type == "DELETED" or pod["status"]["phase"] in _OVER:
            self._ended.setdefault(reference["uid"], {}).setdefault(pod["metadata"]["uid"], pod)
        job = self.store.find(JOBS, pod["metadata"]["namespace"], reference["name"])
        if job and job["metadata"]["uid"] == reference["uid"]:
            self._settle(job)

    def _settle(self, told: Object) -> None:
        job = self.current(told)
        if job is None or "deletionTimestamp" in job["metadata"] or finished(job):
            return
        spec, ended = job["spec"], self._ended.get(job["metadata"]["uid"], {})
        mine = f"controller-uid={job['metadata']['uid']}"
        pods = [
            pod
            for pod in self.store.select(PODS, job["metadata"]["namespace"], mine)
            if pod["metadata"]["uid"] not in ended
        ]
        done = {_index(pod) for pod in ended.values() if pod["status"]["phase"] == "Succeeded"}
        verdict, failed = self._judge(job, [pod for pod in ended.values() if pod["status"]["phase"] != "Succeeded"])
        if verdict:
            self._fail(job, pods, verdict, failed)
        elif len(done) >= spec.get("completions", 1):
            self._report(job, pods, done, failed, ("Complete", "CompletionsReached", "Reached expected number"))
        elif spec.get("suspend"):
            self._delete(pods)
            self._report(job, pods, done, failed, ("Suspended", "JobSuspended", "Job suspended"))
        else:
            active = {_index(pod) for pod in pods}
            for index in range(spec.get("completions", 1)):
                if index not in active | done:
                    self._start(job, index)
            self._report(job, pods, done, failed, None)

    def _judge(self, job: Object, failures: list[Object]) -> tuple[Verdict | None, int]:
        """Returns the reason of the job's failure, if any, and the number of failed pods."""
        counted = 0
        for pod in failures:
            rule, verdict = _policy(job, pod)
            if rule == "FailJob":
                return verdict, counted + 1
            counted += rule != "Ignore"
        if counted > job["spec"].get("backoffLimit", 6):
            return ("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit"), counted
        return None, counted

    def _fail(self, job: Object, pods: list[Object], verdict: Verdict, failed: int) -> None:
        """Stops the other pods; the job is failed once they are deleted."""
        self._delete(pods)
        kind, reason, message = verdict if not pods else ("FailureTarget", verdict[1], verdict[2])
        self._report(job, pods, set(), failed, (kind, reason, message))

    def _report(self, job: Object, pods: list[Object], done: set[int], failed: int, condition: Verdict | None) -> None:
        ready = sum(_ready(pod) for pod in pods)
        counts = {"active": len(pods), "ready": ready, "succeeded": len(done), "failed": failed}

        def edit(now_is: Object) -> None:
            status = now_is.setdefault("status", {})
            status.setdefault("startTime", now())
            status |= counts
            if condition:
                kind, reason, message = condition
                set_condition(status, kind, "True", reason=reason, message=message)
            if not now_is["spec"].get("suspend") and _condition(now_is, "Suspended"):
                set_condition(status, "Suspended", "False", reason="JobResumed", message="Job resumed")

        with suppress(ApiError):
            self.store.change(JOBS, job["metadata"]["namespace"], job["metadata"]["name"], edit)

    def _start(self, job: Object, index: int) -> None:
        meta, template = job["metadata"], job["spec"]["template"]
        above = template.get("metadata") or {}
        name = f"{meta['name']}-{index}-{secrets.token_hex(3)[:5]}"
        labels = {"controller-uid": meta["uid"], "batch.kubernetes.io/job-name": meta["name"], INDEX: str(index)}
        spec = {**template["spec"], "hostname": f"{meta['name']}-{index}"}
        spec["containers"] = [
            {**one, "env": [*(one.get("env") or []), {"name": "JOB_COMPLETION_INDEX", "value": str(index)}]}
            for one in spec["containers"]
        ]
        pod = {
            "metadata": {
                "name": name,
                "namespace": meta["namespace"],
                "labels": {**(above.get("labels") or {}), **labels},
                "annotations": {**(above.get("annotations") or {}), INDEX: str(index)},
                "ownerReferences": [owner(job)],
            },
            "spec": spec,
        }
        try:
            self.bed.create(PODS, pod)
        except ApiError as error:
            about = {"kind": "Job", "namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]}
            self.bed.event(about, "FailedCreate", f"Error creating: {error}", "Warning", "job-controller")
            self.bed.later(1.0, lambda: self._settle(job))

    def _delete(self, pods: list[Object]) -> None:
        for pod in pods:
            if "deletionTimestamp" not in pod["metadata"]:
                with suppress(ApiError):
                    self.store.delete(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"])


def finished(job: Object) -> str:
    """`Complete`, `Failed`, or nothing while it runs."""
    return next((kind for kind in ("Complete", "Failed") if _condition(job, kind)), "")


def failure(job: Object) -> tuple[str, str]:
    """Reason and message of a failed job."""
    found = _condition(job, "Failed") or {}
    return found.get("reason", ""), found.get("message", "")


def _policy(job: Object, pod: Object) -> tuple[str, Verdict | None]:
    """The action of the first matching rule: FailJob, Ignore or Count."""
    for at, rule in enumerate((job["spec"].get("podFailurePolicy") or {}).get("rules") or []):
        where = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        if found := _matches(rule, pod, where):
            verdict = ("Failed", "PodFailurePolicy", f"{found} matching {rule['action']} rule at index {at}")
            return rule["action"], verdict
    return "Count", None


def _matches(rule: Object, pod: Object, where: str) -> str:
    if codes := rule.get("onExitCodes"):
        for one in pod["status"].get("containerStatuses") or []:
            code = (one["state"].get("terminated") or {}).get("exitCode")
            named = codes.get("containerName") in (None, one["name"])
            if named and code and (code in codes["values"]) == (codes["operator"] == "In"):
                return f"Container {one['name']} for pod {where} failed with exit code {code}"
    for wanted in rule.get("onPodConditions") or []:
        for one in pod["status"].get("conditions") or []:
            if one["type"] == wanted["type"] and one["status"] == wanted.get("status", "True"):
                return f"Pod {where} has condition {one['type']}"
    return ""


def _condition(obj: Object, kind: str) -> Object | None:
    conditions = (obj.get("status") or {}).get("conditions") or []
    return next((one for one in conditions if one["type"] == kind and one["status"] == "True"), None)


def _ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _index(pod: Object) -> int:
    return int(pod["metadata"]["annotations"][INDEX])
