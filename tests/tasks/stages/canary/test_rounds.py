"""Rounds: a design that is feasible, later rounds by the response, an end when it is sure or the budget is spent."""

import json

import numpy as np
import pytest

from benchmarks.canaries import World, cycle_in
from tasks.core.errors import RecipeError
from tasks.stages.canary import BudgetConfig, CanaryConfig
from tasks.stages.canary.arms import choose, first, following, with_results
from tasks.stages.canary.cost import CycleCost
from tasks.stages.canary.design import Region, Space, candidates, d_optimal, features
from tasks.stages.canary.report import figure, markdown
from tasks.stages.canary.statistics.screening import Screening
from tasks.trainer.model.config import ModelConfig

CONFIG = CanaryConfig(
    anchors=("uniform",), arms=4, rounds=3, confirmations=3, forms=("log-linear",), guard_share=10, max_kl=5
)
WORLD = World.planted(3, 1)


def cost_of(config: CanaryConfig) -> CycleCost:
    return CycleCost(config, vocab_size=256, seq_len=32)


def two_rounds(config: CanaryConfig, world: World = WORLD) -> dict:
    """A cycle with its second round, after the results of the first."""
    cost = cost_of(config)
    cycle = first(config, world.sequences, cost)
    return following(config, cycle, [world.run(arm, seed) for arm in cycle["arms"] for seed in config.seeds], cost)


def test_every_chosen_mixture_is_within_the_repetition_cap_and_the_divergence_from_the_natural_one() -> None:
    sequences = {"web": 60_000, "code": 3_000, "books": 300}
    config = CanaryConfig(arms=12, anchors=(), steps=100, batch_size=16, max_kl=0.4)
    region = Space.of(config, sequences, {}).region
    rows = [[arm["weights"][source] for source in sorted(sequences)] for arm in choose(config, sequences)[2:]]
    weights = np.array(rows)
    assert len(weights) == 12
    assert (region.divergence(weights) <= 0.4 + 1e-3).all()
    assert (weights * 1600 <= 4 * np.array([300, 3_000, 60_000])).all()


def test_the_design_determines_the_response_better_than_mixtures_at_random() -> None:
    region = Region(np.full(4, 0.25), np.ones(4), 2.0)
    found = candidates(region, region.natural, (0.5, 5.0), 2_000, 0)
    existing = region.natural[None]

    def information(rows: np.ndarray) -> float:
        terms = features(np.concatenate([existing, rows]))
        return float(np.linalg.slogdet(terms.T @ terms + 1e-3 * np.eye(terms.shape[1]))[1])

    chosen = information(found[d_optimal(found, existing, 12)])
    rng = np.random.default_rng(0)
    assert all(chosen > information(found[rng.choice(len(found), 12)]) for _ in range(50))


def test_the_nearest_feasible_mixture_is_on_the_border_and_the_same_if_it_is_feasible() -> None:
    region = Region(np.array([0.8, 0.2]), np.array([1.0, 0.5]), 1.0)
    assert region.nearest(np.array([0.7, 0.3])).tolist() == [0.7, 0.3]
    assert region.nearest(np.array([0.1, 0.9])) == pytest.approx([0.5, 0.5], abs=1e-6)


def test_a_later_round_trains_the_proposal_of_the_response_and_further_mixtures() -> None:
    cycle = two_rounds(CONFIG.model_copy(update={"sure": 1.0}))
    this = cycle["rounds"][1]
    added = [arm for arm in cycle["arms"] if arm["arm"] in this["arms"]]
    assert [arm["kind"] for arm in added] == ["proposed", "sampled", "sampled", "sampled"]
    assert added[0]["weights"] == this["proposed"]
    assert [arm["arm"] for arm in cycle["arms"]] == ["arm-0", "arm-0-again", *(f"arm-{n}" for n in range(1, 10))]
    assert len(cycle["results"]) == 7


def test_no_further_round_starts_once_the_best_mixture_is_surely_lower() -> None:
    config = CONFIG.model_copy(update={"arms": 9, "forms": ("power",)})
    cycle = two_rounds(config)
    assert cycle["rounds"][1]["probability"] > 0.95
    assert cycle["rounds"][1]["arms"] == []
    assert "lower than the current one with a probability of" in cycle["rounds"][1]["stopped"]
    again = following(config, cycle, [], cost_of(config))
    assert again["rounds"][2]["stopped"] == cycle["rounds"][1]["stopped"]


def test_the_same_results_give_the_same_round_and_the_design_is_registered_before_the_first_run() -> None:
    config = CONFIG.model_copy(update={"sure": 1.0})
    assert json.dumps(two_rounds(config)) == json.dumps(two_rounds(config))
    registered = first(config, WORLD.sequences, cost_of(config))["registered"]
    assert registered["settings"]["rounds"] == 3
    assert registered["settings"]["fresh_seeds"] == [1, 2, 3]
    assert any("If that would have been promoted, nothing is." in rule for rule in registered["rules"])
    assert any("Cost of the longest cycle: 30 runs x" in rule for rule in registered["rules"])


