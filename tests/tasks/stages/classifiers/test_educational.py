"""A classifier of educational value from own labels, from a recipe to verdicts."""

import json
import random
import tomllib
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.run.recipe import Recipe, find_recipe
from tasks.run.runner import open_store, run_stage
from tasks.run.tracking import TrackingContext
from tests.tasks.stages.classifiers.texts_by_hand import jsonl
from tests.tasks.stages.dedup.made import found_in

THINGS = ("a cell", "the derivative", "an atom", "the Roman senate", "a prime number", "photosynthesis", "the heart")
EXPLAINED = (
    "{} is defined as follows, and an example shows why the definition is useful.",
    "To see how {} works, consider first the simplest case, and then the general one.",
    "It follows that {} can be described by the same law that we derived in the last chapter.",
    "Exercise: explain in your own words how {} differs from {}.",
    "The diagram shows {} together with {}, which students often confuse with one another.",
)
CHATTER = (
    "omg did you see {} lol, i was like no way!!",
    "whatever, my cousin said {} is so last year haha",
    "anyone up for pizza later? also {} who cares",
    "cant believe she posted about {} again, so cringe",
    "happy friday everyone!! {} and {} can wait till monday lol",
)
STAGES = ("extract", "train_classifiers", "annotate", "dedup", "consolidate")
RECIPE = """
[[classifiers.train]]
name = "educational"
purpose = "Tells texts that teach from chatter."
positive = "educational"
heldout_share = 0.3
fasttext = { epochs = 25, learning_rate = 0.5, dimensions = 8, buckets = 1000 }

# Grades of 0 to 5, as people or a language model give them: what has 3 or more teaches something.
[[classifiers.train.texts]]
path = "LABELLED/*.jsonl"
label_field = "grade"
relabel = { 0 = "other", 1 = "other", 3 = "educational", 4 = "educational", 5 = "educational" }

[annotate]
use = ["classifier", "prose_score"]
settings.classifier.models = ["educational"]

[consolidate]
filters = ["classifier"]
limits.classifier.at_least = { educational = 0.5 }
sources = ["texts"]
mask_pii = false
dedup = false
gold = { "classifier.educational" = 0.8 }
"""


def lines_of(patterns: tuple[str, ...], seed: int) -> str:
    draw = random.Random(seed)
    return "\n".join(draw.choice(patterns).format(*draw.sample(THINGS, 2)) for _ in range(8))


def textbook(seed: int) -> str:
    return lines_of(EXPLAINED, seed)


def chatter(seed: int) -> str:
    return lines_of(CHATTER, 10_000 + seed)


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """Labels in two files, and a corpus of 20 educational texts and 20 others, all unlabeled."""
    folder = tmp_path / "labelled"
    folder.mkdir()
    jsonl(folder / "graders.jsonl", ({"text": textbook(seed), "grade": 3 + seed % 3} for seed in range(100)))
    unsure = [{"text": f"{textbook(1)} {chatter(1)}", "grade": 2}]
    jsonl(folder / "more.jsonl", [*({"text": chatter(seed), "grade": seed % 2} for seed in range(100)), *unsure])
    (tmp_path / "texts").mkdir()
    for seed in range(20):
        (tmp_path / "texts" / f"teaches-{seed}.txt").write_text(textbook(1000 + seed))
        (tmp_path / "texts" / f"chats-{seed}.txt").write_text(chatter(1000 + seed))
    plain = {
        "place.store": str(tmp_path / "store"),
        "crawl.enabled": False,
        "canary.current": {},
        "extract.files": [{"name": "texts", "kind": "text", "path": f"{tmp_path}/texts/*.txt"}],
    }
    return find_recipe("demo").override(plain | tomllib.loads(RECIPE.replace("LABELLED", str(folder))))


def test_a_classifier_trained_on_own_labels_decides_which_documents_are_kept(recipe: Recipe) -> None:
    made = {stage: run_stage(recipe, stage, tracking=TrackingContext("", "demo")) for stage in STAGES}
    assert made["train_classifiers"].metrics["educational_auc"] > 0.95
    documents = held(recipe, "documents")
    assert urls(documents, "kept/") == {f"file://texts/teaches-{seed}.txt" for seed in range(20)}
    assert urls(documents, "rejected/") == {f"file://texts/chats-{seed}.txt" for seed in range(20)}
    assert made["consolidate"].rows == {"in": 40, "out": 20, "classifier_educational_low": 20}
    scores = {row["id"]: row["classifier"]["educational"] for row in found_in(held(recipe, "attributes"))}
    for row in rows_of(documents, "kept/"):
        assert row["tier"] == ("gold" if scores[row["id"]] >= 0.8 else "silver")


def test_the_model_card_states_training_data_and_held_out_accuracy(recipe: Recipe) -> None:
    for stage in ("extract", "train_classifiers"):
        run_stage(recipe, stage, tracking=TrackingContext("", "demo"))
    models = held(recipe, "classifiers")
    scores, card = json.loads(models.read("educational/scores.json")), models.read("educational/card.md").decode()
    assert "Tells texts that teach from chatter." in card
    assert f"| educational | {scores['auc']:.3f} ± {scores['auc_standard_error']:.3f} |" in card
    assert f"| length of the text alone | {scores['baselines']['length']['auc']:.3f} |" in card
    for label, file in (("educational", "graders.jsonl"), ("other", "more.jsonl")):
        assert f"| {label} | {file} |" in card
    assert "1 other_label" in card  # a grade missing in `relabel`
    assert sum(scores["heldout"].values()) > 40


def held(recipe: Recipe, kind: str) -> Artifact:
    return Artifact.open_at(open_store(recipe), ArtifactId(f"demo/{kind}", "dev"))


def rows_of(artifact: Artifact, folder: str) -> list[dict]:
    return [row for path in artifact.files(folder) for row in artifact.table(path).to_pylist()]


def urls(artifact: Artifact, folder: str) -> set[str]:
    return {row["url"] for row in rows_of(artifact, folder)}
