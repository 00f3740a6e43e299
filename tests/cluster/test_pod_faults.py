"""A training pod during faults of the log, the kubelet, the API server, the node, and Airflow.

In every case the run continues or resumes, there are never two pods at once, and the model equals that of an
undisturbed run.
"""

import io
import re
import time

import pyarrow.parquet as pq
import pytest

from tests.cluster.runs import CommandedPod, Task, ended_by, event_of, first, meanwhile
from tests.cluster.settings import Settings

pytestmark = pytest.mark.real_time

STEPS = 600 if Settings().kube_config else 300
SAVED = "test/checkpoint/dev/.scratch/*/epoch-*/checkpoints/step-*/state.json"
COUNT = "[print('line', n) or time.sleep(0.2) for n in range({})]"


def trained_as_if_nothing_had_happened(ended, undisturbed) -> None:
    assert ended.state == "success", ended.said
    made = ended.artifact("checkpoint")
    assert made.verify() == []
    assert made.record.content == undisturbed(STEPS)


def lines(ended, count: int) -> list[int]:
    """The number of occurrences of each line of the pod in the task's log."""
    return [len(re.findall(rf"\bline {number}\b", ended.said)) for number in range(count)]


@pytest.fixture
def saved(cluster, store):
    """Waits until the running pod is past a saved checkpoint; returns the pod."""

    def wait():
        pod = cluster.pod()
        cluster.until(lambda: len(list(store.glob(SAVED))) > 1)
        return pod

    return wait


@pytest.fixture
def task(recipe):
    """A training task for several processes, with its recipe."""

    def make(steps: int = STEPS, **place) -> Task:
        from operators.kubernetes_stage import GpuPodOperator

        recipe(steps=steps, **place)
        return Task(lambda: GpuPodOperator(task_id="train", recipe="test", stage="train"))

    return make


# The log and the kubelet


def test_a_log_line_cut_by_a_lost_connection_is_joined(run, cluster) -> None:
    cut = cluster.faults.cut_log(times=3)
    ended = run("tokenizer", cmds=first(COUNT.format(30)))
    assert ended.state == "success", ended.said
    assert cut.hits == 3
    assert lines(ended, 30) == [1] * 30
    assert len(cluster.history.lives()) == 1


def test_a_dead_kubelet_only_leaves_a_gap_in_the_log(run, cluster) -> None:
    dead_s = 60 if cluster.slowness > 1 else 6

    def disturb() -> None:
        pod = cluster.pod()
        cluster.log_says(pod.metadata.name, "line 5")
        cluster.stop_kubelet(pod.spec.node_name)
        time.sleep(dead_s)
        cluster.start_kubelet(pod.spec.node_name)

    count = dead_s * 5 + 40
    with meanwhile(disturb):
        ended = run("tokenizer", cmds=first(COUNT.format(count)))
    assert ended.state == "success", ended.said
    assert ended.task.try_number == 1
    assert "log cannot be read, the pod is not touched" in ended.said
    assert "log is back after" in ended.said
    assert lines(ended, count) == [1] * count
    [pod] = cluster.history.lives()
    assert pod.last.status.container_statuses[0].restart_count == 0


def test_a_pod_that_ends_while_its_log_is_unreachable_has_succeeded(run, cluster) -> None:
    cluster.faults.logs_unreachable()
    ended = run("tokenizer", cmds=first(COUNT.format(5)))
    assert ended.state == "success", ended.said
    assert ended.task.try_number == 1
    assert "the rest of the pod's log cannot be read" in ended.said


SAYS_AND_FAILS = "import time\nfor n in range(40): print('line', n, flush=True); time.sleep(0.05)\nraise SystemExit(3)"


