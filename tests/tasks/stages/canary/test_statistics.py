"""The decision: equal arms are not promoted at any noise, better ones are found, guarded sources are guarded."""

import numpy as np
import pytest

from benchmarks.canaries import confirmed, of_added_sources, of_equal_mixtures, of_planted_optima
from tasks.stages.canary.statistics.comparison import confirm, finalist, regressions


@pytest.mark.parametrize("noisy", [0, 1], ids=["the current mixture", "an arm"])
@pytest.mark.parametrize(("arms", "seeds", "ratio"), [(2, 2, 25), (8, 1, 1), (8, 3, 5), (16, 2, 25)])
def test_at_most_one_cycle_of_equal_arms_in_twenty_promotes_any(arms: int, seeds: int, ratio: int, noisy: int) -> None:
    rng, flat = np.random.default_rng([arms, seeds, noisy]), np.zeros(arms)
    noise = flat + 1
    noise[noisy] = ratio
    promoted = sum(confirmed(rng, flat, noise, seeds, 3) > 0 for _ in range(400))
    assert promoted <= 20  # nominal at most 10; the benchmark has 2,000 cycles of each


def test_the_interval_has_its_nominal_coverage_when_one_arm_is_25_times_as_noisy() -> None:
    rng = np.random.default_rng(3)
    inside = 0
    for _ in range(1_000):
        low, high = confirm(0.3 + rng.normal(0, 1, 4) - rng.normal(0, 25, 4), 0.95)
        inside += low <= 0.3 <= high
    assert 0.93 <= inside / 1_000 <= 0.97  # 0.95 +- 3 standard errors


def test_the_better_arm_is_promoted() -> None:
    rng = np.random.default_rng(1)
    effects = np.array([0, 0, 2, 0, 0, 6, 0, 0.0])
    assert sum(confirmed(rng, effects, np.ones(8), 1, 5) == 5 for _ in range(100)) >= 97


def test_the_finalist_is_the_lowest_arm_below_the_current_mixture() -> None:
    scores = np.array([[2.0, 2.2], [2.1, 1.9], [1.9, 1.8], [2.5, 2.5]])
    assert finalist(scores) == 2
    assert finalist(scores, excluded={2}) == 1
    assert finalist(scores[[0, 3]]) is None
    assert finalist(scores[[0, 0]]) is None  # an equal arm is not better
    assert finalist(scores[:1]) is None


def test_the_interval_is_students() -> None:
    # Three differences 1, 2, 3: 2 +- 4.3027 / sqrt(3).
    assert confirm(np.array([1.0, 2.0, 3.0]), 0.95) == pytest.approx((-0.48414, 4.48414), abs=1e-4)
    assert confirm(np.zeros(3), 0.95) == (0, 0)


def test_guarded_sources_regress_beyond_the_tolerated_share() -> None:
    bpb, current = np.array([1.03, 1.01, 2.0]), np.array([1.0, 1.0, 1.0])
    assert list(regressions(bpb, current, ["a", "b", "c"], {"a", "b"}, 0.02)) == ["a"]
    assert regressions(bpb, current, ["a", "b", "c"], {"a", "b"}, 0.05) == {}


SHARES = [False, pytest.param(True, marks=pytest.mark.soak)]
"""A few of the benchmark's cycles, and more of them."""


@pytest.mark.parametrize("many", SHARES)
def test_at_most_one_whole_cycle_of_equal_mixtures_in_twenty_promotes_any(many: bool) -> None:
    found = of_equal_mixtures(60 if many else 10)  # the benchmark has 2,000 cycles
    assert found["promoted"] <= 5


@pytest.mark.parametrize("many", SHARES)
def test_a_cycle_selects_a_mixture_near_the_planted_optimum_and_better_than_other_searches_do(many: bool) -> None:
    found = of_planted_optima(10 if many else 2)["all"]
    assert found["most_runs"] <= 32
    assert found["l1_within_0.10"] == 100
    assert min(found[f"better_than_{name}"] for name in ("grid", "stratified", "random")) >= 80
    assert found["regret_at_1_90_percent"] < 1e-3


@pytest.mark.parametrize("many", SHARES)
def test_a_quarter_of_the_runs_decides_on_an_added_source_as_a_whole_cycle(many: bool) -> None:
    found = of_added_sources(8 if many else 1)
    assert found["alike"] >= 80
    assert found["most_runs"] <= found["whole_runs"] / 4
