"""Gangs whose pods have a sidecar that does not end, such as an injected proxy: the stage's containers decide."""

import asyncio

import pytest

from operators.jobsets import trigger as module
from operators.jobsets.manifest import INDEX, RESTART
from operators.jobsets.trigger import JobSetTrigger, TrainJobTrigger

RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}


def ended(code, at="2026-01-01T00:01:00Z"):
    return {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": at}}


def pod(rank, state, *, restart=0, sidecar=RUNNING, phase="Running", name="", made="2026-01-01T00:00:00Z", **about):
    statuses = [("node", state), *([("istio-proxy", sidecar)] if sidecar else [])]
    return {
        "metadata": {
            "name": name or f"demo-node-0-{rank}-r{restart}",
            "labels": {INDEX: str(rank), RESTART: str(restart)},
            "creationTimestamp": made,
            **about,
        },
        "spec": {"nodeName": "a", "containers": [{"name": one} for one, _ in statuses]},
        "status": {
            "phase": phase,
            "containerStatuses": [{"name": one, "image": "x", "state": said} for one, said in statuses],
        },
    }


def gang(kind, restarts=0):
    status = {"restarts": restarts} if restarts else {}
    if kind is TrainJobTrigger:
        return {"metadata": {"name": "demo"}, "spec": {"trainer": {"numNodes": 2}}, "status": {}}
    job = {"replicas": 1, "template": {"spec": {"parallelism": 2, "completions": 2}}}
    return {"metadata": {"name": "demo"}, "spec": {"replicatedJobs": [job]}, "status": status}


class Pending:
    """Stands in for the monitor of pending pods, which reads events."""

    async def pod(self, pod):
        return None

    def started(self):
        pass


def outcome_of(pods, kind=JobSetTrigger, restarts=0):
    """Returns the outcome of one check: "runs", "done" or the failure."""
    limits = {"queue": "", "queue_s": 60.0, "scale_up_s": 60.0, "grace_s": 30}
    made = kind(name="demo", namespace="ml", conn_id="cluster", container="node", **limits)
    made.pending = Pending()
    made.pods = {one["metadata"]["name"]: one for one in pods}
    found = asyncio.run(made.check(gang(kind, restarts)))
    return "runs" if found is None else found["failure"] or "done"


@pytest.mark.parametrize("kind", [JobSetTrigger, TrainJobTrigger])
@pytest.mark.parametrize(("code", "permanent"), [(2, True), (1, False), (143, False)])
def test_a_gang_beside_running_sidecars_ends_when_all_ranks_have_ended(kind, code, permanent):
    assert outcome_of([pod(0, ended(0)), pod(1, ended(0))], kind) == "done"
    failure = outcome_of([pod(0, ended(0)), pod(1, ended(code))], kind)
    assert (failure["exit_code"], failure["permanent"]) == (code, permanent)
    assert "sidecar" in failure["reason"]


def test_a_gang_goes_on_while_a_rank_runs_or_its_pod_is_missing():
    assert outcome_of([pod(0, ended(0)), pod(1, RUNNING)]) == "runs"
    assert outcome_of([pod(0, ended(0))]) == "runs"
    assert outcome_of([pod(0, ended(0))], TrainJobTrigger) == "runs"


def test_a_failed_rank_leaves_the_others_time_to_end_unless_its_failure_is_permanent(monkeypatch):
    assert outcome_of([pod(0, RUNNING), pod(1, ended(2))])["permanent"]
    failed = [pod(0, RUNNING), pod(1, ended(1))]
    assert outcome_of(failed) == "runs"
    monkeypatch.setattr(module, "PEERS_S", -1.0)
    assert outcome_of(failed)["exit_code"] == 1


def test_only_the_newest_start_of_a_gang_counts():
    before = [pod(0, ended(1)), pod(1, ended(1))]
    assert outcome_of([*before, pod(0, ended(0), restart=1), pod(1, ended(0), restart=1)], restarts=1) == "done"
    assert outcome_of([*before, pod(0, RUNNING, restart=1), pod(1, RUNNING, restart=1)], restarts=1) == "runs"
    assert outcome_of(before, restarts=1) == "runs"  # the pods of the new start do not exist yet


def test_a_pod_that_is_deleted_or_replaced_does_not_count():
    deleted = pod(1, ended(1), name="old", deletionTimestamp="2126-01-01T00:00:00Z")
    assert outcome_of([pod(0, ended(0)), deleted]) == "runs"
    replaced = pod(1, ended(1), name="old", made="2025-01-01T00:00:00Z")
    assert outcome_of([pod(0, ended(0)), replaced, pod(1, ended(0))]) == "done"


@pytest.mark.parametrize("code", [0, 1, 2])
def test_without_a_sidecar_that_runs_the_status_of_the_jobset_decides(code):
    phase = "Failed" if code else "Succeeded"
    assert outcome_of([pod(rank, ended(code), sidecar=None, phase=phase) for rank in (0, 1)]) == "runs"
    # Native sidecars are init containers: the kubelet ends them.
    assert outcome_of([pod(rank, ended(code), sidecar=None) for rank in (0, 1)]) == "runs"
    assert outcome_of([pod(rank, ended(code), sidecar=ended(0), phase=phase) for rank in (0, 1)]) == "runs"
