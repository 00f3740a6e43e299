"""Versions of a recipe that differ only in their models: milestones of one short training, each as a checkpoint."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.run.recipe import Recipe, find_recipe
from tasks.run.result import StageResult
from tasks.run.runner import run_stage
from tasks.run.tracking import TrackingContext
from tasks.stages.tokens import EncodeConfig
from tasks.trainer.config import TrainConfig
from tests.conftest import run_stage_in
from tests.corpora import corpus, tokens_in
from tests.tasks.trainer.small_run import small_config

STEPS = (6, 12, 30, 60)
"""Of the milestones."""
FIRST = "v1"
"""The version with the tokens, which the others read."""
JUDGED = ("evaluate", "register", "compare", "promote")


class Champions(NamedTuple):
    """A store with tokens and milestones, and its recipe."""

    store: Store
    recipe: Recipe

    def run(self, stage: str, version: str, mlflow: str = "", dag_run: str = "", **changes: Any) -> StageResult:
        """Runs a stage; `changes` are settings, with "__" for the dots in their paths."""
        recipe = self.recipe.override({name.replace("__", "."): value for name, value in changes.items()})
        context = TrackingContext(mlflow, recipe.name, dag_run)
        return run_stage(recipe, stage, version=version, source_version=FIRST, tracking=context)

    def judge(self, version: str, step: int, mlflow: str = "", **changes: Any) -> dict[str, Any]:
        """Commits the milestone of a step as the checkpoint of a version; returns the decision on it."""
        self.checkpoint(version, step)
        for stage in JUDGED:
            self.run(stage, version, mlflow, **changes)
        return self.decision(version)

    def checkpoint(self, version: str, step: int, **settings: Any) -> None:
        """Commits the milestone of a step as the checkpoint of a version with `settings`."""
        trained = Artifact.open_at(self.store, ArtifactId("test/trained", "dev"))
        about = {**json.loads(trained.read("run.json")), "checkpoint_steps": [step], "steps": step}
        weights = f"checkpoints/step-{step:08d}/model.safetensors"
        files = {"run.json": json.dumps(about).encode(), weights: trained.read(weights)}
        files |= {path: trained.read(path) for path in trained.files("steps/")[: step // STEPS[0]]}
        output = Output(self.store, ArtifactId("test/checkpoint", version), f"{step:064d}")
        with output.part("model", conserved=False) as part:
            for name, content in {**files, "model.json": trained.read("model.json")}.items():
                with part.file(name) as file:
                    file.write(content)
        commit(output, "train", 2, training(**settings), trained.record.inputs, Report())

    def whole_run(self, version: str, last: int = STEPS[-1]) -> None:
        """Commits the whole run as the checkpoint of a version; its last weights are those of the step `last`."""
        trained = Artifact.open_at(self.store, ArtifactId("test/trained", "dev"))
        final, other = (f"checkpoints/step-{step:08d}/model.safetensors" for step in (STEPS[-1], last))
        output = Output(self.store, ArtifactId("test/checkpoint", version), f"{last:063d}f")
        with output.part("model", conserved=False) as part:
            for path in trained.files():
                with part.file(path) as file:
                    file.write(trained.read(other if path == final else path))
        commit(output, "train", 2, training(), trained.record.inputs, Report())

    def decision(self, version: str) -> dict[str, Any]:
        """Returns the content of `champion.json`."""
        return dict(json.loads(self.artifact("champion", version).read("champion.json")))

    def comparison(self, version: str) -> dict[str, Any]:
        """Returns the content of `comparison.json`."""
        return dict(json.loads(self.artifact("comparison", version).read("comparison.json")))

    def artifact(self, kind: str, version: str) -> Artifact:
        """Opens an artifact of the recipe."""
        return Artifact.open_at(self.store, ArtifactId(f"test/{kind}", version))


def training(**settings: Any) -> TrainConfig:
    """Returns the settings of the training."""
    usual = {"mixture": {"web": 0.25, "code": 0.5, "my-books": 0.25}, "steps": STEPS[-1], "milestones": 10,
             "checkpoint_every": STEPS[-1], "heldout": {"every": STEPS[0], "max_tokens": 500}}  # fmt: skip
    return small_config(**{**usual, **settings})


def recipe_in(folder: Path, **settings: Any) -> Recipe:
    """Returns the recipe of the store in a folder."""
    common = {
        "name": "test",
        "place.store": str(folder),
        "crawl.enabled": False,
        "makes": ["documents", "tokens", "checkpoint"],
        "extract.files": [{"name": name, "kind": "text", "path": "/nowhere/*"} for name in ("code", "my-books")],
        "canary.current": {},
        "consolidate.sources": ["code"],
        "evaluate.max_tokens": 100_000,
        "promote.enabled": True,
        "train.steps": STEPS[-1],
        "train.milestones": 10,
    }
    return find_recipe("smoke").override({**common, **settings})


def champions_in(folder: Path) -> Champions:
    """Creates the tokens, and trains once."""
    tokens = tokens_in(folder, corpus(240), encode=EncodeConfig(heldout_share=0.25), version=FIRST)
    inputs = {"shards": tokens.shards, "plan": tokens.plan}
    run_stage_in(folder, "tasks.stages.train.stage", training(), inputs, kind="trained")  # type: ignore[arg-type]
    return Champions(Store(str(folder)), recipe_in(folder))
