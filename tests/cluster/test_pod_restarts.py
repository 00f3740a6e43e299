"""An evicted pod is not a failure of its task: it is restarted without using a retry."""

import re

import pytest

from tests.cluster.runs import first, meanwhile

pytestmark = pytest.mark.real_time

# The first pod waits for its eviction; its successor runs its stage at once.
WAITS = (
    "marker = os.environ['MARKER']; seen = os.path.exists(marker); open(marker, 'w').close(); seen or time.sleep(60)"
)


def test_an_evicted_pod_is_started_again_in_the_same_try(run, cluster, store, caplog) -> None:
    with meanwhile(lambda: cluster.evict(cluster.pod().metadata.name)):
        ended = run("tokenizer", retries=0, cmds=first(WAITS), env={"MARKER": str(store / "marker")}, grace_s=21)
    assert ended.state == "success", ended.said
    assert ended.task.try_number == 1
    assert re.search(r"was evicted.*restarted", caplog.text)
    assert len(cluster.history.lives()) == 2
    assert cluster.history.at_once() == 1


def test_a_place_without_restarts_relies_on_task_retries(run, cluster, store) -> None:
    with meanwhile(lambda: cluster.evict(cluster.pod().metadata.name)):
        ended = run(
            "tokenizer", retries=0, cmds=first(WAITS), env={"MARKER": str(store / "marker")}, grace_s=21, max_restarts=0
        )
    assert ended.state == "failed"
    assert "was evicted" in ended.said
    assert len(cluster.history.lives()) == 1


def test_a_pod_that_exceeds_the_task_timeout_is_stopped(run, cluster, store) -> None:
    timed = "execution_timeout=timedelta(seconds=3),"
    ended = run("tokenizer", retries=0, cmds=first("time.sleep(60)"), more=timed, grace_s=21)
    assert ended.state == "failed"
    assert "execution_timeout" in ended.said
    cluster.until(lambda: not cluster.pods(), 60)
