"""Alerts: each kind is raised once per episode with the step and a remedy; a steady run raises none."""

import random
from collections.abc import Callable

import pytest

from tasks.trainer.monitoring.monitor import BEFORE, CALM, FIRST_S, RECENT, STALL_S, Alert, AlertDetector
from tasks.trainer.monitoring.plateau import PlateauWatch

STEP = {"loss": 2.0, "step_s": 2.0, "data_wait": 0.01, "tokens_per_s": 1000.0}


class Run:
    """A run with a simulated clock: the sum of its steps."""

    def __init__(self, first_step: int = 0, data_changes: tuple[int, ...] = ()) -> None:
        self.watch = AlertDetector(first_step, 10_000, 0.0, data_changes=data_changes)
        self.now, self.at = 0.0, first_step

    def train(self, steps: int, **values: float | None) -> list[Alert]:
        return self.train_with(steps, lambda: values)

    def train_with(self, steps: int, values: Callable[[], dict[str, float | None]]) -> list[Alert]:
        raised = []
        for _ in range(steps):
            now = {name: value for name, value in {**STEP, **values()}.items() if value is not None}
            self.now += now["step_s"]
            raised += [*self.watch.tick(self.now), *self.watch.step(self.at, now, self.now, "loss_spike")]
            self.at += 1
        return raised

    def wait(self, seconds: int) -> list[Alert]:
        self.now += seconds
        return [alert for _ in range(3) for alert in self.watch.tick(self.now)]


def kinds(alerts: list[Alert]) -> list[str]:
    return [alert.kind for alert in alerts]


def test_a_run_without_steps_raises_one_stall_until_it_continues() -> None:
    run = Run()
    assert run.train(5) == []
    assert run.wait(int(STALL_S) - 1) == []
    (alert,) = run.wait(2)
    assert (alert.kind, alert.step) == ("stall", 5)
    assert "no step for 61 s since step 4" in str(alert)
    assert run.wait(500) == []
    assert kinds(run.train(5)) == []
    assert kinds(run.wait(61)) == ["stall"]


def test_with_slow_steps_a_stall_takes_ten_step_times() -> None:
    run = Run()
    run.train(5, step_s=20.0)
    assert run.wait(199) == []
    assert kinds(run.wait(1)) == ["stall"]


def test_the_first_step_may_take_longer() -> None:
    run = Run(first_step=40)
    assert run.wait(int(FIRST_S) - 1) == []
    (alert,) = run.wait(1)
    assert (alert.kind, alert.step) == ("stall", 40)


def test_a_run_that_does_not_end_after_its_last_step_stalls_late() -> None:
    watch = AlertDetector(0, 1, 0.0)
    assert list(watch.step(0, STEP, 5.0)) == []
    assert list(watch.tick(5.0 + FIRST_S - 1)) == []
    (alert,) = watch.tick(5.0 + FIRST_S)
    assert "no end for 600 s since step 0" in str(alert)


def test_consecutive_skipped_steps_raise_one_spike() -> None:
    run = Run()
    run.train(10)
    (alert,) = run.train(3, loss=None)
    assert (alert.kind, alert.step) == ("spike", 10)
    assert "loss_spike" in str(alert)
    assert "trace step:10" in str(alert)
    run.train(CALM - 1)
    assert run.train(1, loss=None) == []
    run.train(CALM + 1)
    assert kinds(run.train(1, loss=None)) == ["spike"]