@pytest.mark.parametrize("read", [0, 12])
def test_an_unreachable_log_ends_with_the_termination_message(recipe, cluster, read) -> None:
    recipe()
    says = ["python", "-u", "-c", SAYS_AND_FAILS]
    task = Task(lambda: CommandedPod(task_id="train", recipe="test", stage="train", cmds=says))
    bed, said = cluster.only_here("a log endpoint that is blocked past the end of a pod"), []
    bed.faults.cut_log_after = read

    def take(line: str) -> None:
        said.append(line)
        if line == f"line {read - 1}":
            bed.faults.logs_unreachable()

    if not read:
        bed.faults.logs_unreachable()
    _, trigger = task.process()
    trigger.log_line = take
    event = event_of(trigger)
    assert event["failure"]["exit_code"] == 3
    counted = [line for line in said if line.startswith("line ")]
    assert counted == [f"line {number}" for number in range(40)]
    assert "[the rest of the pod's log cannot be read]" in said
    assert any("termination message" in line for line in said)


# The API server


@pytest.mark.parametrize("code", [429, 500, 503, None])
def test_an_intermittently_failing_api_changes_nothing(run, cluster, code) -> None:
    faults = cluster.faults
    for verb in ("create", "list", "get", "watch", "delete"):
        if code is None:
            faults.reset(verb=verb, times=2)
        else:
            faults.answer(code, verb=verb, times=2, retry_after=1 if code == 429 else None)
    # Long enough for a third try of a watch that was refused twice.
    ended = run("tokenizer", cmds=first(COUNT.format(20)))
    assert ended.state == "success", ended.said
    assert ended.task.try_number == 1
    assert len(cluster.history.lives()) == 1
    assert {one.verb for one in faults.rules if one.hits == 2} >= {"create", "list", "watch", "delete"}


@pytest.mark.parametrize("code", [pytest.param(None, marks=pytest.mark.smoke), 500, 503])
def test_a_create_request_whose_response_is_lost_makes_one_pod(run, cluster, code) -> None:
    lost = cluster.faults.lose_reply(verb="create", path="*/pods", code=code)
    ended = run("tokenizer")
    assert ended.state == "success", ended.said
    assert lost.hits == 1
    assert len(cluster.history.lives()) == 1


def test_a_pod_name_that_exists_already_is_looked_up(run, cluster) -> None:
    taken = cluster.faults.answer(409, verb="create", path="*/pods", times=2)
    ended = run("tokenizer")
    assert ended.state == "success", ended.said
    assert taken.hits == 2
    assert len(cluster.history.lives()) == 1


def test_an_expired_watch_restarts(run, cluster) -> None:
    bed = cluster.only_here("history of the API server dropped in mid-run")

    def disturb() -> None:
        cluster.log_says(cluster.pod().metadata.name, "line 2")
        bed.store.compact()
        cluster.faults.answer(410, verb="watch", times=2)

    with meanwhile(disturb):
        ended = run("tokenizer", cmds=first(COUNT.format(15)))
    assert ended.state == "success", ended.said
    assert len(cluster.history.lives()) == 1


@pytest.mark.smoke
def test_an_api_outage_does_not_touch_the_pod(run, cluster) -> None:
    def disturb() -> None:
        cluster.log_says(cluster.pod().metadata.name, "line 2")
        cluster.faults.answer(503, times=10**6)
        time.sleep(5)
        cluster.faults.clear()

    with meanwhile(disturb):
        ended = run("tokenizer", cmds=first(COUNT.format(40)))
    assert ended.state == "success", ended.said
    assert ended.task.try_number == 1
    assert lines(ended, 40) == [1] * 40
    assert len(cluster.history.lives()) == 1


# The pod and the node


@pytest.mark.smoke
def test_an_evicted_trainer_saves_and_the_next_try_resumes(run, cluster, saved, undisturbed) -> None:
    with meanwhile(lambda: cluster.evict(saved().metadata.name)):
        ended = run("train", steps=STEPS)
    trained_as_if_nothing_had_happened(ended, undisturbed)
    evicted, again = cluster.history.lives()[:2]
    assert evicted.exit_code == 143
    assert again.exit_code == 0
    assert "evicted" in ended.said
    assert "resumed at step" in ended.said
    assert cluster.history.at_once() == 1


