"""Contract of contamination through a recipe: rejected with the item's name, or kept and reported with the scores."""

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

SETS = """
[[decontaminate.sets]]
name = "quiz"
path = "{path}"
fields = ["query"]
id_field = "key"
"""
REFINE = ("extract", "annotate", "dedup", "decontaminate", "consolidate")
PAGE = "file://notes/5.txt"


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """A recipe whose set has one item that occurs in a note, and one that occurs nowhere."""
    for source in ("books", "notes"):
        (tmp_path / source).mkdir()
        for number in range(12):
            words = " ".join(f"{source}{number}x{place}" for place in range(60))
            (tmp_path / source / f"{number}.txt").write_text(f"{words}.\n")
    items = [" ".join(f"{source}5x{place}" for place in range(20)) for source in ("notes", "nowhere")]
    path = tmp_path / "quiz.jsonl"
    path.write_text("".join(f"{json.dumps({'query': item, 'key': f'q{n}'})}\n" for n, item in enumerate(items)))
    (tmp_path / "mine.toml").write_text(RECIPE.format(folder=tmp_path) + SETS.format(path=path))
    return Recipe.load(tmp_path / "mine.toml")


def made(recipe: Recipe, stages: tuple[str, ...], version: str, source: str | None = None) -> list[str]:
    """Runs stages; returns those that were not skipped."""
    context = TrackingContext("", recipe.name)
    results = {
        stage: run_stage(recipe, stage, version=version, source_version=source, tracking=context) for stage in stages
    }
    return [stage for stage, result in results.items() if not result.skipped]


def artifact(recipe: Recipe, kind: str, version: str) -> Artifact:
    return Artifact.open_at(open_store(recipe), ArtifactId(f"{recipe.name}/{kind}", version))


def test_a_contaminated_document_is_rejected_with_the_item_and_traced_to_it(recipe: Recipe) -> None:
    assert recipe.stages("corpus") == REFINE
    made(recipe, REFINE, "1")
    documents = artifact(recipe, "documents", "1")
    (row,) = [row for row in rows_of(documents, "rejected/") if row["url"] == PAGE]
    assert row["reasons"] == ["contaminated"]
    assert (row["contaminated"]["set"], row["contaminated"]["item"], row["contaminated"]["share"]) == ("quiz", "q0", 1)
    (lost,) = [row for row in documents.table("funnel.parquet").to_pylist() if row["reason"] == "contaminated"]
    assert (lost["step"], lost["documents"]) == ("decontaminate", 1)
    page = documents.read("audit.html").decode()
    assert "contaminated: begin 0 · end " in page
    assert "item q0" in page
    answer = trace(open_store(recipe), recipe.name, "1", PAGE)
    found = answer.to_json()
    assert found["documents"][0]["items"] == [{"set": "quiz", "item": "q0", "share": 1, "words": 20}]
    assert "rejected   contaminated\n  contains   quiz q0 (100%, 20 words)" in render(answer)


def test_changing_the_contamination_limit_reruns_only_consolidate(recipe: Recipe) -> None:
    made(recipe, REFINE, "1")
    keeping = recipe.override({"consolidate.contaminated": "keep"})
    said = compare(open_store(recipe), recipe.name, recipe.consolidate, {"contaminated": "keep"}, "1")
    assert "1 documents would be kept, 0 would be dropped" in said
    assert f"contaminated -> kept  {PAGE}" in said
    assert made(keeping, REFINE, "2", "1") == ["consolidate"]
    assert PAGE in {row["url"] for row in rows_of(artifact(recipe, "documents", "2"), "kept/")}


def test_scores_name_the_items_that_the_model_was_trained_on(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "clean.jsonl").write_text(json.dumps({"query": " ".join(f"other{place}" for place in range(20))}))
    (tmp_path / "short.jsonl").write_text(json.dumps({"query": "a"}))
    clean = {"name": "clean", "path": f"{tmp_path}/clean.jsonl", "fields": ["query"]}
    keeping = recipe.override(
        {
            "decontaminate.sets": [*json.loads(recipe.text)["decontaminate"]["sets"], clean],
            "evaluate.tasks": [
                {"name": name, "kind": "cloze", "path": f"{tmp_path}/{file}.jsonl", "prompt": "{{query}}"}
                | {"answer": "query", "limit": 1, "delimiter": "\n", "evaluation_set": of}
                for name, file, of in [("quiz", "short", ""), ("again", "short", "clean"), ("other", "short", "")]
            ],
            **{"consolidate.contaminated": "keep", "train.steps": 20, "encode.heldout_share": 0.1},
        }
    )
    made(keeping, (*REFINE, "tokenizer", "encode", "pack", "train", "evaluate"), "1")
    scores = artifact(keeping, "scores", "1")
    assert json.loads(scores.read("scores.json"))["contamination"] == {
        "contaminated": True,
        "problem": "",
        "sets": {"quiz": {"items": 1, "documents": 1}, "clean": {"items": 0, "documents": 0}},
    }
    assert scores.record.metrics["contaminated_items/quiz"] == 1
    flags = {score["task"]: score["contamination"] for score in json.loads(scores.read("scores.json"))["tasks"]}
    assert flags == {"quiz": {"items": 1, "documents": 1}, "again": {"items": 0, "documents": 0}, "other": None}
    assert scores.record.note.endswith("; has read 1 items of quiz")
    told = render(trace(open_store(recipe), recipe.name, "1", PAGE))
    assert "  kept  " in told
    assert "  contains   quiz q0 (100%, 20 words)" in told


def test_a_recipe_without_sets_has_no_such_stage_and_unchanged_settings() -> None:
    recipe = find_recipe("demo")
    assert "decontaminate" not in recipe.stages("corpus")
    assert "contaminated" not in json.loads(recipe.text)["consolidate"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sets": [{"name": "quiz", "path": "q.jsonl", "fields": ["query"]}]}, 'the path "q.jsonl" is not absolute'),
        ({"sets": [{"name": "quiz", "path": "/quiz.jsonl"}]}, "decontaminate.sets.0.fields"),
        ({"sets": [{"name": "Quiz!", "path": "/quiz.jsonl", "fields": ["query"]}]}, "decontaminate.sets.0.name"),
        (
            {"sets": [{"name": "quiz", "path": f"/{n}.jsonl", "fields": ["query"]} for n in "ab"]},
            'two have the name "quiz": rename one',
        ),
        ({"shortest": 14}, "decontaminate.shortest: 14 is more than ngram = 13"),
        (
            {"sets": [{"name": "quiz", "path": "/q", "fields": ["query"], "fild": 1}]},
            "unknown key decontaminate.sets.0.fild",
        ),
    ],
)  # fmt: skip
def test_invalid_settings_are_refused_with_a_remedy(settings: dict[str, object], said: str) -> None:
    with pytest.raises(RecipeError) as caught:
        find_recipe("demo").override({f"decontaminate.{name}": value for name, value in settings.items()})
    assert said in str(caught.value)
