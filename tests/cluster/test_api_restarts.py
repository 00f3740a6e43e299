"""An API server that restarts while pods run: it answers 403 to all clients until it has loaded RBAC."""

import asyncio
import re

import pytest

from tests.cluster.runs import CommandedPod, Task, event_of, first, meanwhile

pytestmark = pytest.mark.real_time

COUNT = first("[print('line', n) or time.sleep(0.2) for n in range(10_000)]")
TRIGGERS, RESTARTS = 6, 5


def commands(code: str) -> list[str]:
    return ["python", "-u", "-c", f"import time\n{code}"]


def test_six_triggers_survive_five_restarts_of_the_api_server(recipe, cluster) -> None:
    bed = cluster.only_here("restarts of the API server at will")
    recipe()
    counts = commands("for n in range(60): print('line', n, flush=True); time.sleep(0.2)")
    tasks = [
        Task(lambda: CommandedPod(task_id="train", recipe="test", stage="train", cmds=counts), f"dag-{number}")
        for number in range(TRIGGERS)
    ]
    triggers = [task.process()[1] for task in tasks]
    said = [[] for _ in triggers]

    async def wait(trigger) -> dict:
        async for event in trigger.run():
            return dict(event.payload)
        raise AssertionError("the trigger ended without an event")

    async def restarts() -> None:
        for _ in range(RESTARTS):
            await asyncio.sleep(1.5)
            bed.restart_api()

    async def all_of_them() -> list[dict]:
        *events, _ = await asyncio.gather(*map(wait, triggers), restarts())
        return events

    for trigger, lines in zip(triggers, said, strict=True):
        trigger.log_line = lines.append
    assert [event["failure"] for event in asyncio.run(all_of_them())] == [None] * TRIGGERS
    assert len(cluster.history.lives()) == TRIGGERS
    for lines in said:
        counted = [int(found[1]) for line in lines if (found := re.search(r"line (\d+)$", line))]
        assert counted == list(range(60))


def test_a_pod_starts_although_the_api_server_has_not_loaded_rbac_yet(run, cluster) -> None:
    refused = cluster.faults.answer(403, verb="list", path="*/pods")
    ended = run("tokenizer")
    assert ended.state == "success", ended.said
    assert ended.task.try_number == 1
    assert refused.hits == 1


@pytest.fixture
def stranger(cluster, monkeypatch):
    """Removes the rights of all clients; returns a function that restores them."""
    bed = cluster.only_here("rights that are taken away at will")

    def take() -> None:
        bed.restart_api(600)

    take.back = lambda: bed.restart_api(0)
    return take


def test_a_task_that_loses_its_rights_permanently_names_its_pod(run, cluster, stranger) -> None:
    def disturb() -> None:
        cluster.log_says(cluster.pod().metadata.name, "line 2")
        stranger()

    with meanwhile(disturb):
        ended = run("tokenizer", cmds=COUNT)
    [pod] = cluster.pods()
    assert ended.state == "failed"
    assert ended.task.try_number == 1
    assert f"pod {pod.metadata.name} in namespace {cluster.namespace} was not deleted and may still run" in ended.said
    assert "cannot list resource" in ended.said


def test_a_task_that_fails_for_good_deletes_its_pod_if_it_has_the_right(recipe, cluster, stranger) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    recipe()
    counts = commands("for n in range(1000): print('line', n, flush=True); time.sleep(0.2)")
    task = Task(lambda: CommandedPod(task_id="train", recipe="test", stage="train", cmds=counts))
    operator, trigger = task.process()
    cluster.pod()
    stranger()
    event = event_of(trigger)
    assert event["failure"]["permanent"]
    stranger.back()
    with pytest.raises(AirflowFailException, match="cannot list resource") as told:
        task.resumed(operator, event)
    assert "may still run" not in str(told.value)
    cluster.until(lambda: not cluster.pods(), 60)


def test_an_error_in_the_trigger_leaves_no_orphaned_pod(recipe, cluster, monkeypatch) -> None:
    from airflow.sdk.exceptions import AirflowException

    recipe()
    counts = commands("time.sleep(60)")
    task = Task(lambda: CommandedPod(task_id="train", recipe="test", stage="train", cmds=counts))
    operator, trigger = task.process()
    [pod] = cluster.pods()

    async def broken(_pod: object) -> None:
        raise KeyError("status")

    trigger.check = broken
    with pytest.raises(AirflowException, match=rf"waiting failed: KeyError.*pod {pod.metadata.name} in namespace"):
        task.resumed(operator, event_of(trigger))


def test_without_list_rights_the_error_says_how_to_find_pods_of_earlier_tries(run, cluster, stranger) -> None:
    stranger()
    ended = run("tokenizer")
    assert ended.state == "failed"
    assert ended.task.try_number == 1
    assert "have the label sluice/owner=" in ended.said
