"""A cycle whose arms are settings: tokens of their own, the same held-out text, and a decision that the next one uses."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError, RecipeError
from tasks.core.store import Store
from tasks.formats.tokens.shard import ShardSet
from tasks.run.recipe import Recipe, find_recipe
from tasks.run.result import StageResult
from tasks.run.retention import survey
from tasks.run.runner import run_stage
from tasks.run.tracking import TrackingContext
from tasks.run.variants import stages_of_variants, variant_of
from tests.corpora import WORDS
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


def decide(recipe: Recipe, version: str = "1") -> dict:
    """Runs the stages after the variants; returns the decision."""
    for member in run(recipe, "arms", version, "round-1").members:
        run(recipe, "canary", version, member)
    for member in run(recipe, "finalist", version).members:
        run(recipe, "confirm", version, member)
    run(recipe, "decide", version)
    return json.loads(opened(recipe, "mixture", version).read("mixture.json"))


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recipe]:
    """A recipe whose cycle with a filter limit has run at version 1."""
    with training_in_process():
        recipe = recipe_in(tmp_path_factory.mktemp("strict"), STRICT)
        for stage in MADE:
            run(recipe, stage)
        yield recipe


def test_an_arm_of_settings_is_made_by_the_same_stages_and_decided_like_a_mixture(strict: Recipe) -> None:
    assert make_variants(strict) == {"current": set(), "strict": {"consolidate", "tokenizer", "encode", "pack"}}
    decision = decide(strict)
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
