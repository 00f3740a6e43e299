"""A cycle whose arms are settings: tokens of their own, the same held-out text, a decision that the next one uses."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.errors import InputError, RecipeError
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.formats.tokens.shard import ShardSet
from tasks.run.place import Retention
from tasks.run.recipe import Recipe, find_recipe
from tasks.run.result import StageResult
from tasks.run.retention import survey
from tasks.run.runner import run_stage
from tasks.run.tracking import TrackingContext
from tasks.run.variants import stages_of_variants, variant_of
from tasks.stages.canary import CanaryConfig
from tasks.stages.canary.cost import CycleCost
from tasks.stages.canary.variants import first
from tests.conftest import run_stage_in
from tests.corpora import WORDS
from tests.decisions import commit_decision, decision
from tests.tasks.trainer.in_process import training_in_process

MADE = ("extract", "annotate", "dedup", "consolidate", "tokenizer", "encode", "pack")
STRICT = {"name": "strict", "set": {"consolidate.limits.gopher_quality.min_words": 60}}
COARSE = {"name": "coarse", "set": {"tokenizer.vocab_size": 260}}


def recipe_in(folder: Path, *arms: dict, **more: object) -> Recipe:
    """Returns a recipe of texts of 30 to 120 words, of which half are kept by the strict arm."""
    draw, texts = random.Random(3), folder / "texts"
    if not texts.exists():
        texts.mkdir()
        for number in range(60):
            words = draw.choices(WORDS[:9], k=90) if number % 2 else draw.choices(WORDS[9:], k=40)
            (texts / f"{number}.txt").write_text(f"the and of {number} {' '.join(words)}.")
    small = {"layers": 1, "dim": 16, "heads": 2, "kv_heads": 1}
    return find_recipe("demo").override(
        {
            "name": "arms",
            "place.store": str(folder / "store"),
            "crawl.enabled": False,
            "extract.files": [{"name": "texts", "kind": "text", "path": f"{texts}/*.txt"}],
            "extract.min_chars": 1,
            "extract.parts": 1,
            "annotate.use": ["gopher_quality", "prose_score"],
            "consolidate.mask_pii": False,
            "consolidate.filters": ["gopher_quality"],
            "consolidate.sources": ["texts"],
            "consolidate.limits.gopher_quality": {"min_words": 20, "min_letters": 0.1, "min_stop_words": 0},
            "tokenizer.vocab_size": 300,
            "encode.heldout_share": 0.2,
            "spans.enabled": False,
            "pack.seq_len": 32,
            "canary": {
                "settings": list(arms), "confirmations": 3, "lr_check": False, "guard_share": 9.0, "signal_floor": 0.0,
                "steps": 4, "batch_size": 4, "microbatch": 4, "repetition_cap": 99.0,
                "model": small, "optim": {"lr": 3e-2, "warmup_steps": 1},
            },
            **more,
        }
    )  # fmt: skip


def run(recipe: Recipe, stage: str, version: str = "1", member: str = "", source: str | None = None) -> StageResult:
    tracking = TrackingContext("", recipe.name)
    return run_stage(recipe, stage, version=version, member=member, source_version=source, tracking=tracking)


def opened(recipe: Recipe, kind: str, version: str = "1") -> Artifact:
    return Artifact.open_at(Store(recipe.place.store), ArtifactId(f"{recipe.name}/{kind}", version))


def make_variants(recipe: Recipe, version: str = "1") -> dict[str, set[str]]:
    """Runs the stages of all variants; returns those that were not adopted, by variant."""
    store, made = Store(recipe.place.store), {}
    for name in run(recipe, "variants", version).members:
        of_arm, at = variant_of(recipe, store, version, name)
        results = {stage: run(of_arm, stage, at, source=version) for stage in stages_of_variants(recipe)}
        made[name] = {stage for stage, result in results.items() if not result.skipped}
    return made


def decide(recipe: Recipe, version: str = "1") -> None:
    """Runs the stages after the variants."""
    for member in run(recipe, "arms", version, "round-1").members:
        run(recipe, "canary", version, member)
    for member in run(recipe, "finalist", version).members:
        run(recipe, "confirm", version, member)
    run(recipe, "decide", version)


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recipe]:
    """A recipe whose cycle with a filter limit has run at version 1."""
    with training_in_process():
        recipe = recipe_in(tmp_path_factory.mktemp("strict"), STRICT)
        for stage in MADE:
            run(recipe, stage)
        made = make_variants(recipe)
        assert made == {"current": set(), "strict": {"consolidate", "tokenizer", "encode", "pack"}}
        decide(recipe)
        yield recipe


def test_an_arm_of_settings_is_made_by_the_same_stages_and_decided_like_a_mixture(strict: Recipe) -> None:
    decision = json.loads(opened(strict, "mixture").read("mixture.json"))
    assert [(arm["arm"], arm["kind"], arm["set"]) for arm in decision["arms"]] == [
        ("arm-0", "current", {}), ("arm-0-again", "A/A", {}), ("arm-1", "strict", STRICT["set"]),
    ]  # fmt: skip
    assert decision["variant"] == ("strict" if decision["promoted"] else "current")
    assert decision["settings"] == (STRICT["set"] if decision["promoted"] else {})
    run_of_arm = opened(strict, "canary/round-1-arm-1-seed-0")
    read = {ref.role: ref.address for ref in run_of_arm.record.inputs}
    assert read["shards"] == "arms/shards@1.strict"
    assert read["heldout"] == "arms/shards@1.current"
    rules = decision["registered"]["rules"]
    assert "strict (consolidate.limits.gopher_quality.min_words)" in rules[0]
    assert "held-out documents of the current settings" in rules[1]
    assert "# Canary settings" in opened(strict, "mixture").read("report.md").decode()


def test_every_arm_is_measured_on_the_same_text_whatever_it_keeps(strict: Recipe) -> None:
    current, arm = (ShardSet.open(opened(strict, "shards", f"1.{name}")) for name in ("current", "strict"))
    held_out = [{uid for uid, _, _ in shards.heldout("texts")} for shards in (current, arm)]
    assert held_out[1] < held_out[0]  # the strict arm has no model of the others
    results = [json.loads(opened(strict, f"canary/round-1-arm-{n}-seed-0").read("result.json"))["bpb"] for n in (0, 1)]
    assert results[0].keys() == results[1].keys() == {"texts"}


def test_the_next_cycle_starts_from_the_accepted_settings(strict: Recipe, tmp_path: Path) -> None:
    config = recipe_in(tmp_path, COARSE).canary
    plan = opened(strict, "plan")
    accepted = decision({"texts": 1.0}, settings=STRICT["set"], variant="strict")
    inputs = {"plan": plan, "previous": commit_decision(tmp_path, "test/mixture@before", accepted, CanaryConfig())}
    listed = run_stage_in(tmp_path, "tasks.stages.canary.variants", config, inputs, kind="variants")
    found = json.loads(listed.read("variants.json"))
    assert found["variants"] == [
        {"name": "current", "set": STRICT["set"]},
        {"name": "coarse", "set": STRICT["set"] | COARSE["set"]},
    ]
    assert found["weights"] == {"texts": 1.0}
    afresh = config.model_copy(update={"reuse": False})
    again = run_stage_in(tmp_path, "tasks.stages.canary.variants", afresh, inputs, kind="afresh")
    assert json.loads(again.read("variants.json"))["variants"][0] == {"name": "current", "set": {}}


def test_an_arm_of_which_the_tokens_were_not_made_is_not_trained_on_those_of_the_version(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path, STRICT)
    with pytest.raises(InputError, match=r"arms/variants@1 is not in .*Run the stage variants first"):
        variant_of(recipe, Store(recipe.place.store), "1", "strict")
    for kind, stage in (("shards", "encode"), ("plan", "pack")):
        output = Output(Store(recipe.place.store), ArtifactId(f"arms/{kind}", "1"), "0" * 64)
        with output.part(kind, conserved=False) as part, part.file(f"{kind}/summary.json") as file:
            file.write(b"{}")
        commit(output, stage, 1, CanaryConfig(), [], Report())
    run(recipe, "variants")
    with pytest.raises(
        InputError, match=r"needs arms/plan@1.current.*Run the stages up to pack with --variant current"
    ):
        run(recipe, "arms", member="round-1")
    with pytest.raises(InputError, match=r'has no variant "lax".*It has current, strict'):
        variant_of(recipe, Store(recipe.place.store), "1", "lax")


@pytest.mark.parametrize(
    ("arms", "message"),
    [
        ([{"name": "far", "set": {"place.store": "/tmp"}}], r'the arm "far" sets place.store'),
        ([{"name": "far", "set": {"crawl.max_pages": 3}}], r'the arm "far" sets crawl.max_pages'),
        ([{"name": "typo", "set": {"pack.seq_length": 64}}], r'the arm "typo": .*unknown key pack.seq_length'),
        ([STRICT, COARSE], r"the arms change different settings"),
        ([STRICT, STRICT | {"name": "same"}], r"two arms have the same settings"),
        ([STRICT | {"name": "current"}], r'the arm "current" exists already'),
    ],
)
def test_arms_that_decide_nothing_or_leave_the_recipe_are_refused(
    arms: list[dict], message: str, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=message):
        recipe_in(tmp_path, *arms)


def test_tokens_that_accumulate_have_no_variants(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"tokens that accumulate have no variants"):
        recipe_in(tmp_path, STRICT, **{"encode.accumulate": True, "dedup_index.enabled": True})


def test_several_factors_need_all_their_combinations(tmp_path: Path) -> None:
    both = {"name": "both", "set": STRICT["set"] | COARSE["set"]}
    assert len(recipe_in(tmp_path, STRICT, COARSE, both).canary.settings) == 3
    tied = {"name": "other", "set": {path: 40 for path in both["set"]} | {"tokenizer.vocab_size": 270}}
    assert len(recipe_in(tmp_path, both, tied).canary.settings) == 2  # always changed together: one factor


def test_runs_of_an_arm_follow_its_annealing_and_replay(tmp_path: Path) -> None:
    late = {"name": "late", "set": {"train.anneal": {"share": 0.5, "mixture": {"texts": 1.0}}}}
    early = {"train.anneal": {"share": 0.25, "mixture": {"texts": 1.0}}}
    config = recipe_in(tmp_path, late, **early).canary
    current, arm = config.training(0, {"set": {}}), config.training(0, {"set": late["set"]})
    assert (current.anneal_from, arm.anneal_from) == (3, 2)
    replayed = config.training(0, {"set": {"train.replay": {"share": 0.5, "old": ["texts"]}}})
    assert replayed.replay is not None
    assert replayed.anneal == current.anneal


def test_without_arms_of_settings_the_recipe_has_no_variants(tmp_path: Path) -> None:
    recipe = recipe_in(tmp_path)
    assert "variants" not in recipe.stages("canary")
    assert "anneal" not in json.loads(recipe.text)["canary"]
    assert stages_of_variants(recipe) == MADE


def test_variants_are_not_counted_as_versions_to_keep(strict: Recipe) -> None:
    store = Store(strict.place.store)
    needed = {one.artifact: one.needed for one in survey(store, "arms", Retention(versions=1)).holdings}
    assert "newest" in needed["arms/shards@1"]
    assert needed["arms/shards@1.strict"] == needed["arms/shards@1"]


WEB = {"name": "current", "set": {}}
COST = CycleCost(CanaryConfig(steps=2, batch_size=8), 300, 32)


def arms_of(*variants: dict, weights: dict | None, sequences: list[dict], config: CanaryConfig = COST.config) -> list:
    return first(config, [WEB, *variants], sequences, weights, [], COST)["arms"]


def test_an_arm_has_the_current_mixture_of_the_sources_that_it_has() -> None:
    without = {"name": "without", "set": {"extract.files": []}}
    both, one = {"web": 300, "code": 100}, {"web": 300}
    explicit = arms_of(without, weights={"web": 0.5, "code": 0.5}, sequences=[both, one])
    assert [arm["weights"] for arm in explicit] == [{"code": 0.5, "web": 0.5}] * 2 + [{"web": 1.0}]
    natural = arms_of({"name": "strict", "set": {"x": 1}}, weights=None, sequences=[both, {"web": 100, "code": 100}])
    assert [arm["weights"]["web"] for arm in natural] == [0.75, 0.75, 0.5]


def test_a_source_that_an_arm_adds_needs_a_weight_in_a_mixture_that_is_set() -> None:
    more, one = {"web": 300, "books": 50}, {"web": 300}
    added = {"name": "books", "set": {"extract.files": ["books"]}}
    with pytest.raises(RecipeError, match=r'"books" has the source "books", which has no weight .*canary.current'):
        arms_of(added, weights={"web": 1.0}, sequences=[one, more])
    weighted = {"name": "books", "set": {**added["set"], "canary.current": {"web": 0.8, "books": 0.2}}}
    found = arms_of(weighted, weights={"web": 1.0}, sequences=[one, more])
    assert found[-1]["weights"] == {"books": 0.2, "web": 0.8}


def test_an_alpha_stays_within_the_repetition_cap_in_arms_of_settings_too() -> None:
    size = {"steps": 100, "batch_size": 100, "microbatch": 100}
    config = CanaryConfig(alpha={"language": 0}, repetition_cap=4, **size)
    current, strict = {"en": 100_000, "ja": 100}, {"en": 50_000, "ja": 50}
    other = {"name": "strict", "set": {"x": 1}}
    arms = first(config, [WEB, other], [current, strict], None, [], COST, "language")["arms"]
    assert [arm["weights"]["ja"] for arm in arms] == [0.04, 0.04, 0.02], "four times 100, and 50, of 10,000 sequences"


@pytest.mark.parametrize("groups", [{}, {"web": 1.0}])
@pytest.mark.parametrize(("alpha", "shares"), [({}, (0.8, 0.4, 0.4)), ({"language": 0}, (0.5, 0.33334, 0.33333))])
def test_groups_of_the_recipe_are_divided_by_the_tokens_of_each_arm(
    groups: dict[str, float], alpha: dict[str, float], shares: tuple[float, float, float]
) -> None:
    config = CanaryConfig(current=groups, alpha=alpha, steps=2, batch_size=8)
    current, more = {"web+en": 400, "web+ja": 100}, {"web+de": 400, "web+en": 400, "web+ja": 200}
    added = {"name": "german", "set": {"x": 1}}
    sequences = [current, more]
    arms = first(config, [WEB, added], sequences, groups or None, [], COST, "source+language")["arms"]
    assert arms[0]["weights"]["web+en"] == shares[0]
    assert (arms[2]["weights"]["web+de"], arms[2]["weights"]["web+en"]) == shares[1:]


def test_the_groups_of_the_mixture_of_an_arm_are_divided_like_those_of_the_recipe() -> None:
    current = {"web": 0.8, "books": 0.2}
    config = CanaryConfig(current=current, alpha={"language": 0}, steps=2, batch_size=8)
    counts = {"web+en": 400, "web+ja": 100, "books+en": 100}
    arm = {"name": "less web", "set": {"canary.current": {"web": 0.6, "books": 0.4}}}
    arms = first(config, [WEB, arm], [counts, counts], current, [], COST, "source+language")["arms"]
    assert [arm["weights"]["web+ja"] for arm in arms] == [0.4, 0.4, 0.3]


def test_a_group_that_only_some_arms_have_leaves_its_weight_to_the_others_and_a_new_one_needs_a_weight() -> None:
    config = CanaryConfig(current={"web": 0.6, "code": 0.4}, steps=2, batch_size=8)
    current, without = {"code+en": 100, "web+en": 300, "web+ja": 100}, {"web+en": 100, "web+ja": 100}
    other = {"name": "other", "set": {"x": 1}}

    def arms(counts: dict[str, int], weights: dict[str, float] = config.current) -> list:
        return first(config, [WEB, other], [current, counts], weights, [], COST, "source+language")["arms"]

    assert arms(without)[2]["weights"] == {"web+en": 0.5, "web+ja": 0.5}
    with pytest.raises(RecipeError, match=r'has the source "books\+en", which has no weight'):
        arms({**without, "books+en": 50})
    decided = {"code+en": 0.1, "web+en": 0.6, "web+ja": 0.3}
    assert arms({**current, "web+ja": 900}, decided)[2]["weights"] == decided, "a decision weights components"
    with pytest.raises(RecipeError, match=r'has the source "web\+de", which has no weight'):
        arms({**current, "web+de": 50}, decided)


def test_an_arm_that_is_accepted_already_is_not_trained_and_the_others_keep_their_numbers() -> None:
    accepted = {"name": "accepted", "set": {}}
    other = {"name": "other", "set": {"x": 1}}
    found = arms_of(accepted, other, weights=None, sequences=[{"web": 300}] * 3)
    assert [(arm["arm"], arm["kind"]) for arm in found] == [
        ("arm-0", "current"), ("arm-0-again", "A/A"), ("arm-2", "other"),
    ]  # fmt: skip


def test_a_budget_that_does_not_pay_for_all_arms_is_refused() -> None:
    config = CanaryConfig(steps=2, batch_size=8, budget={"runs": 19}, confirmations=5)
    cost = CycleCost(config, 300, 32)
    with pytest.raises(RecipeError, match=r"budget pays for 19.0 runs, and the least cycle needs 20.0"):
        first(config, [WEB, {"name": "other", "set": {"x": 1}}], [{"web": 300}] * 2, None, [], cost)
