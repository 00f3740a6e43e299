"""The mixture of a run: two stages, replay of old data, and limited repetition."""

import json
import logging
from pathlib import Path

import pytest

from tasks.core.config import parse
from tasks.core.errors import RecipeError
from tasks.core.stage import Inputs
from tasks.formats.tokens.order import Order
from tasks.formats.tokens.shuffle import Windows
from tasks.stages.train.stage import describe_run
from tasks.trainer.best import End
from tasks.trainer.config import AnnealConfig, ReplayConfig, TrainConfig
from tasks.trainer.data.batches import Batches
from tasks.trainer.spec import epochs, make_spec, mix, open_plan
from tests.corpora import Made
from tests.tasks.trainer.small_run import small_config

SEQUENCES = {"web": 800, "books": 150, "code": 50}


def config(**settings: object) -> TrainConfig:
    return TrainConfig(**{"steps": 100, "batch_size": 8, "mixture": {"web": 0.8, "books": 0.2}, **settings})


def test_the_recipe_sets_the_mixtures_of_both_stages() -> None:
    late = AnnealConfig(share=0.25, mixture={"books": 0.6, "web": 0.4})
    weights, anneal = mix(config(anneal=late), SEQUENCES)
    assert weights == {"books": 0.2, "code": 0.0, "web": 0.8}
    assert anneal is not None
    assert (anneal.from_step, anneal.weights) == (75, {"books": 0.6, "code": 0.0, "web": 0.4})


def test_with_a_canary_mixture_the_recipe_still_sets_the_anneal_stage() -> None:
    late = AnnealConfig(share=0.1, mixture={"books": 1.0})
    weights, anneal = mix(config(mixture={}, anneal=late), SEQUENCES, {"web": 0.5, "code": 0.5})
    assert weights == {"web": 0.5, "code": 0.5}
    assert anneal is not None
    assert anneal.weights["books"] == 1.0


def test_without_a_mixture_sources_have_their_natural_shares() -> None:
    assert mix(config(mixture={}), SEQUENCES) == ({"books": 0.15, "code": 0.05, "web": 0.8}, None)


def test_replay_draws_its_share_from_the_old_sources_in_both_stages() -> None:
    late = AnnealConfig(share=0.5, mixture={"books": 1.0})
    weights, anneal = mix(config(anneal=late, replay=ReplayConfig(share=0.25, old=("code",))), SEQUENCES)
    assert weights == {"books": 0.15, "code": 0.25, "web": 0.6}
    assert anneal is not None
    assert anneal.weights == {"books": 0.75, "code": 0.25, "web": 0.0}
    order = Order(SEQUENCES, weights, 8, 0, anneal, Windows.of(32, 8))
    assert all(abs(order.count_drawn("code", steps) - 0.25 * 8 * steps) < 2 for steps in range(100))


@pytest.mark.parametrize(("new", "share"), [(25, 0.5), (26, 0.25), (100, 0.25), (101, 0.05)])
def test_replay_without_a_share_takes_one_for_the_size_of_the_increment(new: int, share: float) -> None:
    months = {"2026-09": 60, "2026-10": 40, "2026-11": new}
    weights, _ = mix(config(mixture={}, replay=ReplayConfig()), months)
    assert weights["2026-09"] + weights["2026-10"] == pytest.approx(share, abs=1e-3)
    assert weights["2026-09"] / weights["2026-10"] == pytest.approx(1.5, abs=0.05)


