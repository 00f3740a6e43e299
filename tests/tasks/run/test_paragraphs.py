"""Contract of repeated paragraphs through a recipe: documents are rejected or cut, and traced to the counts."""

import json
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import RecipeError
from tasks.run.forecast import compare
from tasks.run.recipe import Recipe, find_recipe
from tasks.run.runner import open_store, run_stage
from tasks.run.trace.text import render
from tasks.run.trace.trace import trace
from tasks.run.tracking import TrackingContext
from tests.tasks.run.test_recipe_parts import RECIPE
from tests.tasks.stages.dedup.made import rows_of

REFINE = ("extract", "annotate", "dedup", "paragraphs", "consolidate")
FOOTER = "Every right of the old harbour museum is reserved, and " + " ".join(f"clause{n}" for n in range(40)) + "."
MOSTLY, PARTLY, ALL = (f"file://notes/{number}.txt" for number in (5, 6, 7))


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """A recipe in which one note is mostly, one partly and one almost completely a text that books also contain.

    Files have no capture time: the first text is the one with the lowest id, here a book.
    """
    for source in ("books", "notes"):
        (tmp_path / source).mkdir()
        for number in range(8):
            words = " ".join(f"{source}{number}x{place}" for place in range(60))
            (tmp_path / source / f"{number}.txt").write_text(f"{words}.\n\n{FOOTER if source == 'books' else ''}\n")
    own = " ".join(f"own{place}" for place in range(30))
    (tmp_path / "notes" / "5.txt").write_text(f"{FOOTER}\n\n{own}.\n")
    (tmp_path / "notes" / "6.txt").write_text(
        f"above {own}.\n\n  {FOOTER}\n\nbehind {own} {own} {own} ann@example.org.\n"
    )
    (tmp_path / "notes" / "7.txt").write_text(f"{FOOTER}\n\nShort.\n")
    (tmp_path / "mine.toml").write_text(RECIPE.format(folder=tmp_path) + "\n[paragraphs]\nenabled = true\n")
    return Recipe.load(tmp_path / "mine.toml").override({"consolidate.sources": ["notes"], "consolidate.filters": []})


def made(recipe: Recipe, version: str, source: str | None = None) -> list[str]:
    """Runs the stages; returns those that were not skipped."""
    context = TrackingContext("", recipe.name)
    results = {
        stage: run_stage(recipe, stage, version=version, source_version=source, tracking=context) for stage in REFINE
    }
    return [stage for stage, result in results.items() if not result.skipped]


def documents(recipe: Recipe, version: str) -> Artifact:
    return Artifact.open_at(open_store(recipe), ArtifactId(f"{recipe.name}/documents", version))


def test_a_document_that_mostly_repeats_others_is_rejected_with_that_reason_and_traced_to_the_counts(
    recipe: Recipe,
) -> None:
    assert recipe.stages("corpus") == REFINE
    made(recipe, "1")
    rejected = {row["url"]: row for row in rows_of(documents(recipe, "1"), "rejected/")}
    assert {url: row["reasons"] for url, row in rejected.items()} == {
        url: ["repeated_paragraphs"] for url in (MOSTLY, ALL)
    }
    assert rejected[ALL]["repeated_paragraphs"]["share"] > 0.95
    assert rejected[MOSTLY]["repeated_paragraphs"]["words_left"] == 30
    assert "repeated_paragraphs: share " in documents(recipe, "1").read("audit.html").decode()
    told = render(trace(open_store(recipe), recipe.name, "1", MOSTLY))
    counts = "  repeats    1 paragraphs, the most common of 11 documents on 2 domains"
    assert f"  rejected   repeated_paragraphs\n{counts}" in told


def test_documents_lose_repeated_paragraphs_and_are_dropped_if_too_short(recipe: Recipe) -> None:
    made(recipe, "1")
    settings = {"repeated_share": 1, "cut_repeated": 20}
    said = compare(open_store(recipe), recipe.name, recipe.consolidate, settings, "1")
    assert "1 documents would be kept, 0 would be dropped" in said
    cutting = recipe.override({f"consolidate.{name}": value for name, value in settings.items()})
    assert made(cutting, "2", "1") == ["consolidate"]
    kept = {row["url"]: row["text"] for row in rows_of(documents(recipe, "2"), "kept/")}
    own = " ".join(f"own{place}" for place in range(30))
    assert kept[MOSTLY] == f"{own}."
    assert kept[PARTLY] == f"above {own}.\n\nbehind {own} {own} {own} <email>."
    assert ALL not in kept
    assert sum(FOOTER in text for url, text in kept.items() if "books" in url) == 8  # no filtered source


def test_a_recipe_without_the_section_has_no_such_stage_and_unchanged_settings() -> None:
    recipe = find_recipe("demo")
    assert "paragraphs" not in recipe.stages("corpus")
    assert not {"repeated_share", "cut_repeated"} & json.loads(recipe.text)["consolidate"].keys()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"paragraphs.min_documents": 1}, "paragraphs.min_documents"),
        ({"paragraphs.min_domains": 3, "paragraphs.max_domains": 2}, "max_domains = 2 is less than min_domains = 3"),
        ({"consolidate.repeated_share": 1.5}, "consolidate.repeated_share"),
        (
            {
                "consolidate.cut_repeated": 5,
                "consolidate.drop_lines": True,
                "consolidate.filters": ["c4"],
                "consolidate.limits": {},
            },
            "drop_lines and cut_repeated together could remove all lines of a text",
        ),
    ],
)
def test_invalid_settings_are_refused_with_a_remedy(settings: dict[str, object], said: str) -> None:
    with pytest.raises(RecipeError) as caught:
        find_recipe("demo").override(settings)
    assert said in str(caught.value)
