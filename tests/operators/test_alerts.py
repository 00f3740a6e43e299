"""An alert of a run reaches the configured notifier, from this process and from the log of a pod."""

import asyncio
import json
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.sdk import BaseNotifier

from operators import alerts, stats
from operators.alerts import AlertFinder, forward_alerts, training_failed
from tasks.core.artifact import ArtifactId
from tasks.core.errors import KilledError, RecipeError
from tasks.core.stage import Output
from tasks.core.store import Store
from tasks.run.place import AlertsPlace
from tasks.run.recipe import find_recipe
from tasks.trainer.monitoring.monitor import Monitor
from tasks.trainer.place import TrainPlace, Watch

TASK = SimpleNamespace(dag_id="demo.pretrain", task_id="train", run_id="r1")
POD_LINE = "10:00:01 W [demo/checkpoint@dev] alert: stall at step 7: no step for 61 s. Look at its log."


class ToFile(BaseNotifier):
    """Appends its text to a file; "fail" as text raises."""

    template_fields = ("text", "path")

    def __init__(self, path: str, text: str) -> None:
        super().__init__()
        self.path, self.text = path, text

    def notify(self, context: object) -> None:
        if self.text == "fail":
            raise ConnectionError("no server")
        with Path(self.path).open("a") as file:
            file.write(self.text + "\n")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AlertsPlace:
    monkeypatch.setenv("ALERTS", str(tmp_path / "alerts"))
    text = "{{ artifact }} {{ dag_id }} {{ task_id }} {{ run_id }}: {{ alert }}"
    return AlertsPlace(notifier=f"{__name__}.ToFile", arguments={"path": "${ALERTS}", "text": text})


def monitor(folder: Path) -> Monitor:
    output = Output(Store(str(folder / "store")), ArtifactId("demo/checkpoint", "dev"), "f" * 64)
    place = TrainPlace(watch=Watch(plateau=False))
    spec = SimpleNamespace(
        out=str(folder), run=SimpleNamespace(steps=9, best=None), tuning=None, data_changes=(), place=place
    )
    return Monitor(output, spec)  # type: ignore[arg-type]


def test_an_alert_of_a_run_in_this_process_is_sent_at_once(place: AlertsPlace, tmp_path: Path) -> None:
    with forward_alerts(place, TASK):
        monitor(tmp_path).step(3, {"lr": 0.1})
        (line,) = (tmp_path / "alerts").read_text().splitlines()
    assert line.startswith("demo/checkpoint@dev demo.pretrain train r1: spike at step 3: the step was skipped")
    monitor(tmp_path).step(4, {"lr": 0.1})
    assert len((tmp_path / "alerts").read_text().splitlines()) == 1


def test_an_alert_in_the_log_of_a_pod_is_sent_and_other_lines_are_not(place: AlertsPlace, tmp_path: Path) -> None:
    passed: list[str] = []

    async def read() -> None:
        finder = AlertFinder(passed.append, place, TASK)
        for line in ("10:00:00 I [demo/checkpoint@dev] this is attempt 1", POD_LINE):
            finder(line)
        await finder.settled()

    asyncio.run(read())
    assert passed[1] == POD_LINE
    expected = "demo/checkpoint@dev demo.pretrain train r1: stall at step 7: no step for 61 s. Look at its log.\n"
    assert (tmp_path / "alerts").read_text() == expected


def test_a_training_whose_task_has_failed_for_good_is_a_stall(
    place: AlertsPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, gauges = find_recipe("smoke"), list[tuple[str, str]]()
    alerted = recipe.model_copy(update={"place": recipe.place.model_copy(update={"alerts": place})})
    monkeypatch.setattr(alerts, "find_recipe", lambda name: alerted)
    monkeypatch.setattr(stats, "set_alert", lambda *labels: gauges.append(labels))
    task = SimpleNamespace(recipe="smoke", stage="train")
    context = {"ti": SimpleNamespace(**vars(TASK), try_number=3), "task": task, "params": {"version": "v1"}}
    training_failed({**context, "exception": KilledError("rank 1 was killed\nby the kernel", "use less memory")})
    training_failed(context)
    assert gauges == [("smoke/checkpoint@v1", "stall")] * 2
    first, second = (tmp_path / "alerts").read_text().splitlines()
    assert first.startswith("smoke/checkpoint@v1 demo.pretrain train r1: stall at try 3: the task has failed")
    assert "(KilledError rank 1 was killed by the kernel" in first
    assert "(its process was killed)" in second


def test_a_failing_notifier_does_not_end_the_run(
    place: AlertsPlace, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failing = place.model_copy(update={"arguments": {**place.arguments, "text": "fail"}})
    with forward_alerts(failing, TASK), caplog.at_level(logging.WARNING):
        monitor(tmp_path).step(3, {"lr": 0.1})
    assert "did not send the alert: ConnectionError: no server" in caplog.text


def test_an_invalid_notifier_is_refused_before_anything_runs(place: AlertsPlace) -> None:
    for wrong in ({"notifier": "no.such.Class"}, {"arguments": {"channel": "x"}}):
        with (
            pytest.raises(RecipeError, match=r"\[place.alerts\] notifier"),
            forward_alerts(place.model_copy(update=wrong), TASK),
        ):
            raise AssertionError("it ran")


def test_the_section_is_read_from_a_recipe_and_reaches_a_pod_as_text() -> None:
    recipe = find_recipe("smoke")
    assert recipe.place.alerts == AlertsPlace()
    assert AlertsPlace(**json.loads(json.dumps(recipe.place.alerts.model_dump(mode="json")))) == AlertsPlace()