@pytest.mark.parametrize(
    ("old", "said"),
    [
        (
            ("cod",),
            r'replay\.old, among the sources with a whole sequence: no source is called "cod"\. Did you mean "cod',
        ),
        (("web", "books", "code"), r"replay\.old names every source, so that none is new"),
    ],
)
def test_replay_of_unknown_sources_or_of_all_is_refused(old: tuple[str, ...], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        mix(config(replay=ReplayConfig(share=0.5, old=old)), SEQUENCES)


def test_too_much_repetition_is_refused_with_the_numbers_and_a_feasible_value() -> None:
    with pytest.raises(RecipeError) as caught:
        mix(config(mixture={"web": 0.5, "books": 0.25, "code": 0.25}, repetition_cap=3), SEQUENCES)
    said = str(caught.value)
    assert '"code" (50 sequences) 4.00 times: it fits with weight 0.1875' in said
    assert "train 75 steps" in said
    assert "books" not in said
    fits = {"web": 0.5625, "books": 0.25, "code": 0.1875}
    assert mix(config(mixture=fits, repetition_cap=3), SEQUENCES)[0]["code"] == 0.1875


def test_repetition_counts_both_stages_and_suggests_feasible_values() -> None:
    late = AnnealConfig(share=0.5, mixture={"code": 0.5, "web": 0.5})
    weights = {"web": 0.75, "code": 0.25}
    given = config(mixture=weights, anneal=late)
    assert epochs(given, SEQUENCES, *mix(given, SEQUENCES)) == {"web": 0.625, "code": 6.0}
    with pytest.raises(RecipeError, match=r"code.*6\.00 times: it fits with weight 0\.0833 and anneal weight 0\.1666"):
        mix(config(mixture=weights, anneal=late, repetition_cap=2), SEQUENCES)


def test_without_a_cap_high_repetition_is_only_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "sluice.train"):
        mix(config(mixture={"web": 0.5, "code": 0.5}), SEQUENCES)
    assert 'the run reads "code" 8.0 times; beyond 4, repetition has little value' in caplog.text


@pytest.mark.parametrize(("share", "steps"), [(0.01, 20), (0.99, 20)])
def test_a_stage_without_a_step_is_refused(share: float, steps: int) -> None:
    settings = {"steps": steps, "anneal": {"share": share, "mixture": {"web": 1.0}}}
    with pytest.raises(RecipeError, match=r"anneal\.share: a share of .* leaves one of the two stages without a step"):
        parse(TrainConfig, settings, "mine.toml")


def test_the_sequences_read_match_the_description_of_the_run(made: Made, tmp_path: Path) -> None:
    late = AnnealConfig(share=0.5, mixture={"my-books": 0.75, "web": 0.25})
    settings = small_config(anneal=late, replay=ReplayConfig(share=0.25, old=("code",)))
    spec = make_spec(settings, Inputs({"shards": made.shards, "plan": made.plan}), tmp_path)
    described = describe_run(spec, open_plan(spec), End(spec.run.steps, None, ""))
    run, read = json.loads(json.dumps(described)), Batches(spec).order
    told = Order.of_run(run)
    assert [told.batch(step) for step in range(12)] == [read.batch(step) for step in range(12)]
    assert run["anneal"]["from_step"] == 6
    assert {source for source, _, _ in read.batch(11)} <= {"my-books", "web", "code"}
    one_stage = make_spec(small_config(), Inputs({"shards": made.shards, "plan": made.plan}), tmp_path)
    assert "anneal" not in describe_run(one_stage, open_plan(spec), End(spec.run.steps, None, ""))


LANGUAGES = {"web+en": 900, "web+ja": 90, "web+sw": 10, "books+en": 200}


def test_a_mixture_of_sources_raises_small_languages_by_alpha_within_the_repetition_cap() -> None:
    raised = config(mixture={"web": 0.75, "books": 0.25}, alpha={"language": 0.3}, repetition_cap=4)
    weights, _ = mix(raised, LANGUAGES, by="source+language")
    assert weights["books+en"] == 0.25
    assert weights["web+sw"] == 4 * 10 / 800, "the cap: 800 sequences are read, so ten of them four times"
    assert weights["web+en"] / weights["web+ja"] == pytest.approx((900 / 90) ** 0.3, rel=1e-3)
    without_cap, _ = mix(raised.model_copy(update={"repetition_cap": None}), LANGUAGES, by="source+language")
    assert without_cap["web+sw"] > 0.1


def test_replay_of_months_includes_all_their_languages() -> None:
    months = {"2026-10+en": 60, "2026-10+ja": 20, "2026-11+en": 60, "2026-11+ja": 20}
    for old in (("earlier",), ("2026-10",)):
        replayed = config(mixture={}, replay=ReplayConfig(share=0.25, old=old))
        weights, _ = mix(replayed, months, by="fetched_at+language")
        assert weights["2026-10+en"] + weights["2026-10+ja"] == pytest.approx(0.25)
        assert weights["2026-11+en"] == pytest.approx(3 * weights["2026-11+ja"], rel=1e-3)


def test_a_run_that_names_no_exponent_has_the_settings_of_before() -> None:
    assert "alpha" not in TrainConfig().model_dump()
