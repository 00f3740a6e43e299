"""The dedup index that the stages of a version read."""

from pathlib import Path

from tasks.core.artifact import Artifact, ArtifactId
from tasks.run.recipe import Recipe
from tasks.run.runner import StageResult, open_store, run_stage
from tasks.run.trace.audit import audit
from tasks.run.tracking import TrackingContext
from tests.tasks.run.test_adopted import MAX_REPEATED, REFINE, small_recipe

STAGES = (*REFINE, "dedup_index")


def run(recipe: Recipe, version: str, source_version: str | None = None) -> dict[str, StageResult]:
    context = TrackingContext("", recipe.name)
    return {
        stage: run_stage(recipe, stage, version=version, source_version=source_version, tracking=context)
        for stage in STAGES
    }


def read_by(recipe: Recipe, kind: str, version: str) -> list[str]:
    record = Artifact.open_at(open_store(recipe), ArtifactId(f"smoke/{kind}", version)).record
    return [ref.address for ref in record.inputs if ref.role == "index"]


def test_all_stages_read_the_index_of_the_previous_or_source_version(
    tmp_path: Path,
) -> None:
    recipe = small_recipe(tmp_path).override({"dedup_index.enabled": True})
    run(recipe, "1")
    (tmp_path / "books" / "new.txt").write_text("the and of " + " ".join(f"new{place}" for place in range(90)) + ".\n")
    second = run(recipe, "2")
    kinds = ("extracted", "duplicates", "dedup_index")
    assert [read_by(recipe, kind, "2") for kind in kinds] == [["smoke/dedup_index@1"]] * 3
    assert second["dedup_index"].metrics["added"] == 1
    assert not any(result.skipped for result in second.values())
    # Another limit for the same documents is not a new cycle: the source version's artifacts are adopted.
    tried = run(recipe.override({MAX_REPEATED: 0.31}), "2-tried", "2")
    assert [stage for stage, result in tried.items() if not result.skipped] == ["consolidate", "dedup_index"]
    assert [read_by(recipe, kind, "2-tried") for kind in kinds] == [["smoke/dedup_index@1"]] * 3
    again = run(recipe, "2")
    assert all(result.skipped for result in again.values())


def test_an_adopted_index_is_read_like_its_source(tmp_path: Path) -> None:
    recipe = small_recipe(tmp_path).override({"dedup_index.enabled": True})
    run(recipe, "1")
    assert all(result.skipped for result in run(recipe, "1-same", "1").values())
    (tmp_path / "books" / "new.txt").write_text("the and of " + " ".join(f"new{place}" for place in range(90)) + ".\n")
    second = run(recipe, "2")
    assert read_by(recipe, "dedup_index", "2") == ["smoke/dedup_index@1-same"]
    assert second["dedup_index"].metrics["added"] == 1
    third = run(recipe, "3")
    assert (third["dedup_index"].metrics["added"], third["dedup_index"].metrics["documents"]) == (
        0,
        second["dedup_index"].metrics["documents"],
    )


def test_the_takedown_audit_covers_the_index_and_the_next_version_cleans_it(tmp_path: Path) -> None:
    recipe = small_recipe(tmp_path).override({"dedup_index.enabled": True})
    run(recipe, "1")
    store = open_store(recipe)
    index = Artifact.open_at(store, ArtifactId("smoke/dedup_index", "1"))
    gone = index.table(index.files("names/")[0]).column("id")[0].as_py()
    request = recipe.override({"takedown.documents": gone, "takedown.reason": "asked for"})
    run_stage(request, "takedown", version="t1", tracking=TrackingContext("", recipe.name))

    def present() -> dict[str, int]:
        return {one["artifact"]: one["present"] for one in audit(store, "smoke").to_json()["checked"]}

    assert present()["smoke/dedup_index@1"] == 1
    run(recipe, "2")
    assert present() == {"smoke/documents@2": 0, "smoke/dedup_index@2": 0}
