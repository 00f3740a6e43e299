"""The guard refuses outliers, and accepts noise."""

import math
import random

import pytest

from tasks.core.errors import InputError
from tasks.trainer.integrity.guard import MAX_REFUSED, WINDOW, LossGuard


def falling(seed: int, steps: int = 600) -> list[float]:
    """A typical loss: it falls, with noise of a few hundredths."""
    draw = random.Random(seed)
    return [3 + 6 * math.exp(-step / 80) + draw.gauss(0, 0.08) for step in range(steps)]


def test_no_step_of_fifty_clean_runs_is_refused() -> None:
    for seed in range(50):
        guard = LossGuard()
        assert [guard.refusal(loss, 1.0) for loss in falling(seed, 250)] == [None] * 250


def test_a_spike_is_refused_and_does_not_move_the_bound() -> None:
    guard = LossGuard(falling(1)[-WINDOW:])
    for _ in range(MAX_REFUSED):
        assert guard.refusal(4.5, 1.0) == "loss_spike"
    assert guard.refusal(3.1, 1.0) is None


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_non_finite_value_is_refused_from_the_first_step(number: float) -> None:
    assert LossGuard().refusal(number, 1.0) == "loss_not_finite"
    assert LossGuard().refusal(2.0, number) == "gradient_not_finite"


def test_patience_counts_steps_in_a_row() -> None:
    guard = LossGuard()
    for step in range(3 * MAX_REFUSED):
        guard.refusal(math.nan if step % 2 else 2.0, 1.0)
        guard.check_refused(step)
    for _ in range(MAX_REFUSED):
        guard.refusal(math.nan, 1.0)
    with pytest.raises(InputError, match="up to step 99"):
        guard.check_refused(99)


def test_a_guard_resumes_from_its_state() -> None:
    losses = falling(2)
    one, other = LossGuard(), LossGuard()
    for loss in losses[:300]:
        one.refusal(loss, 1.0)
    one.refusal(math.nan, 1.0)
    other = LossGuard(**one.state())  # type: ignore[arg-type]
    assert [one.refusal(x, 1.0) for x in (4.4, 3.0)] == [other.refusal(x, 1.0) for x in (4.4, 3.0)]
    assert one.state() == other.state()
