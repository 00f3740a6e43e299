"""Choices of the fit: rank before error, and the newest cycles before older ones."""

import numpy as np
import pytest

from benchmarks.canaries import World, cycle_in
from tasks.stages.canary import evidence
from tasks.stages.canary.statistics.response import TIE, fit
from tests.tasks.stages.canary.test_evidence import CONFIG
from tests.tasks.stages.canary.test_response import GOAL, noisy, power_law


def test_the_form_that_ranks_left_out_mixtures_best_is_chosen_even_if_another_has_a_smaller_error() -> None:
    rng = np.random.default_rng(7)
    weights = rng.dirichlet(np.ones(3), 8)
    found = fit(weights, noisy(power_law, weights, rng, 0.01), GOAL, forms=("log-linear", "power"))
    ranked, precise = found.judgements["log-linear"], found.judgements["power"]
    assert ranked.rank_agreement is not None
    assert precise.rank_agreement is not None
    assert ranked.rank_agreement > precise.rank_agreement + TIE
    assert ranked.error > precise.error
    assert found.form == "log-linear"


def test_the_eight_newest_cycles_are_evidence_the_oldest_first() -> None:
    cycles = [{"artifact": f"r/mixture@{number}", "by": "source", "flops": 1.0, "runs": []} for number in range(9)]
    found = evidence.entering([*cycles, {**cycles[0], "artifact": ""}], "r/mixture@9", "source", 1.0)["cycles"]
    assert [one["artifact"] for one in found] == [f"r/mixture@{number}" for number in range(2, 10)]
    assert [one["age"] for one in found] == [8, 7, 6, 5, 4, 3, 2, 1]


@pytest.mark.parametrize(("sampled", "tested"), [(0, False), (1, True)], ids=["two arms", "three"])
def test_a_backtest_needs_three_arms(sampled: int, tested: bool) -> None:
    world = World.planted(3, 1)
    before = cycle_in(world, CONFIG, earlier=[])
    after = cycle_in(world, CONFIG.model_copy(update={"arms": sampled}), before.decision, before.screened.evidence)
    backtest = after.decision.earlier.backtest
    assert (backtest is not None) == tested
    assert backtest is None or backtest.arms == 3
