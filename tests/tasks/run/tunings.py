"""A store with a model and fine-tunings on chunks of text and PDF files. Not a test module."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.store import Store
from tasks.run.recipe import Recipe
from tasks.run.result import StageResult
from tasks.run.runner import run_stage
from tasks.run.tracking import TrackingContext
from tests.tasks.run.test_recipe_parts import RECIPE
from tests.tasks.stages.extract.made_pdf import lines, pdf, show
from tests.tasks.trainer.in_process import training_in_process

STAGES = ("extract", "annotate", "dedup", "consolidate", "tokenizer", "encode", "pack", "chunks", "train")
PAPER = "file://papers/doors.pdf"
SETTINGS = """
[[extract.files]]
name = "papers"
kind = "pdf"
path = "{folder}/papers/*.pdf"

[extract.parsers.pdf]

[chunks]
enabled = true
max_tokens = 256
min_tokens = 16

[examples]
seq_len = 512
heldout_share = 0.0

[examples.chunks]

[finetune]
base = "mine/checkpoint@1"
steps = 4
batch_size = 2
microbatch = 1
milestones = 2

[finetune.lora]
rank = 2
"""


@dataclass(frozen=True)
class Tunings:
    """A recipe `mine` whose version 1 has a model and a fine-tuned one; `run` creates other versions."""

    recipe: Recipe
    store: Store

    def run(self, stage: str, version: str, source_version: str | None = "1", **overrides: object) -> StageResult:
        recipe = self.recipe.override({name.replace("__", "."): value for name, value in overrides.items()})
        tracking = TrackingContext("", recipe.name)
        return run_stage(recipe, stage, version=version, source_version=source_version, tracking=tracking)

    def tune(self, version: str, **overrides: object) -> Artifact:
        for stage in ("examples", "finetune"):
            self.run(stage, version, **overrides)
        return self.artifact("finetuned", version)

    def copied(self, folder: Path) -> "Tunings":
        """Returns a copy in another store."""
        shutil.copytree(self.store.root, folder)
        return Tunings(self.recipe.override({"place.store": str(folder)}), Store(str(folder)))

    def artifact(self, kind: str, version: str) -> Artifact:
        return Artifact.open_at(self.store, ArtifactId(f"{self.recipe.name}/{kind}", version))


def write_files(folder: Path) -> None:
    for source in ("books", "notes"):
        (folder / source).mkdir(parents=True)
        for number in range(6):
            words = " ".join(f"{source}{number}x{place}" for place in range(20))
            (folder / source / f"{number}.txt").write_text(f"# Part {number}\n\n{words}.\n")
    (folder / "papers").mkdir()
    body = [f"The door number {n} of the old museum opens at nine in the" for n in range(6)]
    pages = []
    for number, word in enumerate(("Doors", "Windows"), 1):
        heading = show(60, 780, f"{number} {word}", size=18, font="F2")
        pages.append(heading + lines(60, 740, [line.replace("door", word) for line in body]))
    (folder / "papers" / "doors.pdf").write_bytes(pdf(pages))


@pytest.fixture(scope="module")
def tunings(tmp_path_factory: pytest.TempPathFactory) -> Tunings:
    folder = tmp_path_factory.mktemp("tunings")
    write_files(folder)
    (folder / "mine.toml").write_text((RECIPE + SETTINGS).format(folder=folder))
    found = Tunings(Recipe.load(folder / "mine.toml"), Store(str(folder / "store")))
    with training_in_process():
        for stage in STAGES:
            found.run(stage, "1")
        found.tune("1")
    return found
