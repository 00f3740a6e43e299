"""The response: forms recover planted ones, the choice is out of fold, earlier cycles and content are evidence."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import minimize

from tasks.stages.canary.statistics.forms import Floats, Mixtures, effective
from tasks.stages.canary.statistics.response import FORMS, Response, decision_accuracy, fit

GOAL = np.array([0.2, 0.5, 0.3])

Truth = Callable[[Floats], Floats]


def power_law(weights: Floats) -> Floats:
    """Bits per byte of each source decrease with a power of its share, and slightly with the others'."""
    spill = np.array([[1, 0.1, 0.02], [0.2, 1, 0.05], [0.02, 0.02, 1]])
    bpb: Floats = np.array([0.9, 1.1, 0.7]) * (weights @ spill.T + 0.01) ** -np.array([0.06, 0.1, 0.08])
    return bpb


def exponential(weights: Floats) -> Floats:
    rates = np.array([[0.5, 0.1, 0.0], [0.1, 0.7, 0.0], [0.0, 0.05, 0.6]])
    bpb: Floats = np.array([1.2, 1.5, 1.1]) * np.exp(-weights @ rates.T)
    return bpb


def repeated(weights: Floats) -> Floats:
    """A power law in which the first source, of which a run can read little that is new, is worth less and less."""
    return power_law(effective(Mixtures(weights, weights * EPOCHS), 1.5))


EPOCHS = np.array([20.0, 0.5, 0.5])


def many(count: int, seed: int) -> Truth:
    """Returns a planted power law of some sources, which help each other."""
    rng = np.random.default_rng(seed)
    level, exponents = rng.uniform(0.7, 1.2, count), rng.uniform(0.05, 0.12, count)
    spill = rng.uniform(0, 0.15, (count, count))
    np.fill_diagonal(spill, 1)
    return lambda weights: level * (weights @ spill.T + 0.001) ** -exponents


def optimum(truth: Truth, goal: Floats) -> Floats:
    """Returns the weights that minimize a planted target, which is convex."""
    found = minimize(
        lambda weights: float(truth(weights[None])[0] @ goal),
        np.full(len(goal), 1 / len(goal)),
        bounds=[(0, 1)] * len(goal),
        constraints={"type": "eq", "fun": lambda weights: weights.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 500},
    )
    weights: Floats = found.x
    return weights


def noisy(truth: Truth, weights: Floats, rng: np.random.Generator, noise: float = 0.002) -> Floats:
    bpb = truth(weights)
    return bpb * np.exp(rng.normal(0, noise, bpb.shape))


@pytest.mark.parametrize(
    ("form", "truth", "epochs"),
    [("power", power_law, None), ("log-linear", exponential, None), ("exposures", repeated, EPOCHS)],
)
def test_the_form_of_planted_runs_is_chosen_and_predicts_other_mixtures(
    form: str, truth: Truth, epochs: Floats | None
) -> None:
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(3), 24)
    found = fit(weights, noisy(truth, weights, rng, 0.001), GOAL, epochs=epochs)
    assert found.form == form
    assert set(found.judgements) == set(FORMS)
    assert found.judgement.rank_agreement is not None
    assert found.judgement.rank_agreement > 0.9
    fresh = rng.dirichlet(np.ones(3), 200)
    assert np.abs(found.predict(fresh) - truth(fresh) @ GOAL).mean() < 0.005


@pytest.mark.parametrize("count", [3, 5, 10])
def test_the_planted_optimum_is_found_from_32_noisy_runs(count: int) -> None:
    goal = np.full(count, 1 / count)
    distances = []
    for seed in range(3):
        truth, rng = many(count, seed), np.random.default_rng(100 + seed)
        weights = rng.dirichlet(np.full(count, 1.5), 32)
        best = fit(weights, noisy(truth, weights, rng), goal, forms=("power",)).best(np.zeros(count), np.ones(count))
        assert best.sum() == pytest.approx(1)
        assert (best >= 0).all()
        distances.append(np.abs(best - optimum(truth, goal)).sum())
    assert max(distances) < 0.1


def test_the_effect_of_one_source_on_another_is_recovered() -> None:
    rng = np.random.default_rng(4)
    weights = rng.dirichlet(np.ones(3), 24)
    found = fit(weights, noisy(power_law, weights, rng, 0.0005), GOAL, forms=("power",))
    assert found.worth is not None
    assert found.worth[1] == pytest.approx([0.2, 1, 0.05], abs=0.1)  # a helps b