def test_waiting_for_data_is_judged_by_the_median_of_many_steps() -> None:
    run = Run()
    assert run.train(RECENT // 2 - 1, data_wait=0.9) == []
    assert run.train(2 * RECENT) == []
    (alert,) = run.train(2 * RECENT, data_wait=0.3)
    assert alert.kind == "data_wait"
    assert "of its time for data" in str(alert)
    assert run.train(RECENT, data_wait=0.08) == []
    run.train(2 * RECENT)
    assert kinds(run.train(2 * RECENT, data_wait=0.3)) == ["data_wait"]


@pytest.mark.parametrize(("name", "usual"), [("tokens_per_s", 1000.0), ("mfu", 0.5)])
def test_a_slowdown_is_raised_once_and_again_after_a_recovery(name: str, usual: float) -> None:
    run = Run()
    assert run.train(4 * RECENT, **{name: usual}) == []
    assert run.train(2 * RECENT, **{name: 0.85 * usual}) == []
    (alert,) = run.train(2 * RECENT, **{name: 0.5 * usual})
    assert alert.kind == "slow"
    assert ("MFU" if name == "mfu" else "tokens per second") in str(alert)
    run.train(BEFORE, **{name: usual})
    assert kinds(run.train(2 * RECENT, **{name: 0.5 * usual})) == ["slow"]


@pytest.mark.parametrize("step_s", [2.0, 20.0])
def test_other_data_from_a_planned_step_on_is_not_a_slowdown(step_s: float) -> None:
    run, half = Run(data_changes=(4 * RECENT,)), {"tokens_per_s": 500.0, "step_s": step_s}
    assert run.train(4 * RECENT, step_s=step_s) == []
    assert run.train(6 * RECENT, **half) == []
    assert kinds(run.train(2 * RECENT, **{**half, "tokens_per_s": 250.0})) == ["slow"], "of the new speed"


def test_a_slowdown_ends_where_other_data_is_planned() -> None:
    run = Run(data_changes=(6 * RECENT,))
    run.train(4 * RECENT)
    assert kinds(run.train(2 * RECENT, tokens_per_s=500.0)) == ["slow"]
    run.train(1, tokens_per_s=500.0)
    assert "slow" not in run.watch.open


def test_a_few_slow_seconds_are_not_a_slowdown() -> None:
    run = Run()
    run.train(4000, step_s=0.1)
    assert run.train(2 * RECENT, step_s=0.2, tokens_per_s=500.0, data_wait=0.4) == []


def test_steps_of_an_earlier_start_raise_no_alert() -> None:
    watch = AlertDetector(100, 200, 0.0)
    skipped = {name: value for name, value in STEP.items() if name != "loss"}
    assert [alert for step in range(100) for alert in watch.step(step, skipped, 1.0)] == []
    assert kinds(list(watch.step(100, skipped, 2.0))) == ["spike"]


def test_steps_without_a_clock_count_as_steps() -> None:
    watch = AlertDetector(0, 9, 0.0)
    assert list(watch.step(0, {"loss": 2.0, "lr": 0.1}, 1.0)) == []
    assert kinds(list(watch.tick(70.0))) == ["stall"]


def test_fifty_clean_runs_raise_no_alert() -> None:
    """Steps with the variation of a shared machine: a third longer or shorter, every tenth tripled."""
    for seed in range(50):
        noise = random.Random(seed)

        def values(noise: random.Random = noise) -> dict[str, float | None]:
            seconds = noise.uniform(0.7, 1.3) * (3 if noise.random() < 0.1 else 1)
            return {"step_s": seconds, "tokens_per_s": 1000 / seconds, "data_wait": noise.uniform(0, 0.08)}

        assert Run().train_with(400, values) == []


def test_the_percentiles_are_those_of_the_recent_steps() -> None:
    run = Run()
    run.train(99)
    run.train(1, step_s=7.0)
    assert run.watch.speeds() == {"step_s/p50": 2.0, "step_s/p90": 2.0, "step_s/p99": 7.0, "step_s/max": 7.0}


def test_exposed_communication_above_its_limit_is_an_alert_until_a_profiled_step_is_below() -> None:
    watch = AlertDetector(0, 10_000, 0.0, exposed=0.1)
    assert list(watch.profiled(249, 0.1)) == []
    (alert,) = watch.profiled(749, 0.23)
    assert (alert.kind, alert.step) == ("communication", 749)
    assert "23% of the profiled step waits for communication that nothing hides, where 10% are the most" in str(alert)
    assert list(watch.profiled(1249, 0.3)) == []
    assert list(watch.profiled(1749, 0.05)) == []
    assert kinds(list(watch.profiled(2249, 0.3))) == ["communication"]


def test_a_plateau_is_an_alert_that_says_what_to_look_at() -> None:
    watch = AlertDetector(0, 10_000, 0.0, losses=PlateauWatch(100))
    noise, raised = random.Random(5), []
    for step in range(5000):
        loss = 2 + 9 * max(1, min(step, 2500)) ** -0.4 + noise.gauss(0, 0.03)
        raised += watch.step(step, {**STEP, "loss": loss, "lr": 1e-3}, float(step))
    (alert,) = raised
    assert alert.kind == "plateau"
    assert 2500 < alert.step < 5000
    assert "where its history predicts -" in alert.what
    assert "activations of the layers" in alert.do