def test_a_trainer_that_is_killed_without_grace_resumes_from_its_checkpoint(run, cluster, saved, undisturbed) -> None:
    with meanwhile(lambda: cluster.kill_pod(saved().metadata.name)):
        ended = run("train", steps=STEPS)
    trained_as_if_nothing_had_happened(ended, undisturbed)
    assert "resumed at step" in ended.said
    assert cluster.history.at_once() == 1


def test_a_run_whose_node_is_lost_resumes_on_another_one(run, cluster, saved, undisturbed) -> None:
    with meanwhile(lambda: cluster.lose_node(saved().spec.node_name)):
        ended = run("train", steps=STEPS)
    trained_as_if_nothing_had_happened(ended, undisturbed)
    lost, again = cluster.history.lives()[:2]
    assert lost.last.spec.node_name != again.last.spec.node_name
    assert "resumed at step" in ended.said
    assert "node" in ended.said
    assert cluster.history.at_once() == 1


def test_a_trainer_on_a_silent_node_is_fenced_off_by_its_successor(run, cluster, saved, undisturbed, caplog) -> None:
    with meanwhile(lambda: cluster.silence_node(saved().spec.node_name)):
        ended = run("train", steps=STEPS, node_silent_s=5)
    trained_as_if_nothing_had_happened(ended, undisturbed)
    table = pq.read_table(io.BytesIO(ended.artifact("checkpoint").read("loss.parquet")))
    assert table["step"].to_pylist() == list(range(STEPS))
    assert "is not deleted: its node does not respond; a new one is started beside it" in caplog.text
    assert not list(ended.store.glob("test/checkpoint/dev/.scratch/**/*.safetensors"))


# Airflow


def test_a_second_process_of_the_task_finds_the_pod_of_the_first(task, cluster, saved, undisturbed) -> None:
    one = task()
    one.process()
    saved()
    operator, trigger = one.process()
    event = event_of(trigger)
    assert one.resumed(operator, event)["address"] == "test/checkpoint@dev"
    assert len(cluster.history.lives()) == 1


def test_a_second_triggerer_repeats_no_log_line_and_no_alert(task, cluster, saved) -> None:
    from airflow.triggers.base import BaseTrigger

    one = task()
    _, trigger = one.process()
    saved()
    path, told = trigger.serialize()
    assert path.startswith("operators.")
    again: BaseTrigger = type(trigger)(**told)
    again.task_instance = trigger.task_instance
    assert event_of(again)["failure"] is None
    assert len(cluster.history.lives()) == 1


def test_a_cleared_task_keeps_its_pod_and_reattaches_to_it(task, cluster, saved) -> None:
    one = task()
    _, trigger = one.process()
    pod = saved()
    ended_by(trigger, "cleared")
    operator, again = one.process()
    assert one.resumed(operator, event_of(again))["address"] == "test/checkpoint@dev"
    [only] = cluster.history.lives()
    assert only.name == pod.metadata.name


def test_marking_a_task_failed_lets_the_trainer_save(task, cluster, saved, store) -> None:
    one = task(steps=100_000)
    _, trigger = one.process()
    pod = saved()
    ended_by(trigger, "failed")
    cluster.until(lambda: not cluster.pods(), 40)
    [only] = cluster.history.lives()
    assert only.name == pod.metadata.name
    assert only.last.status.container_statuses[0].state.terminated.exit_code == 143
    assert list(store.glob(SAVED))


def test_ending_the_task_on_a_worker_stops_the_pod(task, cluster, saved) -> None:
    one = task(steps=100_000)
    operator, _ = one.process()
    saved()
    operator.on_kill()
    cluster.until(lambda: not cluster.pods(), 40)
    [only] = cluster.history.lives()
    assert only.last.status.container_statuses[0].state.terminated.exit_code == 143


def test_a_changed_recipe_stops_the_old_pod_before_the_new_one_starts(task, recipe, cluster, saved) -> None:
    one = task(steps=100_000)
    one.process()
    saved()
    recipe(steps=60)
    operator, trigger = one.process()
    assert one.resumed(operator, event_of(trigger))["address"] == "test/checkpoint@dev"
    assert len(cluster.history.lives()) == 2
    assert cluster.history.at_once() == 1