def test_the_best_mixture_does_not_repeat_a_small_source_as_if_it_were_new_text() -> None:
    rng = np.random.default_rng(2)
    weights = rng.dirichlet(np.ones(3), 32)
    bpb = noisy(repeated, weights, rng, 0.001)
    best = {
        form: fit(weights, bpb, np.array([0.8, 0.1, 0.1]), epochs=EPOCHS, forms=(form,)).best(np.zeros(3), np.ones(3))
        for form in ("power", "exposures")
    }
    truth = optimum(repeated, np.array([0.8, 0.1, 0.1]))
    assert np.abs(best["exposures"] - truth).sum() < 0.1
    assert np.abs(best["power"] - truth).sum() > np.abs(best["exposures"] - truth).sum()


def test_the_best_mixture_is_within_the_bounds() -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(3), 10)
    found = fit(weights, exponential(weights), np.array([1.0, 0, 0]))
    lower, upper = np.array([0.1, 0.3, 0.2]), np.array([0.3, 0.5, 0.4])
    best = found.best(lower, upper)
    assert best.sum() == pytest.approx(1)
    assert (best >= lower - 1e-9).all()
    assert (best <= upper + 1e-9).all()
    assert best[0] == pytest.approx(0.3, abs=1e-3)
    with pytest.raises(ValueError, match=r"upper ones to 0\.6"):
        found.best(np.zeros(3), np.full(3, 0.2))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_convex_in_the_weights(form: str) -> None:
    rng = np.random.default_rng(5)
    weights = rng.dirichlet(np.ones(3), 20)
    found = fit(weights, noisy(repeated, weights, rng), GOAL, epochs=EPOCHS, forms=(form,))
    one, two = rng.dirichlet(np.ones(3), (2, 300))
    assert (found.predict((one + two) / 2) <= (found.predict(one) + found.predict(two)) / 2 + 1e-9).all()


def test_runs_of_one_mixture_are_left_out_together() -> None:
    rng = np.random.default_rng(3)
    weights = np.repeat(rng.dirichlet(np.ones(3), 8), 2, axis=0)
    bpb = noisy(power_law, weights, rng)
    bpb[::2] *= 1.5  # each mixture twice, once with a large error: a run of the same mixture would betray it
    predicted = fit(weights, bpb, GOAL).judgements["log-linear"].predicted
    assert predicted[::2] == pytest.approx(predicted[1::2])


def test_optimism_is_what_the_mixtures_that_are_predicted_to_be_best_lack() -> None:
    rng = np.random.default_rng(9)
    weights = rng.dirichlet(np.ones(3), 20)
    found = fit(weights, noisy(power_law, weights, rng, 0.1), GOAL)
    judged = found.judgements[found.form]
    best = np.argsort(judged.predicted)[:4]
    assert found.judgement.optimism == pytest.approx((judged.measured - judged.predicted)[best].mean())
    assert abs(found.judgement.optimism) > 0.005
    assert abs(fit(weights, power_law(weights), GOAL).judgement.optimism) < 0.001


def test_a_flat_response_has_no_rank_agreement() -> None:
    weights = np.random.default_rng(0).dirichlet(np.ones(3), 8)
    assert fit(weights, np.ones((8, 3)), GOAL).judgement.rank_agreement is None


def test_samples_spread_around_the_prediction_and_less_with_more_runs() -> None:
    spreads = []
    for runs in (12, 48):
        rng = np.random.default_rng(1)
        weights = rng.dirichlet(np.ones(3), runs)
        found = fit(weights, noisy(power_law, weights, rng, 0.01), GOAL, forms=("power",))
        mixtures = np.full((1, 3), 1 / 3)
        samples = found.samples(mixtures, 400, np.random.default_rng(0))
        assert samples.shape == (400, 1)
        assert np.array_equal(samples, found.samples(mixtures, 400, np.random.default_rng(0)))
        assert abs(samples.mean() - found.predict(mixtures)[0]) < samples.std()
        spreads.append(samples.std())
    assert spreads[1] < spreads[0]


