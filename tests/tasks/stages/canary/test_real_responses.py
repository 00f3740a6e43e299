"""The response on real runs: those of `benchmarks/results/responses.json`, and published models of 412 M to 6.9 B."""

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import spearmanr

from benchmarks.responses import Kept, kept, split
from tasks.stages.canary.statistics.pooled import Runs, backtest, with_evidence
from tasks.stages.canary.statistics.response import FORMS, decision_accuracy

SIZES = {411616256: 8232325120, 1439795200: 28795904000, 6889410560: 137788211200}
"""Weights and tokens of the models that are compared: about 20 tokens per weight."""


@pytest.fixture(scope="module")
def runs() -> Kept:
    return kept()


def test_the_data_set_has_60_mixtures_of_6_domains_some_with_3_seeds_and_text_that_is_read_often(runs: Kept) -> None:
    assert len(runs.sources) == 6
    assert len(np.unique(runs.weights, axis=0)) >= 60
    assert (np.unique(runs.arms, return_counts=True)[1] >= 3).sum() >= 3
    assert (runs.weights * runs.epochs).max() > 8
    assert runs.weights.sum(1) == pytest.approx(1)


@pytest.mark.parametrize("seed", range(3))
def test_a_fit_to_two_thirds_of_the_mixtures_ranks_the_others(runs: Kept, seed: int) -> None:
    some, others = split(runs, 2 / 3, seed)
    found = some.fit()
    assert spearmanr(found.predict(others.weights), others.bpb.mean(1)).statistic >= 0.9


def test_out_of_fold_predictions_of_the_chosen_form_rank_the_mixtures(runs: Kept) -> None:
    found = runs.fit()
    assert set(found.judgements) == set(FORMS)
    assert found.judgement.rank_agreement is not None
    assert found.judgement.rank_agreement >= 0.9
    assert found.judgements[found.form].accuracy >= 0.85
    assert abs(found.judgement.optimism) < runs.bpb.mean(1).std() / 3


def test_runs_of_an_earlier_cycle_let_8_runs_rank_the_other_mixtures(runs: Kept) -> None:
    some, others = split(runs, 8 / 60, 2)
    earlier, rest = split(others, 0.6, 2)
    rows = zip(earlier.weights.tolist(), earlier.bpb.tolist(), strict=True)
    cycle = {
        "epochs": dict(zip(runs.sources, runs.epochs.tolist(), strict=True)),
        "content": {},
        "importance": 0.7,
        "runs": [
            {
                "weights": dict(zip(runs.sources, weights, strict=True)),
                "bpb": dict(zip(runs.sources, bpb, strict=True)),
                "seeds": 1,
            }
            for weights, bpb in rows
        ],
    }
    columns = [{source: 1.0} for source in runs.sources]
    current = Runs(columns, runs.epochs, {}, some.weights, some.bpb, np.ones(len(some.bpb)))
    forms, goal = ("power",), np.full(6, 1 / 6)
    alone = some.fit(forms)
    found = with_evidence(alone, current, [cycle], goal, runs.sources, forms)
    ranks = [spearmanr(one.predict(rest.weights), rest.bpb.mean(1)).statistic for one in (alone, found.response)]
    assert ranks[1] > max(0.9, ranks[0])
    tested = backtest(current, [cycle], goal, runs.sources, forms)
    assert tested is not None
    assert tested.rank_agreement is not None
    assert tested.rank_agreement > 0.9


def accuracies(data: Path, score: str) -> dict[str, float]:
    """Returns the share of pairs of data sets that a smaller size orders as a larger one, of the best model of each."""
    best: dict[int, dict[str, float]] = defaultdict(dict)
    with pa.input_stream(str(data / "ablation_results" / "dclm_model_database.jsonl.zst"), compression="zstd") as file:
        for row in map(json.loads, file.read().splitlines()):
            size = int(row["params"])
            if int(row["tokens"]) == SIZES[size] and row[score]:
                name = row["Dataset"]
                best[size][name] = max(float(row[score]), best[size].get(name, -1.0))
    small, medium, large = (best[size] for size in SIZES)
    found = {}
    for name, (one, two) in {
        "412M to 1.4B": (small, medium), "412M to 6.9B": (small, large), "1.4B to 6.9B": (medium, large)
    }.items():  # fmt: skip
        both = sorted(one.keys() & two.keys())
        values = (np.array([size[data_set] for data_set in both]) for size in (one, two))
        found[f"{name}, {len(both)} data sets"] = round(decision_accuracy(*values), 3)
    return found


def test_published_small_models_order_data_sets_as_large_ones_do(shared_data: Path) -> None:
    assert accuracies(shared_data, "low_variance_datasets") == {
        "412M to 1.4B, 4 data sets": 1.0,
        "412M to 6.9B, 4 data sets": 1.0,
        "1.4B to 6.9B, 8 data sets": 0.75,
    }
    assert accuracies(shared_data, "Core") == {
        "412M to 1.4B, 4 data sets": 0.667,
        "412M to 6.9B, 4 data sets": 0.833,
        "1.4B to 6.9B, 8 data sets": 0.75,
    }
