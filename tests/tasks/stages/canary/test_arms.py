"""Arms: the current mixture first, deterministic samples, no source repeated too often."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from tasks.core.errors import InputError, RecipeError
from tasks.formats.tokens.mixture import repetitions, resolve
from tasks.stages.canary import CanaryConfig
from tasks.stages.canary.arms import choose
from tasks.stages.canary.registration import parse_member, targets
from tasks.stages.tokens import PackConfig
from tests.conftest import run_stage_in
from tests.corpora import tokens_in

PLENTY = {"web": 600_000, "code": 300_000, "books": 100_000}


def test_the_current_mixture_is_arm_0_and_every_arm_is_a_mixture() -> None:
    config = CanaryConfig(current={"web": 0.5, "code": 0.5}, arms=8, anchors=("natural", "uniform", "drop_one"))
    arms = choose(config, PLENTY)
    assert arms[0] == {"arm": "arm-0", "kind": "current", "weights": {"books": 0.0, "code": 0.5, "web": 0.5}}
    kinds = [arm["kind"] for arm in arms]
    assert kinds[1:6] == ["A/A", "natural", "uniform", "without code", "without web"]
    assert kinds[6:] == ["sampled"] * 8
    assert [arm["arm"] for arm in arms] == ["arm-0", "arm-0-again", *(f"arm-{index}" for index in range(1, 13))]
    assert arms[2]["weights"] == {"books": 0.1, "code": 0.3, "web": 0.6}
    for arm in arms:
        assert sum(resolve(arm["weights"]).values()) == 100_000


def test_without_a_current_mixture_the_natural_one_is_current_and_not_repeated() -> None:
    kinds = [arm["kind"] for arm in choose(CanaryConfig(arms=0), PLENTY)]
    assert kinds == ["current", "A/A", "uniform"]


def test_the_same_seed_samples_the_same_arms_and_another_seed_others() -> None:
    first, again = (choose(CanaryConfig(arms=5), PLENTY) for _ in range(2))
    assert first == again
    assert choose(CanaryConfig(arms=5, sample_seed=1), PLENTY) != first


def test_no_arm_repeats_a_source_more_often_than_the_cap() -> None:
    config = CanaryConfig(arms=10, steps=100, batch_size=16, repetition_cap=2)
    sequences = {"web": 10_000, "code": 2000, "books": 150}  # books: at most 300 of 1,600 samples
    arms = choose(config, sequences)
    assert all(max(repetitions(arm["weights"], sequences, 1600).values()) <= 2 for arm in arms)
    assert "uniform" not in [arm["kind"] for arm in arms]
    assert len(arms) == 12


def test_a_current_mixture_above_the_cap_is_refused_with_the_numbers() -> None:
    config = CanaryConfig(current={"web": 0.5, "books": 0.5}, steps=100, batch_size=16)
    with pytest.raises(RecipeError, match=r'reads "books" 8.0 times, above \[canary\] repetition_cap = 4'):
        choose(config, {"web": 10_000, "books": 100})


def test_an_unknown_name_in_the_current_mixture_is_refused_with_the_valid_ones(tmp_path: Path) -> None:
    inputs = {"shards": tokens_in(tmp_path).shards}
    plan = run_stage_in(
        tmp_path, "tasks.stages.tokens.pack", PackConfig(seq_len=32, by="language"), inputs, version="l"
    )
    with pytest.raises(RecipeError, match=r'\[canary\] current.* no source is called "fr"\. Choose from de, en'):
        run_stage_in(
            tmp_path, "tasks.stages.canary.arms", CanaryConfig(current={"fr": 1.0}), {"plan": plan}, member="round-1"
        )


def test_an_impossible_cap_raises_an_error_instead_of_looping() -> None:
    config = CanaryConfig(arms=3, steps=100, batch_size=16, repetition_cap=1)
    with pytest.raises(InputError, match="no further mixture"):
        choose(config, {"web": 800, "books": 800})  # only 50:50 fits


def test_an_unknown_source_in_the_current_mixture_or_the_target_is_refused() -> None:
    with pytest.raises(
        RecipeError, match=r'\[canary\] current, among .* sequence: no source is called "webb"\. Did you mean "web"'
    ):
        choose(CanaryConfig(current={"webb": 1.0}), PLENTY)
    counts = {"web": 5, "code": 0}
    with pytest.raises(RecipeError, match=r'\[canary\] target: no source is called "code"'):
        targets(CanaryConfig(target={"code": 1.0}), counts)
    assert targets(CanaryConfig(), counts) == {"web": 1.0}


def test_a_cycle_starts_from_the_decision_and_proposal_of_the_previous_one() -> None:
    accepted, proposed = {"web": 0.4, "code": 0.4, "gone": 0.2}, {"web": 0.3, "code": 0.7, "gone": 0.0}
    config = CanaryConfig(current={"web": 0.9, "code": 0.1}, arms=0, reuse=False)
    arms = choose(config, PLENTY, accepted, proposed)
    assert arms[0]["weights"] == {"books": 0.0, "code": 0.5, "web": 0.5}
    assert (arms[2]["kind"], arms[2]["weights"]) == ("proposed", {"books": 0.0, "code": 0.7, "web": 0.3})
    arms = choose(config, PLENTY, {"gone": 1.0})
    assert arms[0]["weights"] == {"books": 0.0, "code": 0.1, "web": 0.9}


def test_a_newer_mixture_of_the_recipe_overrides_the_decision() -> None:
    arms = choose(CanaryConfig(current={"web": 0.9, "code": 0.1}, arms=0), PLENTY, None, {"web": 0.3, "code": 0.7})
    assert arms[0]["weights"] == {"books": 0.0, "code": 0.1, "web": 0.9}
    assert arms[2]["kind"] == "proposed"


@pytest.mark.parametrize("seeds", [[], [3, 3]])
def test_no_seed_and_repeated_ones_are_refused(seeds: list[int]) -> None:
    with pytest.raises(ValidationError, match="at least one seed"):
        CanaryConfig(seeds=seeds)


def test_the_stage_names_a_member_for_every_arm_and_seed(tmp_path: Path) -> None:
    plan = tokens_in(tmp_path).plan
    config = CanaryConfig(arms=1, seeds=(4, 9), steps=2, batch_size=8)
    artifact = run_stage_in(tmp_path, "tasks.stages.canary.arms", config, {"plan": plan}, member="round-1")
    arms = json.loads(artifact.read("arms.json"))
    assert artifact.record.members == tuple(f"round-1-{arm['arm']}-seed-{seed}" for arm in arms for seed in (4, 9))
    assert [parse_member(member)[1] for member in artifact.record.members[:2]] == [4, 9]


def test_the_current_mixture_can_name_sources_of_which_each_is_divided_among_its_languages() -> None:
    sequences = {"web+en": 90_000, "web+ja": 10_000, "books+en": 10_000}
    config = CanaryConfig(current={"web": 0.8, "books": 0.2}, alpha={"language": 0.5}, arms=0, anchors=())
    assert [arm["weights"] for arm in choose(config, sequences, by="source+language")] == [
        {"books+en": 0.2, "web+en": 0.6, "web+ja": 0.2}
    ] * 2
