"""The guard refuses outliers by the rule of OLMo-core's SkipStepOptimizer, and accepts noise and new levels."""

import math
import random
from collections.abc import Sequence

import pytest

from tasks.core.errors import InputError
from tasks.trainer.gradient import Cause, Gradient
from tasks.trainer.integrity.guard import MAX_REFUSED, MIN_LOSSES, ROLL_BACK_AFTER, WINDOW, LossGuard

DATA = Cause("documents", "see them", {}, of_data=True)
WEIGHTS = Cause("damage", "lower optim.lr", {}, of_weights=True)


def falling(seed: int, steps: int = 600) -> list[float]:
    """A typical loss: it falls, with noise of a few hundredths."""
    draw = random.Random(seed)
    return [3 + 6 * math.exp(-step / 80) + draw.gauss(0, 0.08) for step in range(steps)]


def published(values: Sequence[float]) -> list[int]:
    """The steps that SkipStepOptimizer skips for these losses, or for these gradient norms: it compares each alone.

    Of a step's value and the 128 before it, if they are at least 64: one that is not within 6 sample standard
    deviations of the mean of those before. Values of skipped steps count as well, also NaN, within which nothing is.
    """
    skipped = []
    for step, value in enumerate(values):
        before = values[max(0, step - 128) : step]
        if len(before) + 1 >= 64:
            mean = math.fsum(before) / len(before)
            deviation = math.sqrt(math.fsum((one - mean) ** 2 for one in before) / (len(before) - 1))
            if not abs(value - mean) / deviation <= 6:
                skipped.append(step)
    return skipped


def of(loss: float, norm: float = 1.0, cause: Cause | None = None) -> Gradient:
    """A gradient of a batch with labels."""
    return Gradient(loss, norm, 8, False, cause)


def refused(losses: Sequence[float], guard: LossGuard | None = None, norms: Sequence[float] | None = None) -> list[int]:
    guard, norms = guard or LossGuard(), norms or [1.0] * len(losses)
    pairs = enumerate(zip(losses, norms, strict=True))
    return [step for step, (loss, norm) in pairs if guard.refusal(step, of(loss, norm))]


AT = 300
CASES = {
    "spike": ([*falling(4)[:AT], 7.0, *falling(4)[AT + 1 :]], [AT]),
    "level shift": ([loss + 1.5 * (step >= AT) for step, loss in enumerate(falling(5))], list(range(AT, AT + 4))),
    "slow drift": ([loss + 0.004 * max(0, step - AT) for step, loss in enumerate(falling(6))], []),
}


@pytest.mark.parametrize("name", CASES)
def test_the_refused_steps_are_those_of_the_published_rule(name: str) -> None:
    losses, expected = CASES[name]
    assert refused(losses) == published(losses)
    if name == "level shift":
        assert expected[0] in refused(losses)
        assert set(refused(losses)) <= set(expected)
    else:
        assert refused(losses) == expected


def test_a_nan_is_refused_alone_and_by_the_published_rule_as_long_as_it_is_in_the_window() -> None:
    losses = [*falling(3)[:AT], math.nan, *falling(3)[AT + 1 :]]
    assert refused(losses) == [AT]
    assert published(losses) == list(range(AT, AT + 129)), "nothing is compared with NaN"


def test_a_low_loss_and_an_outlier_of_the_norm_are_refused_by_the_published_rule_only() -> None:
    """A low loss damages nothing, and clipping bounds the norm."""
    draw = random.Random(8)
    low = [loss - 1.5 * (step >= AT) for step, loss in enumerate(falling(5))]
    norms = [math.exp(draw.gauss(0, 0.2)) * (30 if step == AT else 1) for step in range(600)]
    assert published(low)[0] == published(norms)[0] == AT
    assert refused(low, norms=norms) == []
    spiked = [*falling(4)[:AT], 7.0, *falling(4)[AT + 1 :]]
    assert set(refused(spiked, norms=norms)) == set(published(spiked)) & set(published(norms)) == {AT}


@pytest.mark.parametrize("noise", [1e-9, 1e-3, 0.1])
@pytest.mark.parametrize("rise", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("length", [MIN_LOSSES, WINDOW, WINDOW + 40])
def test_a_new_level_of_any_height_is_accepted_before_a_rollback(noise: float, rise: float, length: int) -> None:
    draw = random.Random(7)
    losses = [2.0 + draw.gauss(0, noise) for _ in range(length)] + [
        2.0 + rise + draw.gauss(0, noise) for _ in range(80)
    ]
    found = refused(losses)
    assert found == list(range(length, length + len(found)))
    assert len(found) < ROLL_BACK_AFTER


@pytest.mark.parametrize("level", [0.1, math.log(2), 1e-7, 11.3])
def test_equal_losses_and_their_rounding_are_no_spikes(level: float) -> None:
    assert refused([level] * 300) == []
    assert refused([level * (1 + 1e-7 * (step % 2)) for step in range(300)] + [level * (1 + 4e-7)]) == []


def test_no_step_of_ten_clean_runs_is_refused() -> None:
    for seed in range(10):
        assert refused(falling(seed, 250)) == []


def test_where_the_data_changes_the_window_starts_empty() -> None:
    guard = LossGuard(falling(1)[-WINDOW:])
    guard.restart()
    assert refused([9.0 + loss for loss in falling(2)[-MIN_LOSSES:]], guard) == []
    assert guard.refusal(0, of(30.0)) == "loss_spike", "and is as strict as before, once it has enough losses"


def test_losses_of_damaged_weights_do_not_become_the_usual_ones() -> None:
    guard = LossGuard(falling(1)[-WINDOW:])
    for step in range(MAX_REFUSED):
        assert guard.refusal(step, of(4.5, cause=WEIGHTS)) == "loss_spike"
    assert guard.refusal(10, of(3.1)) is None


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_non_finite_value_is_refused_from_the_first_step(number: float) -> None:
    assert LossGuard().refusal(0, of(number)) == "loss_not_finite"
    assert LossGuard().refusal(0, of(2.0, number)) == "gradient_not_finite"


def test_patience_counts_steps_in_a_row_and_the_last_cause_ends_the_run() -> None:
    guard = LossGuard()
    for step in range(3 * MAX_REFUSED):
        reason = guard.refusal(step, of(math.nan if step % 2 else 2.0))
        guard.check_refused(step, reason or "", None)
    for step in range(MAX_REFUSED):
        guard.refusal(step, of(math.nan))
    with pytest.raises(InputError, match=r"up to step 99 \(loss_not_finite\): documents. See them."):
        guard.check_refused(99, "loss_not_finite", DATA)


def test_a_guard_resumes_from_its_state() -> None:
    losses = falling(2)
    one = LossGuard()
    refused(losses[:300], one)
    one.refusal(300, of(math.nan))
    other = LossGuard()
    other.restore(**one.state())  # type: ignore[arg-type]
    assert other.trained == 299
    assert [one.refusal(301, of(x)) for x in (4.4, 3.0)] == [other.refusal(301, of(x)) for x in (4.4, 3.0)]
    assert one.state() == other.state()
