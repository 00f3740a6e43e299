"""Contract of chunks through a recipe: off by default, in the DAG of the tokens, and traced from the document."""

import json
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import RecipeError
from tasks.run.recipe import Recipe, find_recipe
from tasks.run.runner import open_store, run_stage
from tasks.run.trace.text import render
from tasks.run.trace.trace import trace
from tasks.run.tracking import TrackingContext
from tests.tasks.run.test_recipe_parts import RECIPE
from tests.tasks.stages.chunks.made import rows_of

STAGES = ("extract", "annotate", "dedup", "consolidate", "tokenizer", "encode", "chunks")
MANUAL = "file://notes/manual.txt"
SETTINGS = '\n[chunks]\nenabled = true\nmax_tokens = 64\nmin_tokens = 16\ncode_sources = ["books"]\n'


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """A recipe of some books and notes, one of which has headings and ends with one."""
    for source in ("books", "notes"):
        (tmp_path / source).mkdir()
        for number in range(6):
            words = " ".join(f"{source}{number}x{place}" for place in range(60))
            (tmp_path / source / f"{number}.txt").write_text(f"# {words}.\n")
    doors = " ".join(f"Door {number} of the museum opens at nine." for number in range(12))
    (tmp_path / "notes" / "manual.txt").write_text(f"# Museum\n\n## Doors\n\n{doors}\n\n## Nothing\n")
    (tmp_path / "mine.toml").write_text(RECIPE.format(folder=tmp_path) + SETTINGS)
    return Recipe.load(tmp_path / "mine.toml")


def test_a_document_is_traced_to_its_chunks_and_to_rejected_ones_with_reasons(recipe: Recipe) -> None:
    assert recipe.stages("tokens") == ("tokenizer", "encode", "pack", "chunks")
    context = TrackingContext("", recipe.name)
    for stage in STAGES:
        run_stage(recipe, stage, version="1", tracking=context)
    made = Artifact.open_at(open_store(recipe), ArtifactId(f"{recipe.name}/chunks", "1"))
    assert {ref.role for ref in made.record.inputs} == {"code:words", "documents", "extracted", "tokenizer"}
    assert {row["kind"] for row in rows_of(made) if row["source"] == "books"} == {"code"}
    mine = [row for row in rows_of(made) if row["url"] == MANUAL]
    assert mine[0]["text"].startswith("# Museum\n\n## Doors\n\nDoor 0 of")
    assert {tuple(row["headings"]) for row in mine[1:]} == {("Museum", "Doors")}
    assert {tuple(row["sections"]) for row in mine} == {("Museum", "Doors")}
    assert [row["text"][row["body"] :][:4] for row in mine[:1]] == ["Door"]
    assert [row["body"] for row in mine[1:]] == [0] * (len(mine) - 1)
    assert {row["title"] for row in mine} == {"manual.txt"}
    told = render(trace(open_store(recipe), recipe.name, "1", MANUAL)).split("\n")
    at = next(number for number, line in enumerate(told) if line.startswith("  chunks     "))
    rejected = [row for row in rows_of(made, "rejected/") if row["url"] == MANUAL]
    assert told[at] == f"  chunks     {len(mine)} of {len(mine) + len(rejected)} kept"
    second = mine[1]
    place = f"{second['start']:,} .. {second['end'] - 1:,}"
    assert f"    {second['id']}  {place}  {second['tokens']} tokens, in Museum > Doors" in told
    assert [row["reason"] for row in rejected] == ["heading_only"]
    end = rejected[0]["end"]
    assert told[at + len(mine) + 1].endswith(f"{end - 10} .. {end - 1}  rejected: heading_only")


def test_a_recipe_without_the_section_has_no_such_stage() -> None:
    recipe = find_recipe("demo")
    assert "chunks" not in recipe.stages("tokens")
    assert not json.loads(recipe.text)["chunks"]["enabled"]


def test_a_missing_code_source_is_named(recipe: Recipe) -> None:
    with pytest.raises(RecipeError, match=r'chunks.code_sources: the recipe has no source "book"'):
        recipe.override({"chunks.code_sources": ["book"]})
