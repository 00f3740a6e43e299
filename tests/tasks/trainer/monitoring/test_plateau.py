"""The plateau alert on simulated losses: a healthy run never rings, one that has stopped falling does."""

import numpy as np
import pytest

from tasks.trainer.config import OptimConfig
from tasks.trainer.monitoring.plateau import Floats, PlateauWatch
from tasks.trainer.optim import learning_rate


class Simulated:
    """The loss of a run: a power law of the sum of learning rates, less a term that grows in the decay (2408.11029)."""

    def __init__(self, seed: int, schedule: str, steps: int) -> None:
        draw = np.random.default_rng(seed)
        self.optim = OptimConfig(lr=1e-3, warmup_steps=int(draw.choice([30, 200])), schedule=schedule, decay_share=0.2)
        self.rates = np.array([learning_rate(self.optim, step, steps) for step in range(steps)])
        tau = np.cumsum(self.rates) / 1e-3
        fall = np.maximum(0.0, -np.diff(self.rates, prepend=self.rates[0]))
        annealed = np.cumsum(np.convolve(fall, 0.999 ** np.arange(steps))[:steps])
        self.clean = 2.0 + draw.uniform(3, 20) * tau ** -draw.uniform(0.25, 0.8)
        self.clean += 6 * np.exp(-tau / draw.uniform(20, 100)) - draw.uniform(0, 0.3) * annealed / max(
            annealed[-1], 1e-9
        )
        lasting = np.convolve(draw.standard_normal(steps), 0.9 ** np.arange(100))[:steps] * 0.44
        self.noise = draw.choice([0.01, 0.03, 0.1]) * (0.9 * draw.standard_t(4, steps) + 0.4 * lasting)
        self.decay_from = self.optim.decay_from(steps) if schedule == "wsd" else None

    def rings(self, clean: Floats, changes: tuple[int, ...] = ()) -> list[int]:
        """Returns the steps after which the alert would ring."""
        watch = PlateauWatch(self.optim.warmup_steps, self.decay_from, changes)
        losses = zip((clean + self.noise).tolist(), self.rates.tolist(), strict=True)
        return [step for step, (loss, rate) in enumerate(losses) if watch.step(step, loss, rate)]


@pytest.mark.parametrize("schedule", ["wsd", "cosine"])
def test_a_healthy_run_never_rings_up_to_the_end_of_its_schedule(schedule: str) -> None:
    runs = [Simulated(seed, schedule, 6000) for seed in range(5)]
    assert [run.rings(run.clean) for run in runs] == [[]] * 5


@pytest.mark.soak
def test_no_alarm_in_two_hundred_healthy_runs() -> None:
    runs = (Simulated(seed, ("wsd", "cosine")[seed % 2], (6000, 12_000)[seed // 2 % 2]) for seed in range(200))
    assert [seed for seed, run in enumerate(runs) if run.rings(run.clean)] == []


def test_a_plateau_rings_before_it_is_as_long_as_the_run_was_before_it() -> None:
    begin, found = 3000, []
    for seed in range(6):
        run = Simulated(seed, "wsd", 9000)
        run.clean = 2.0 + 9.0 * (np.cumsum(run.rates) / 1e-3) ** -0.4
        run.noise *= 0.03 / run.noise.std()
        run.clean[begin:] = run.clean[begin]
        found.append(run.rings(run.clean)[0])
    assert all(begin < at < 2 * begin for at in found), found


def test_a_planned_change_begins_a_new_history() -> None:
    run = Simulated(3, "wsd", 6000)
    run.clean[2500:] += 0.5
    run.clean[2500:3500] = run.clean[2500]  # the first steps on harder data
    assert [step for step in run.rings(run.clean, (2500,)) if step < 4500] == []


def test_the_watch_sees_that_the_loss_falls_again() -> None:
    run = Simulated(1, "wsd", 9000)
    clean = 2.0 + 9.0 * (np.cumsum(run.rates) / 1e-3) ** -0.4
    clean[2500:] = clean[2500]
    clean[6000:] -= 0.0004 * np.arange(3000)
    watch, seen = PlateauWatch(run.optim.warmup_steps, run.decay_from), []
    for step in range(6600):
        found = watch.step(step, float(clean[step] + run.noise[step] / 5), float(run.rates[step]))
        seen.append((bool(found), watch.falls) if step in (5999, 6599) else None)
    assert [one for one in seen if one] == [(True, False), (False, True)]
