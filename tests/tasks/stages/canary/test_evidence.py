"""Evidence of earlier cycles: registered before the first run, used if it helps, judged on what came after it."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks.canaries import Simulated, World, cycle_in
from tasks.formats.tokens.shard import TRAIN, ShardSet
from tasks.stages.canary import CanaryConfig, evidence
from tasks.stages.canary.cost import CycleCost
from tasks.stages.canary.report import markdown
from tasks.stages.canary.statistics import screen
from tasks.stages.canary.statistics.pooled import Runs
from tests.corpora import corpus, tokens_in
from tests.decisions import decision

CONFIG = CanaryConfig(
    anchors=("uniform",), arms=9, rounds=1, confirmations=3, forms=("power",), guard_share=10, max_kl=5, lr_check=False
)
SMALL = CONFIG.model_copy(update={"arms": 3})


def two_cycles(world: World, later: World | None = None) -> tuple[Simulated, Simulated]:
    """A cycle, and a small one that knows its runs; the later one has other seeds of its noise."""
    first = cycle_in(world, CONFIG, earlier=[])
    return first, cycle_in(later or replace(world, seed=world.seed + 1), SMALL, first.decision, first.screened.evidence)


def test_the_next_cycle_registers_the_runs_before_its_first_run_with_age_size_and_hash() -> None:
    first = cycle_in(World.planted(3, 1), CONFIG, earlier=[])
    [own] = first.screened.evidence
    assert (own["artifact"], len(own["runs"])) == ("", 12)
    half = evidence.entering(first.screened.evidence, "r/mixture@v1", "source", own["flops"] * 4)
    [entered] = half["cycles"]
    assert (entered["age"], entered["size"], entered["artifact"]) == (1, 0.25, "r/mixture@v1")
    assert entered["importance"] == pytest.approx(0.5**0.5 * 0.5, abs=1e-6)
    assert (
        f"r/mixture@v1, 12 arms, age 1, 0.25 times the size, weight 0.35 (sha256 {entered['sha256'][:12]})"
        in (half["note"])
    )


def test_old_and_other_sized_runs_weigh_less() -> None:
    assert [evidence.importance(age, 1.0) for age in (0, 2, 4)] == pytest.approx([1, 0.5, 0.25])
    smaller = [evidence.importance(0, size) for size in (1, 1 / 4, 1 / 16)]
    assert all(later < before for before, later in pairwise(smaller))
    assert evidence.importance(0, 4.0) == pytest.approx(smaller[1])


def test_a_small_cycle_is_fitted_with_the_runs_of_the_one_before_if_they_let_it_rank_better() -> None:
    world = World.planted(4, 3)
    _, second = two_cycles(world)
    forgetful = cycle_in(replace(world, seed=world.seed + 1), SMALL)
    assert second.decision.earlier.used == "names"
    assert set(second.decision.earlier.tried) == {"alone", "names"}
    optimum = world.optimum()
    distances = [
        np.abs(world.vector(one.decision.response.proposed_weights) - optimum).sum() for one in (second, forgetful)
    ]
    assert distances[0] < distances[1]


def test_runs_of_another_response_are_not_used() -> None:
    world = World.planted(3, 5)
    other = World(world.sequences, world.level, world.exponent[::-1] * 3, world.worth[::-1, ::-1], 77)
    config = CONFIG.model_copy(update={"arms": 12})
    first = cycle_in(world, CONFIG, earlier=[])
    assert cycle_in(other, config, first.decision, first.screened.evidence).decision.earlier.used == "alone"


def test_the_backtest_states_how_the_cycles_before_ranked_the_arms_of_this_one() -> None:
    world = World.planted(3, 1)
    first, second = two_cycles(world)
    assert first.decision.earlier.backtest is None
    tested = second.decision.earlier.backtest
    assert (tested.runs, tested.arms) == (12, 5)
    assert tested.rank_agreement > 0.8
    assert 0 <= tested.regret < 0.01
    assert second.screened.evidence[-1]["backtest"] == tested.model_dump()
    third = cycle_in(replace(world, seed=9), SMALL, second.decision, second.screened.evidence)
    assert [cycle.backtest for cycle in third.decision.earlier.cycles] == [None, tested]
    assert [cycle.age for cycle in third.decision.earlier.cycles] == [2, 1]
    report = markdown(third.decision)
    assert "## Earlier cycles" in report
    assert f"{tested.regret:.4f}" in report


def test_runs_of_sources_with_other_names_are_evidence_by_their_content() -> None:
    world = World.planted(3, 2)
    labels = {name: {f"language={name}": 1.0} for name in world.sequences}
    first = cycle_in(replace(world, content=labels), CONFIG, earlier=[])
    renamed = {f"n{name}": count for name, count in world.sequences.items()}
    later = replace(world, seed=8, sequences=renamed, content={f"n{name}": row for name, row in labels.items()})
    # Held-out text is measured by source: its bits per byte have other names, so only those that are equal count.
    first.screened.evidence[0]["runs"] = [
        {**run, "bpb": {f"n{name}": value for name, value in run["bpb"].items()}}
        for run in first.screened.evidence[0]["runs"]
    ]
    second = cycle_in(later, SMALL, decision(later_weights(first.decision.weights)), first.screened.evidence)
    assert second.decision.earlier.backtest.features == "content"
    assert second.decision.earlier.backtest.rank_agreement > 0.8


def later_weights(weights: dict[str, float]) -> dict[str, float]:
    return {f"n{name}": weight for name, weight in weights.items()}


def test_an_added_source_has_no_bits_per_byte_in_earlier_runs_and_is_fitted_to_those_of_this_cycle() -> None:
    world = World.planted(4, 3)
    first = cycle_in(world.without_the_last(), CONFIG, earlier=[])
    second = cycle_in(world, CONFIG, first.decision, first.screened.evidence)
    assert set(second.decision.earlier.tried) == {"alone", "names"}
    assert set(second.screened.evidence[0]["runs"][0]["bpb"]) == {"s0", "s1", "s2"}
    assert set(second.decision.response.proposed_weights) == {"s0", "s1", "s2", "s3"}


def test_equal_cycles_give_equal_evidence_and_decisions() -> None:
    assert two_cycles(World.planted(3, 4)) == two_cycles(World.planted(3, 4))


def test_mixtures_of_another_column_are_no_evidence() -> None:
    first = cycle_in(World.planted(3, 1), CONFIG, earlier=[])
    found = evidence.entering(first.screened.evidence, "r/mixture@v1", "tier", 1.0)
    assert found == {"cycles": [], "note": 'No run of an earlier cycle enters the fit: none had mixtures of "tier".'}


def test_the_content_of_a_source_is_the_share_of_each_label_in_its_tokens(tmp_path: Path) -> None:
    rows = [row | {"language": "en" if row["source"] == "code" else row["language"]} for row in corpus(60)]
    shards = tokens_in(tmp_path, rows).shards
    found = evidence.content_of(shards, "source")
    assert found["code"] == {"language=en": 1.0, "tier=silver": 1.0}
    files, tokens = ShardSet.open(shards), {"de": 0, "en": 0}
    for name in files.names("web", TRAIN):
        shard = files.shard(name)
        for label, length in zip(shard.column("language").to_pylist(), shard.lengths.tolist(), strict=True):
            tokens[label] += length
    assert found["web"]["language=de"] == pytest.approx(tokens["de"] / sum(tokens.values()), abs=1e-6)
    assert sum(found["web"][f"language={name}"] for name in tokens) == pytest.approx(1)
    assert set(evidence.content_of(shards, "language")["de"]) == {"source=my-books", "source=web", "tier=silver"}


def test_a_cycle_of_settings_keeps_the_runs_of_earlier_cycles_for_the_next_one_of_mixtures() -> None:
    before = cycle_in(World.planted(3, 1), CONFIG, earlier=[])
    kept = evidence.entering(before.screened.evidence, "r/mixture@v1", "source", before.screened.evidence[0]["flops"])
    config = CanaryConfig.model_validate(
        {"seeds": [0], "settings": [{"name": "strict", "set": {"pack.seq_len": 64}}], "lr_check": False}
    )
    arms = [
        {"arm": "arm-0", "kind": "current", "weights": {"web": 1.0}, "set": {}},
        {"arm": "arm-0-again", "kind": "A/A", "weights": {"web": 1.0}, "set": {}, "again": True},
        {"arm": "arm-1", "kind": "strict", "weights": {"web": 1.0}, "set": {"pack.seq_len": 64}},
    ]
    results = [
        {"arm": arm["arm"], "seed": 0, "weights": arm["weights"], "bpb": {"web": 2.0 + number}}
        for number, arm in enumerate(arms)
    ]
    about = {"sequences": {"web": 100}, "kept": {}, "most_arms": None, "rules": [], "settings": {}}
    cycle = {"registered": about, "arms": arms, "results": results, "rounds": [], "evidence": kept}
    screening = screen(config, cycle, CycleCost(config, 300, 64))
    assert screening.earlier.cycles == ()
    assert [one["artifact"] for one in screening.evidence] == ["r/mixture@v1"]
    assert screening.evidence[0]["runs"] == before.screened.evidence[0]["runs"]


def test_a_task_is_a_measured_column_of_earlier_runs_for_each_of_its_metrics() -> None:
    config = CONFIG.model_copy(update={"tasks": ("quiz",), "target": {"quiz": 1.0}, "signal_floor": 0.0})

    class Quizzed(World):
        def run(self, arm: dict, seed: int) -> dict:
            """The task gets easier with s0 by its choices, and with nothing by its answers."""
            row = super().run(arm, seed)
            noise = np.random.default_rng([self.seed, seed, *arm["arm"].encode()]).normal(0, 1e-3, 2)
            easier = {"quiz/choice": 2 - arm["weights"]["s0"] + noise[0], "quiz/answer": 3 + noise[1]}
            return row | {"bpb": row["bpb"] | easier}

    world = World.planted(3, 1)
    quizzed = Quizzed(world.sequences, world.level, world.exponent, world.worth, world.seed)
    first = cycle_in(quizzed, config, earlier=[])
    [own] = first.screened.evidence
    assert own["runs"][0]["bpb"].keys() == {"s0", "s1", "s2", "quiz/answer", "quiz/choice"}
    assert first.decision.tasks["quiz"].metric == "choice"
    later = cycle_in(
        replace(quizzed, seed=7), config.model_copy(update={"arms": 3}), first.decision, first.screened.evidence
    )
    assert later.decision.earlier.backtest.runs == len(own["runs"])
    error = {name: tried.error for name, tried in later.decision.earlier.tried.items()}
    assert error["names"] < 0.7 * error["alone"]
    entered = Runs.of({**own, "importance": 1.0}, ["s0", "quiz/choice", "trivia/answer"])
    assert entered.bpb[0].tolist()[:2] == [own["runs"][0]["bpb"]["s0"], own["runs"][0]["bpb"]["quiz/choice"]]
    assert np.isnan(entered.bpb[:, 2]).all()