@pytest.mark.parametrize("form", FORMS)
def test_intervals_of_samples_contain_the_true_difference_of_two_mixtures(form: str) -> None:
    truth = exponential if form == "log-linear" else power_law
    pair, inside = np.array([[0.6, 0.2, 0.2], [0.2, 0.4, 0.4]]), 0
    real = np.subtract(*(truth(pair) @ GOAL))
    for seed in range(10):
        rng = np.random.default_rng(seed)
        weights = rng.dirichlet(np.ones(3), 16)
        found = fit(weights, noisy(truth, weights, rng, 0.005), GOAL, forms=(form,))
        drawn = found.samples(pair, 300, rng)
        low, high = np.quantile(drawn[:, 0] - drawn[:, 1], [0.05, 0.95])
        inside += low <= real <= high
    assert inside >= 8  # 9 are expected


def spread(found: Response, weights: Floats, real: Floats) -> float:
    """Returns the standard deviation of the errors: what is wrong about differences between mixtures."""
    return float(np.std(found.predict(weights) - real))


def test_runs_of_an_earlier_cycle_with_another_level_and_slope_are_evidence() -> None:
    goal, errors = np.full(5, 0.2), np.zeros(3)
    cycles = np.array([0] * 24 + [1] * 8)
    for seed in range(3):
        truth, rng = many(5, seed), np.random.default_rng(seed)
        weights = rng.dirichlet(np.ones(5), 32)
        bpb = noisy(truth, weights, rng, 0.01)
        bpb[:24] = 1.3 * bpb[:24] ** 0.8  # smaller models: worse, and less sensitive
        fresh = rng.dirichlet(np.ones(5), 200)
        tried = (
            fit(weights, bpb, goal, cycles=cycles, forms=("power",)),
            fit(weights[24:], bpb[24:], goal, forms=("power",)),
            fit(weights, bpb, goal, forms=("power",)),
        )
        errors += [spread(found, fresh, truth(fresh) @ goal) for found in tried]
    assert errors[0] < 0.7 * errors[1]
    assert errors[0] < 0.2 * errors[2]


def test_runs_of_other_sources_are_evidence_by_their_content() -> None:
    cycles, errors = np.array([0] * 24 + [1] * 6), np.zeros(3)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        content = rng.dirichlet(np.ones(3), 9)  # share of three topics in five old and four new sources
        weights, fresh = np.zeros((30, 9)), np.zeros((200, 9))
        weights[:24, :5], weights[24:, 5:] = rng.dirichlet(np.ones(5), 24), rng.dirichlet(np.ones(4), 6)
        fresh[:, 5:] = rng.dirichlet(np.ones(4), 200)
        bpb = noisy(power_law, weights @ content, rng, 0.01)
        shared = fit(weights, bpb, GOAL, content=content, own=(0, 1, 2), cycles=cycles, forms=("power",))
        alone = fit(weights[24:], bpb[24:], GOAL, own=(None,) * 3, forms=("power",))
        real = power_law(fresh @ content) @ GOAL
        errors += [spread(shared, fresh, real), spread(alone, fresh, real), real.std()]
    assert errors[0] < 0.5 * min(errors[1:])


def test_a_run_of_little_importance_hardly_moves_the_fit() -> None:
    rng = np.random.default_rng(1)
    weights = rng.dirichlet(np.ones(3), 16)
    bpb = power_law(weights)
    bpb[0] *= 1.5
    for form in FORMS:
        errors = []
        for weight in (1.0, 1e-4):
            found = fit(weights, bpb, GOAL, importance=np.array([weight] + [1.0] * 15), forms=(form,))
            errors.append(np.abs(found.predict(weights[1:]) - power_law(weights[1:]) @ GOAL).mean())
        assert errors[1] < 0.6 * errors[0]


def test_a_repeated_text_is_worth_at_most_r_more_epochs() -> None:
    mixtures = Mixtures(np.full((5, 1), 0.5), np.array([[0.5], [1], [2], [4], [1e6]]))
    worth = (effective(mixtures, 3.0) * mixtures.epochs / mixtures.weights).ravel()
    assert worth[:2] == pytest.approx([0.5, 1])
    assert worth[2] == pytest.approx(1 + 3 * (1 - np.exp(-1 / 3)))
    assert worth[4] == pytest.approx(4)


def test_ties_count_as_half_of_a_decision() -> None:
    assert decision_accuracy(np.array([1.0, 1, 2]), np.array([1.0, 2, 3])) == pytest.approx(2.5 / 3)
