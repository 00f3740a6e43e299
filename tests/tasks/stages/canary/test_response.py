"""The fit: recovers planted responses, predicts unseen arms, proposes near the planted optimum."""

import numpy as np
import pytest

from tasks.stages.canary.statistics import fit

SOURCES = ["a", "b", "c"]
TARGET = {"a": 0.2, "b": 0.5, "c": 0.3}


def power_law(weights: np.ndarray) -> np.ndarray:
    """Bits per byte of each source decrease with a power of its share, and slightly with the others'."""
    spill = np.array([[1, 0.1, 0.02], [0.2, 1, 0.05], [0.02, 0.02, 1]])
    return np.array([0.9, 1.1, 0.7]) * (weights @ spill.T + 0.01) ** -np.array([0.06, 0.1, 0.08])


def exponential(weights: np.ndarray) -> np.ndarray:
    rates = np.array([[0.5, 0.1, 0.0], [0.1, 0.7, 0.0], [0.0, 0.05, 0.6]])
    return np.array([1.2, 1.5, 1.1]) * np.exp(-weights @ rates.T)


@pytest.mark.parametrize("truth", [power_law, exponential])
def test_predictions_rank_left_out_arms_as_measured(truth) -> None:
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(3), 16)
    bpb = truth(weights) * np.exp(rng.normal(0, 0.002, (16, 3)))
    found = fit(weights, bpb, SOURCES, TARGET)
    assert found.rank_agreement > 0.9
    fresh = rng.dirichlet(np.ones(3), 200)
    goal = np.array(list(TARGET.values()))
    assert np.abs(found.predict(fresh) - truth(fresh) @ goal).max() < 0.05


def test_the_effect_of_one_source_on_another_is_recovered() -> None:
    rng = np.random.default_rng(4)
    weights = rng.dirichlet(np.ones(3), 24)
    found = fit(weights, power_law(weights) * np.exp(rng.normal(0, 0.0005, (24, 3))), SOURCES, TARGET)
    assert found.forms[:2] == ("power", "power")
    assert found.worth[1][0] == pytest.approx(0.2, abs=0.1)  # a helps b
    assert found.worth[1][1] == 1
    assert found.worth[1][2] < 0.15


def test_the_exponential_form_is_chosen_for_exponential_data() -> None:
    rng = np.random.default_rng(6)
    weights = rng.dirichlet(np.ones(3), 24)
    found = fit(weights, exponential(weights) * np.exp(rng.normal(0, 0.001, (24, 3))), SOURCES, TARGET)
    assert found.forms == ("exponential", "exponential", "exponential")
    assert found.worth == (None, None, None)


def test_the_planted_optimum_is_proposed_from_32_runs() -> None:
    fine = np.stack(np.meshgrid(*[np.linspace(0, 1, 201)] * 2), -1).reshape(-1, 2)
    fine = fine[fine.sum(1) <= 1]
    fine = np.concatenate([fine, 1 - fine.sum(1, keepdims=True)], axis=1)
    goal = np.array(list(TARGET.values()))
    optimum = fine[np.argmin(power_law(fine) @ goal)]
    distances = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        weights = rng.dirichlet(np.full(3, 1.5), 16)  # 16 arms x 2 seeds
        bpb = power_law(weights) * np.exp(rng.normal(0, 0.002 / np.sqrt(2), (16, 3)))
        best = fit(weights, bpb, SOURCES, TARGET).best(np.ones(3))
        assert best.sum() == pytest.approx(1)
        assert (best >= 0).all()
        distances.append(np.abs(best - optimum).sum())
    assert max(distances) < 0.1


def test_a_proposal_stays_within_the_largest_tried_shares() -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(3), 10)
    most = np.array([0.3, 0.5, 0.4])
    best = fit(weights, exponential(weights), SOURCES, {"a": 1.0}).best(most)
    assert (best <= most + 1e-9).all()
