"""Trace of a fine-tuning: the rows that a step has read.

Reads the artifact `finetuned` (`run.json`, `withheld.json`) and the examples that its record names.
"""

import json
from typing import Any

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.formats.examples import Examples
from tasks.formats.tokens.order import Order

PREFIX = "tuned:"


def step_of(asked: str) -> int:
    """Returns the step of "tuned:<number>"; raises InputError."""
    number = asked.removeprefix(PREFIX)
    if not number.isdecimal():
        raise InputError(f'"{asked}" names no step', "write it as tuned:42")
    return int(number)


def trace_tuned(store: Store, recipe: str, version: str, step: int) -> dict[str, Any]:
    """Returns what a step of a fine-tuning has read.

    Args:
        store: store of the artifacts.
        recipe: name of the recipe.
        version: version of the fine-tuned model.
        step: 0-based.

    Returns:
        {model, base, step, rows: [{sequence, file, line, id}]}, in the order of the batch.

    Raises:
        InputError: there is no such model or step, or its examples are gone.
    """
    model = Artifact.open_at(store, ArtifactId(f"{recipe}/finetuned", version))
    run = json.loads(model.read("run.json"))
    if not 0 <= step < run["steps"]:
        raise InputError(f"{model.address} has no step {step}", f"its steps are 0 to {run['steps'] - 1}")
    ref = next(ref for ref in model.record.inputs if ref.role == "examples")
    examples = Examples(Artifact.open_at(store, ArtifactId.parse(ref.address)))
    drawn = [sequence for _, sequence, _ in Order.of_run(run).batch(step)]
    rows = [{"sequence": sequence, **row} for sequence in drawn for row in examples.sources(sequence)]
    return {"model": str(model.address), "base": run["base"], "step": step, "rows": rows}


def render_tuned(found: dict[str, Any]) -> str:
    """Returns the result of `trace_tuned` as text."""
    head = f"step {found['step']} of {found['model']}, begun from {found['base']}: {len(found['rows'])} rows"
    named = (f" ({row['id']})" if row["id"] else "" for row in found["rows"])
    rows = (
        f"  sequence {row['sequence']}  {row['file']} line {row['line']:,}{name}"
        for row, name in zip(found["rows"], named, strict=True)
    )
    return "\n".join([head, *rows])
