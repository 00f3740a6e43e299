"""The plan of a recipe's training as text or JSON, from its settings alone, and how true it was where there is a run.

Reads the recipe, the records of its checkpoints, and where asked a `config.json` of another model.
"""

import json
from pathlib import Path
from typing import Any

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import RecipeError
from tasks.core.ledger import newest
from tasks.core.store import Store
from tasks.run.recipe import Recipe
from tasks.trainer.interchange.huggingface import read_shape
from tasks.trainer.model.shape import Shape
from tasks.trainer.parallel.fit import check_fit
from tasks.trainer.planning.estimate import estimate
from tasks.trainer.planning.measured import Measured
from tasks.trainer.planning.tables import comparison, comparison_text, plan_text


def plan(recipe: Recipe, store: Store, version: str, model: str = "") -> dict[str, Any]:
    """Returns `planned`, with the MFU of the newest other run, and `compared`, the rows of the run at `version`.

    A version that was estimated before its run (`[plan] enabled`) is compared with that estimate.

    Args:
        recipe: the recipe; assumptions are those of its `[plan]`, enabled or not.
        store: store of its artifacts.
        version: of the run to compare with; nothing is compared where it has not ended, or with `model`.
        model: path of a `config.json` of Hugging Face, to plan the training of that model; "": the recipe's.

    Raises:
        RecipeError: the recipe trains nothing, or cannot be trained in the layout of its place.
        InputError: `model` cannot be read.
    """
    if "checkpoint" not in recipe.makes:
        raise RecipeError(f"the recipe {recipe.name} trains no model", "add the section [train]")
    train, layout, seq_len = recipe.train, recipe.place.train.layout, recipe.pack.seq_len
    shape = read_shape(Path(model)) if model else Shape.of(train.model, recipe.tokenizer.vocab_size)
    if layout and not model:
        check_fit(layout, train, shape.vocab_size, seq_len, layout.ranks)
    nodes = recipe.place.kubernetes.nodes if recipe.place.kubernetes else 1
    name = f"{recipe.name}/checkpoint"
    before = newest(store, name, but=version)
    measured = Measured.of(before.record.metrics) if before else None
    ranks = recipe.place.train.nproc * nodes
    found = estimate(recipe.plan, train, shape, seq_len, layout, ranks, measured, str(before.address) if before else "")
    run = None if model else Artifact.find(store, ArtifactId(name, version))
    return {"planned": found, "compared": _compared(recipe, store, version, found, run) if run else []}


def _compared(recipe: Recipe, store: Store, version: str, found: dict[str, Any], run: Artifact) -> list[dict[str, Any]]:
    real = Measured.of(run.record.metrics)
    if real is None:
        return []
    made = Artifact.find(store, ArtifactId(f"{recipe.name}/estimate", version))
    planned = json.loads(made.read("estimate.json")) if made else found
    wall = (run.record.finished - run.record.started).total_seconds()
    return comparison(planned, recipe.plan, real, wall)


def render(found: dict[str, Any]) -> str:
    """Returns what `plan` found as text."""
    parts = [plan_text(found["planned"])]
    if found["compared"]:
        parts.append(comparison_text(found["compared"]))
    return "\n".join(parts).rstrip()
