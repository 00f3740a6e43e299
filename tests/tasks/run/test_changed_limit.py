"""Contract of a changed limit: it reruns the join, and nothing is extracted or measured again."""

from pathlib import Path

import pytest

from tasks.core.ledger import Ledger
from tasks.run.recipe import Recipe, find_recipe
from tasks.run.result import StageResult
from tasks.run.runner import open_store, run_stage
from tasks.run.tracking import TrackingContext

STAGES = ("extract", "annotate", "dedup", "consolidate")
# Without the language model, so that this needs no download.
USE = ["gopher_quality", "gopher_repetition", "prose_score", "pii"]


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return recipe_in(tmp_path)


def recipe_in(folder: Path) -> Recipe:
    """Returns the recipe of eight short texts, with files and store in a folder."""
    (folder / "texts").mkdir()
    for number in range(8):
        text = "the and of " + " ".join(f"w{number}x{place}" for place in range(80 if number else 30))
        (folder / "texts" / f"{number}.txt").write_text(f"{text}.")
    return find_recipe("demo").override(
        {
            "place.store": str(folder / "store"),
            "crawl.enabled": False,
            "canary.current": {},
            "extract.files": [{"name": "texts", "kind": "text", "path": f"{folder}/texts/*.txt"}],
            "extract.min_chars": 1,
            "annotate.use": USE,
            "consolidate.filters": ["gopher_quality", "gopher_repetition"],
            "consolidate.sources": ["texts"],
        }
    )


def run(recipe: Recipe, version: str, source_version: str | None = None) -> dict[str, StageResult]:
    tracking = TrackingContext("", recipe.name)
    return {
        stage: run_stage(recipe, stage, version=version, source_version=source_version, tracking=tracking)
        for stage in STAGES
    }


def test_a_changed_limit_reruns_only_consolidate(recipe: Recipe) -> None:
    first = run(recipe, "1")
    assert not any(result.skipped for result in first.values())
    looser = recipe.override({"consolidate.limits.gopher_quality.min_words": 5})
    second = run(looser, "2", source_version="1")
    assert {stage for stage in STAGES if not second[stage].skipped} == {"consolidate"}
    assert second["consolidate"].rows["out"] == first["consolidate"].rows["out"] + 1
    ledger = Ledger(open_store(recipe))
    made = {str(artifact.address): artifact.record.adopted_from for artifact in ledger}
    assert {name: source for name, source in made.items() if name.endswith("@2")} == {
        "demo/extracted@2": "demo/extracted@1",
        "demo/attributes@2": "demo/attributes@1",
        "demo/duplicates@2": "demo/duplicates@1",
        "demo/documents@2": "",
    }
    read = {"demo/attributes@2", "demo/duplicates@2", "demo/extracted@2"}
    assert read < set(ledger.ancestors("demo/documents@2"))


def test_changed_measurements_rerun_the_stages_from_annotate_on(recipe: Recipe) -> None:
    run(recipe, "1")
    again = run(recipe.override({"annotate.settings.prose_score.full_length": 9000}), "2", source_version="1")
    assert {stage for stage in STAGES if not again[stage].skipped} == {"annotate", "dedup", "consolidate"}


def test_without_a_source_version_nothing_is_adopted(recipe: Recipe) -> None:
    run(recipe, "1")
    assert not any(result.skipped for result in run(recipe, "2").values())