@pytest.mark.parametrize("runs", [15, 18, 21])
def test_a_cycle_never_costs_more_than_its_budget(runs: int) -> None:
    config = CONFIG.model_copy(update={"sure": 1.0, "budget": BudgetConfig(runs=runs)})
    decision = cycle_in(WORLD, config).decision
    assert runs - 3 <= decision.runs <= runs
    assert "the budget is spent" in (decision.rounds[-1].stopped or "")
    assert "the budget is spent" in markdown(decision)


def test_the_proposal_of_the_response_is_confirmed_even_if_no_arm_had_its_weights() -> None:
    decision = cycle_in(World.planted(3, 5), CONFIG.model_copy(update={"arms": 9, "forms": ("power",)})).decision
    confirmed = decision.confirmation
    assert (decision.promoted, confirmed.kind) == (True, "proposed")
    assert confirmed.arm not in {arm.arm for arm in decision.arms}
    assert decision.weights == confirmed.weights == decision.response.proposed_weights
    assert f"{confirmed.arm} (proposed) has the weights s0 " in markdown(decision)
    assert figure(decision)[:4] == b"\x89PNG"


def test_the_target_of_the_response_is_that_of_its_sources() -> None:
    config = CONFIG.model_copy(update={"target": {"s0": 0.25, "s2": 0.75}})
    cost = cost_of(config)
    cycle = first(config, WORLD.sequences, cost)
    cycle = with_results(cycle, [WORLD.run(arm, 0) for arm in cycle["arms"]])
    response = (screening := Screening.of(config, cycle)).response
    weights = screening.shares
    assert response.predict_sources(weights) @ np.array([0.25, 0.0, 0.75]) == pytest.approx(response.predict(weights))


def test_a_budget_below_the_least_cycle_is_refused_before_the_first_run() -> None:
    config = CONFIG.model_copy(update={"budget": BudgetConfig(runs=13)})
    with pytest.raises(RecipeError, match=r"pays for 13.0 runs, and the least cycle needs 14.0"):
        first(config, WORLD.sequences, cost_of(config))


def test_a_budget_in_gpu_hours_or_money_pays_for_runs_by_their_flops() -> None:
    large = CanaryConfig(model=ModelConfig(layers=8, dim=512, heads=8, kv_heads=8), steps=4_000)
    one = CycleCost(large, 32_000, 1024)
    tokens = 4_000 * 16 * 1024
    assert one.flops(large.model) == pytest.approx(6 * one.parameters * tokens, rel=0.5)
    assert one.gpu_hours == pytest.approx(one.flops(large.model) / (989e12 * 0.2 * 3600))
    for budget in ({"gpu_hours": 10 * one.gpu_hours}, {"money": 30 * one.gpu_hours}):
        config = large.model_copy(update={"budget": BudgetConfig(**budget)})
        assert CycleCost(config, 32_000, 1024).limit == pytest.approx(10)


def test_a_larger_model_of_the_confirmation_counts_by_its_flops() -> None:
    config = CONFIG.model_copy(update={"confirm_model": ModelConfig(layers=4, dim=128, heads=4, kv_heads=2)})
    cost = CycleCost(config, 4096, 256)
    assert cost.confirming > 2
    cycle = cycle_in(WORLD, config)
    assert cycle.decision.runs == pytest.approx(cycle.screened.runs + 15 * cost.confirming)
    assert config.training(1, {"confirms": True}).model.dim == 128
    assert config.training(1).model.dim == 64


def test_the_arms_differ_from_a_plain_run_only_in_what_they_are_for() -> None:
    plain = CONFIG.training(4)
    assert CONFIG.training(4, {"again": True}) == plain.model_copy(update={"seed": plain.seed + 1_000_000})
    slow = CONFIG.training(4, {"lr_share": 0.2})
    assert slow.optim.lr == pytest.approx(plain.optim.lr / 5)
    assert slow.model_copy(update={"optim": plain.optim}) == plain


def test_after_a_source_is_added_the_others_keep_their_ratios_and_a_quarter_of_the_arms_is_trained() -> None:
    world = World.planted(4, 3)
    config = CONFIG.model_copy(update={"arms": 9, "sure": 1.0, "forms": ("power",)})
    before = cycle_in(world.without_the_last(), config).decision
    after = cycle_in(world, config, before)
    assert after.screened.runs <= (3 + 27) // 4
    old = np.array([before.weights[name] for name in ("s0", "s1", "s2")])
    for arm in after.decision.arms:
        kept = np.array([arm.weights[name] for name in ("s0", "s1", "s2")])
        assert kept == pytest.approx(old * kept.sum(), abs=2e-5)
    assert len({arm.weights["s3"] for arm in after.decision.arms}) >= 5
    assert after.selected["s3"] > 0.05


def test_without_an_added_source_or_with_a_newer_mixture_of_the_recipe_no_ratio_is_kept() -> None:
    accepted = {"s0": 0.5, "s1": 0.2, "s2": 0.3}
    for sequences, previous in ((WORLD.sequences, accepted), (WORLD.sequences | {"s3": 10_000}, None)):
        cycle = first(CONFIG, sequences, cost_of(CONFIG), previous)
        assert cycle["registered"]["kept"] == {}
