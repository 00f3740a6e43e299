"""An alert of a training in a pod is sent while the pod runs, through its log and the trigger that reads it."""

import asyncio
import socket

import pytest

from tests.cluster.runs import Task
from tests.cluster.training import recipe_text

pytestmark = pytest.mark.real_time

ALERTS = """
[place.alerts]
notifier = "tests.operators.test_alerts.ToFile"
[place.alerts.arguments]
path = "{path}"
text = "{{{{ artifact }}}} {{{{ dag_id }}}}: {{{{ alert }}}}"
"""
DIVERGES = "lr = 1e-2", "lr = 1e30\nclip = 1e30"
"""The first step spoils the weights, and no later one is finite."""


def test_non_finite_steps_reach_notifier_and_metrics_while_the_pod_runs(
    cluster, store, recipes, tmp_path, monkeypatch, airflow_db
) -> None:
    from operators import stats
    from operators.kubernetes_stage import GpuPodOperator

    place = cluster.place() + ALERTS.format(path=tmp_path / "sent")
    recipes("test", text=recipe_text(200, store, place).replace(*DIVERGES))
    task = Task(lambda: GpuPodOperator(task_id="train", recipe="test", stage="train"))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.settimeout(5)
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "True")
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_PORT", str(listener.getsockname()[1]))
        stats.connect.cache_clear()
        _, trigger = task.process()
        running: list[bool] = []

        async def wait() -> dict:
            async def look() -> None:
                while not (tmp_path / "sent").exists():
                    await asyncio.sleep(0.05)
                running.append(any(pod.status.phase == "Running" for pod in cluster.pods()))

            looking = asyncio.create_task(look())
            async for event in trigger.run():
                looking.cancel()
                return dict(event.payload)
            raise AssertionError("the trigger ended without an event")

        event = asyncio.run(wait())
        line = listener.recv(65536).decode()
    first = (tmp_path / "sent").read_text().splitlines()[0]
    assert first.startswith("test/checkpoint@dev alone: spike at step 1: the step was skipped (")
    assert running == [True]
    assert "sluice.alert" in line
    assert "kind=spike" in line
    assert event["failure"]["permanent"], event
