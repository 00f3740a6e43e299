"""The statistics: equal arms are not promoted, better ones are found, guarded sources are guarded."""

import numpy as np
import pytest

from tasks.stages.canary.statistics import compare, dunnett, winner

SOURCES = ["a", "b", "c"]
TARGET = {"a": 0.4, "b": 0.3, "c": 0.3}


def cycle(rng: np.random.Generator, effects: np.ndarray, seeds: int, noise: float = 0.004) -> np.ndarray:
    """Simulates bits per byte (arms, seeds, sources): a seed shifts all arms, and each run has independent noise."""
    arms = len(effects)
    base = 1.5 - effects[:, None, :] + rng.normal(0, 0.02, (1, seeds, 3))
    return base + rng.normal(0, noise, (arms, seeds, 3)) + rng.normal(0, noise, (arms, seeds, 1))


def judge(bpb: np.ndarray, confidence: float = 0.95, guard: float = 0.02):
    names = [f"arm-{index}" for index in range(len(bpb))]
    return compare(bpb, names, SOURCES, TARGET, confidence, guard, SOURCES)


@pytest.mark.parametrize(("arms", "seeds"), [(2, 2), (4, 2), (8, 3), (16, 2)])
def test_with_equal_arms_at_most_one_cycle_in_twenty_promotes_any(arms: int, seeds: int) -> None:
    rng = np.random.default_rng(arms * 10 + seeds)
    promoted = sum(winner(judge(cycle(rng, np.zeros((arms, 3)), seeds))) is not None for _ in range(200))
    assert promoted <= 10


def test_simultaneous_intervals_have_their_nominal_coverage() -> None:
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(600):
        effects = rng.normal(0, 0.02, (6, 3))
        true = (effects - effects[0]) @ np.array(list(TARGET.values()))
        found = judge(cycle(rng, effects, 2))
        covered += all(one.interval[0] <= true[i + 1] <= one.interval[1] for i, one in enumerate(found))
    assert 0.92 <= covered / 600 <= 0.98  # 0.95 +- 3 standard errors


def test_the_planted_best_arm_is_found() -> None:
    rng, right = np.random.default_rng(1), 0
    for _ in range(100):
        effects = np.zeros((8, 3))
        effects[2], effects[5] = 0.02, 0.04
        best = winner(judge(cycle(rng, effects, 2)))
        right += best is not None and best.arm == "arm-5"
    assert right >= 97


def test_a_better_arm_that_makes_a_guarded_source_worse_is_not_promoted() -> None:
    effects = np.zeros((3, 3))
    effects[1] = [0.3, 0.1, -0.06]  # c gets 4 % worse
    effects[2] = [0.1, 0.1, 0.0]
    found = judge(cycle(np.random.default_rng(0), effects, 2, noise=0.001))
    assert found[0].better
    assert list(found[0].regressions) == ["c"]
    assert winner(found).arm == "arm-2"
    assert winner(judge(cycle(np.random.default_rng(0), effects, 2, noise=0.001), guard=0.1)).arm == "arm-1"


def test_an_arm_equal_to_the_current_mixture_is_not_promoted() -> None:
    bpb = cycle(np.random.default_rng(0), np.zeros((3, 3)), 2)
    bpb[1] = bpb[0]
    assert judge(bpb)[0].difference == 0
    bpb[2] = bpb[0]
    assert winner(judge(bpb)) is None  # without noise the interval is the point 0


@pytest.mark.parametrize("freedom", [2, 7, 30])
def test_a_single_arm_is_compared_by_students_t(freedom: int) -> None:
    from scipy.stats import t  # takes a second

    assert dunnett(1, freedom, 0.95) == pytest.approx(t.ppf(0.975, freedom), rel=1e-4)


# Two-sided 5 % points of Dunnett (1964), table II.
@pytest.mark.parametrize(("arms", "freedom", "value"), [(3, 12, 2.68), (5, 20, 2.73), (2, 10, 2.57), (9, 30, 2.86)])
def test_quantiles_match_dunnetts_table(arms: int, freedom: int, value: float) -> None:
    assert dunnett(arms, freedom, 0.95) == pytest.approx(value, abs=0.011)
