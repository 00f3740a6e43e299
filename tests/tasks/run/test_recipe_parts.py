"""The sections of a recipe determine its stages: a complete run without crawl and canaries, from the shell."""

import json
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import RecipeError
from tasks.core.store import Store
from tasks.run.recipe import Recipe
from tasks.run.shell import main

RECIPE = """
name = "mine"

[[extract.files]]
name = "books"
kind = "text"
path = "{folder}/books/*.txt"

[[extract.files]]
name = "notes"
kind = "text"
path = "{folder}/notes/*.txt"

[annotate]
use = ["prose_score", "pii"]

[consolidate]
filters = []

[tokenizer]
vocab_size = 300

[encode]
heldout_share = 0.2

[pack]
seq_len = 16

[train]
mixture = {{ books = 0.75, notes = 0.25 }}
steps = 2
batch_size = 4
milestones = 1
model = {{ layers = 1, dim = 16, heads = 2, kv_heads = 1 }}

[place]
store = "{folder}/store"
mlflow = ""
"""
STAGES = (
    *("extract", "annotate", "dedup", "consolidate", "tokenizer", "encode", "pack"),
    *("train", "evaluate", "register"),
)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    for source in ("books", "notes"):
        (tmp_path / source).mkdir()
        for number in range(12):
            words = " ".join(f"{source}{number}x{place}" for place in range(60))
            (tmp_path / source / f"{number}.txt").write_text(f"{words}.\n")
    path = tmp_path / "mine.toml"
    path.write_text(RECIPE.format(folder=tmp_path))
    return path


def test_a_recipe_without_crawl_and_canaries_goes_from_files_to_a_model(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for stage in STAGES:
        assert main([stage, "--recipe", str(recipe)]) == 0, capsys.readouterr().err
    store = Store(str(tmp_path / "store"))
    run = json.loads(Artifact.open_at(store, ArtifactId("mine/checkpoint", "dev")).read("run.json"))
    assert run["weights"] == {"books": 0.75, "notes": 0.25}
    model = Artifact.open_at(store, ArtifactId("mine/model", "dev"))
    assert {ref.role for ref in model.record.inputs} == {"checkpoint", "scores", "tokenizer"}
    capsys.readouterr()
    assert main(["trace", "--recipe", str(recipe), "step:1"]) == 0
    assert "file://" in capsys.readouterr().out


def test_a_stage_outside_the_recipe_is_refused_with_the_section_to_add(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for stage, section in (("inject", "crawl"), ("finalist", "canary"), ("train_classifiers", "classifiers")):
        assert main([stage, "--recipe", str(recipe)]) == 2
        said = capsys.readouterr().err
        assert f"sluice: the recipe mine gives the stage {stage} nothing to do. Add the section [{section}]" in said


def test_without_a_mixture_sources_are_weighted_by_size(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe.write_text(recipe.read_text().replace("mixture = { books = 0.75, notes = 0.25 }\n", ""))
    for stage in STAGES[: STAGES.index("evaluate")]:
        assert main([stage, "--recipe", str(recipe)]) == 0, capsys.readouterr().err
    run = json.loads(
        Artifact.open_at(Store(str(recipe.with_name("store"))), ArtifactId("mine/checkpoint", "dev")).read("run.json")
    )
    total = sum(run["sequences"].values())
    assert run["weights"] == {name: pytest.approx(count / total, abs=1e-5) for name, count in run["sequences"].items()}


def read(text: str) -> Recipe:
    import tomllib

    from tasks.core.config import parse

    return parse(Recipe, tomllib.loads(f'name = "mine"\n{text}'), "mine.toml")


BOOKS = '[[extract.files]]\nname = "books"\nkind = "text"\npath = "/data/*.txt"\n'


@pytest.mark.parametrize(
    ("text", "makes"),
    [
        (BOOKS, ["documents"]),
        ("[crawl]\n", ["warc"]),
        ("[encode]\n" + BOOKS, ["documents", "tokens"]),
        ("[registry]\n" + BOOKS, ["documents", "tokens", "checkpoint"]),
        ("crawl.enabled = false\n[canary]\n" + BOOKS, ["documents", "tokens", "mixture"]),
        ('[examples]\nfiles = ["/data/rows.jsonl"]\n[finetune]\nbase = "other/checkpoint@dev"\n', []),
    ],
)
def test_the_stages_follow_from_the_sections_and_survive_text_and_override(text: str, makes: list[str]) -> None:
    recipe = read(text)
    assert recipe.makes == tuple(makes)
    assert Recipe.from_text(recipe.text) == recipe
    assert recipe.override({"train.steps": 7, "canary.steps": 3}).makes == tuple(makes)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the recipe makes nothing: add a section"),
        ('makes = ["checkpoint", "tokens"]\n' + BOOKS, 'makes: "checkpoint" is made from "documents": add it'),
        ('makes = ["warc", "documents"]\n' + BOOKS, r'makes: "warc" needs a section \[crawl\]: add it'),
        ('makes = ["documents"]\n[crawl]\n' + BOOKS, r'makes: without "warc" the section \[crawl\] has no effect: add'),
        ('makes = ["pages"]\n' + BOOKS, r"makes\.0: Input should be 'warc', 'documents'"),
        (BOOKS + "[train]\nmixture = { bokks = 1.0 }", 'train.mixture: the recipe has no source "bokks"'),
        (BOOKS + "[train]\nmixture = { books = 0.5 }", "train.mixture: the weights sum to 0.5"),
        (BOOKS + "[canary]\n[train]\nmixture = { books = 1.0 }", "train.mixture: the canaries decide the mixture"),
    ],
)
def test_impossible_combinations_are_refused(text: str, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        read(text)


def test_a_crawl_that_is_off_is_not_missed_in_makes() -> None:
    assert read('makes = ["documents"]\ncrawl.enabled = false\n' + BOOKS).makes == ("documents",)


def test_sections_of_inactive_stages_are_not_checked_against_others() -> None:
    canary = "[canary]\ncurrent = { web = 1.0 }\n"
    with pytest.raises(RecipeError, match='no source "web"'):
        read(BOOKS + canary)
    assert read('makes = ["documents"]\n' + BOOKS + canary).makes == ("documents",)
