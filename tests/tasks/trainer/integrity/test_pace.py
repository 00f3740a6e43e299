"""A rank that is slower than the others is named once per episode; noise is not."""

import random

from tasks.trainer.integrity.pace import RECENT, Pace


def test_a_slow_rank_is_named_once_and_again_after_it_has_recovered() -> None:
    pace, found = Pace("step"), []
    for step in range(6 * RECENT):
        throttled = RECENT <= step < 2 * RECENT or step >= 4 * RECENT
        found += [(step, *one) for one in pace.step([1.0, 1.0, 1.5 if throttled else 1.0, 1.0])]
    assert [(rank, mine, others) for _, rank, mine, others in found] == [(2, 1.5, 1.0)] * 2
    assert [step // RECENT for step, *_ in found] == [1, 4]


def test_noise_a_slow_step_and_milliseconds_name_nobody() -> None:
    draw = random.Random(3)
    for base in (0.004, 1.0):
        pace = Pace("step")
        for step in range(1000):
            seconds = [base * draw.uniform(0.8, 1.2) * (9 if step % 70 == rank else 1) for rank in range(4)]
            assert pace.step(seconds) == []
    pace = Pace("step")
    assert [pace.step([0.004, 0.012]) for _ in range(200)] == [[]] * 200
    assert Pace("step").step([]) == Pace("step").step([1.0]) == []
