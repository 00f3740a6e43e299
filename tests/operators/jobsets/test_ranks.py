"""The report on a gang: the result of each rank over all restarts, and the rank that caused the failure."""

from operators.jobsets.ranks import RankHistory


def pod(rank: int, restart: int = 0, code: int | None = None, at: str = "", reason: str = "Error", **status) -> dict:
    """A pod of a gang with the labels of JobSet; `code`: exit code of its container."""
    state = {"running": {}} if code is None else {"terminated": {"exitCode": code, "reason": reason, "finishedAt": at}}
    phase = "Running" if code is None else "Succeeded" if code == 0 else "Failed"
    return {
        "metadata": {
            "name": f"gang-node-0-{rank}-{restart}abc",
            "labels": {
                "batch.kubernetes.io/job-completion-index": str(rank),
                "jobset.sigs.k8s.io/restart-attempt": str(restart),
            },
        },
        "spec": {"nodeName": f"gpu-{rank}", "containers": [{"name": "base"}]},
        "status": {"phase": phase, "containerStatuses": [{"name": "base", "state": state}], **status},
    }


def seen(*pods: dict) -> RankHistory:
    ranks = RankHistory("base")
    for one in pods:
        ranks.update(one)
    return ranks


def test_the_cause_is_the_rank_that_failed_and_not_the_stopped_ones():
    ranks = seen(
        pod(0, code=143, at="2026-11-21T08:00:01Z"), pod(1, code=137, at="2026-11-21T08:00:02Z", reason="OOMKilled")
    )
    assert ranks.first_failure().kind == "oom"


def test_a_permanent_failure_is_the_cause_even_if_it_was_not_first():
    ranks = seen(pod(0, code=1, at="2026-11-21T08:00:01Z"), pod(1, code=2, at="2026-11-21T08:00:02Z"))
    assert ranks.first_failure().permanent


def test_among_equals_the_first_is_the_cause():
    ranks = seen(pod(0, code=1, at="2026-11-21T08:00:09Z"), pod(1, code=7, at="2026-11-21T08:00:02Z"))
    assert ranks.first_failure().exit_code == 7


def test_only_the_last_start_of_the_gang_counts():
    ranks = seen(pod(0, 0, code=2), pod(0, 1, code=1))
    assert ranks.first_failure().exit_code == 1


def test_a_rank_on_a_lost_node_is_the_cause_even_without_a_message():
    lost = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
    silent = pod(1, conditions=[lost])
    silent["metadata"]["deletionTimestamp"] = "2026-11-21T08:00:00Z"
    ranks = seen(pod(0, code=143, at="2026-11-21T08:00:01Z"), silent)
    assert ranks.first_failure().kind == "node_lost"


def test_the_report_keeps_messages_of_deleted_pods():
    ranks = seen(pod(0), pod(1))
    ranks.update(pod(1, code=137, at="2026-11-21T08:00:01Z"))
    ranks.update(pod(0, 1, code=0))
    ranks.update(pod(1, 1, code=0))
    assert ranks.last_restart == 1
    lines = ranks.report()
    assert len(lines) == 4
    assert lines[0].startswith("rank 0: end not observed")
    assert "rank 1: killed, exit code 137" in lines[1]
    assert lines[2:] == ["rank 0 after restart 1: done (exit code 0)", "rank 1 after restart 1: done (exit code 0)"]


def test_a_finished_gang_has_no_failure():
    assert seen(pod(0, code=0), pod(1, code=0)).first_failure() is None
