"""What the scores of a registered model say beside its values: items that it has read, and other seeds.

Reads `model/lineage.json`, which has the content of the `scores.json` that the model was registered with.
"""

import json
from typing import Any

from tasks.core.artifact import Artifact
from tasks.stages.promote.verdict import Seeds


def read_in_training(model: Artifact) -> dict[str, dict[str, int] | None]:
    """Returns for each task {items, documents} that the model has learned from; None where it was not looked for."""
    scores = _scores(model)
    return {task["task"]: task["contamination"] for task in scores.get("tasks", ()) if task["step"] == scores["step"]}


def seeds_of(model: Artifact) -> Seeds:
    """Returns the values over seeds by (kind, name, metric); {} where the model was trained with one."""
    rows = _scores(model).get("seeds", {}).get("rows", ())
    return {(row["kind"], row["name"], row["metric"]): row["values"] for row in rows}


def _scores(model: Artifact) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(model.read("model/lineage.json"))["scores"]
    return found
