"""A restarted triggerer continues the logs of its pods: every line is in the task's log once."""

import asyncio
import re

import pytest

from tests.cluster.runs import CommandedPod, Task, event_of

pytestmark = pytest.mark.real_time

COUNTS = "import time\nfor n in range(40): print('line', n, flush=True); time.sleep(0.1)"


@pytest.fixture
def counting(recipe):
    """A task whose pod counts to 40 in four seconds."""
    recipe()
    return Task(
        lambda: CommandedPod(task_id="train", recipe="test", stage="train", cmds=["python", "-u", "-c", COUNTS])
    )


@pytest.mark.smoke
def test_a_stopping_triggerer_hands_its_log_position_to_the_next_one(counting, cluster) -> None:
    said: list[str] = []

    async def interrupted(trigger) -> None:
        trigger.log_line = said.append
        running = asyncio.ensure_future(anext(trigger.run()))
        while not any("line 9" in line for line in said):
            await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.wait({running})
        await trigger.cleanup()

    _, trigger = counting.process()
    asyncio.run(interrupted(trigger))
    successor = type(trigger)(**trigger.serialize()[1])
    successor.log_line = said.append
    assert event_of(successor)["failure"] is None
    counted = [int(found[1]) for line in said if (found := re.search(r"line (\d+)$", line))]
    assert counted == list(range(40))
    assert any("log continues after" in line for line in said)
    assert len(cluster.history.lives()) == 1


SAVES = """
import signal, sys, time
def save(*_): time.sleep(1); print('saved at step 7', flush=True); sys.exit(143)
signal.signal(signal.SIGTERM, save)
print('ready', flush=True)
time.sleep(60)
"""


def test_the_last_lines_of_a_stopped_trainer_are_in_the_task_log(recipe, cluster) -> None:
    recipe()
    task = Task(lambda: CommandedPod(task_id="train", recipe="test", stage="train", cmds=["python", "-c", SAVES]))
    _, trigger = task.process()
    said: list[str] = []
    trigger.log_line = said.append

    async def failed() -> str:
        return "failed"

    async def marked_failed() -> None:
        running = asyncio.ensure_future(anext(trigger.run()))
        while "ready" not in said:
            await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.wait({running})
        await trigger.on_kill()

    trigger._task_state = failed
    asyncio.run(marked_failed())
    assert said[-1] == "saved at step 7"
    assert said.count("ready") == 1
    cluster.until(lambda: not cluster.pods(), 20)
