"""Trace of fine-tunings: the rows and pages that a step has read, and the steps that have read a page.

Reads the artifacts `finetuned` of a store (`run.json`, `loss.jsonl`, `withheld.json`) and the examples that their
records name.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.formats.tokens.origin import origin_refs
from tasks.formats.tokens.readings import TUNED, ExampleReadings, by_document
from tasks.run.trace.graph import Chain, many

TUNED_STEP = "tuned:"
Found = dict[str, Any]
Covers = Callable[[pa.Table], NDArray[np.bool_]]
"""Returns which rows of a table with id and url of documents are meant."""


def tuned_step(asked: str) -> int:
    """Returns the step of "tuned:<number>"; raises InputError."""
    number = asked.removeprefix(TUNED_STEP)
    if not number.isdecimal():
        raise InputError(f'"{asked}" names no step', "write it as tuned:42")
    return int(number)


def trace_tuned(store: Store, recipe: str, version: str, step: int) -> Found:
    """Returns what a step of a fine-tuning has read.

    Args:
        store: store of the artifacts.
        recipe: name of the recipe.
        version: version of the fine-tuned model.
        step: 0-based.

    Returns:
        {asked, kind: "tuned", model, bases, step, skipped, rows: [{sequence, and where it is from:
        `Examples.source`}]}, in the order of the batch; a row that was blank then is `withheld`. `bases` are the models
        that it comes from, nearest first.

    Raises:
        InputError: there is no such model or step, or its examples are gone.
    """
    model = Artifact.open_at(store, ArtifactId(f"{recipe}/{TUNED}", version))
    readings = ExampleReadings(model)
    if not 0 <= step < readings.run["steps"]:
        raise InputError(f"{model.address} has no step {step}", f"its steps are 0 to {readings.run['steps'] - 1}")
    rows = []
    for _, sequence, _ in readings.order.batch(step):
        for number in readings.examples.numbers(sequence):
            blank = readings.blank_from(number)
            gone = {"withheld": True} if blank is not None and blank <= step else {}
            rows.append({"sequence": sequence, **readings.examples.source(readings.examples[number]), **gone})
    return {
        "asked": f"tuned:{step}",
        "kind": "tuned",
        "model": str(model.address),
        "bases": _bases(model),
        "step": step,
        "skipped": step in readings.skipped_steps,
        "rows": rows,
    }


def is_in(column: str, values: Sequence[str]) -> Covers:
    """Returns what covers the documents with one of some values in a column, "id" or "url"."""

    def covers(rows: pa.Table) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = pc.is_in(rows.column(column), pa.array(values, pa.string())).to_numpy()
        return found

    return covers


def tunings_of(chain: Chain, covers: Covers) -> list[Found]:
    """Returns the fine-tuned models that come from the model of a chain, or have read some of its documents.

    Looks through those of all recipes in the store.

    Args:
        chain: of the version that is traced.
        covers: which documents are looked for.

    Returns:
        {model, bases, steps: of its run, problem: why not all is known or "", documents: [{id, url, source, examples:
        [{chunk, pages}], sequences, steps, skipped_steps, checkpoints, and `withheld_from` where it was blank in the
        end}]}, by model.
    """
    store = next(iter(chain.artifacts.values())).store
    found = many(lambda model: _tuning(model, chain, covers), _models(store))
    return [one for one in found if one]


def _models(store: Store) -> list[Artifact]:
    """Returns all fine-tuned models of a store, by recipe and version; lists folders, and not all files in them."""
    recipes = store.folders()
    kinds = many(store.folders, recipes)
    having = [f"{recipe}/{TUNED}" for recipe, found in zip(recipes, kinds, strict=True) if TUNED in found]
    versions = zip(having, many(store.folders, having), strict=True)
    made = many(
        lambda address: Artifact.find(store, address), [ArtifactId(a, b) for a, found in versions for b in found]
    )
    return [model for model in made if model]


def _tuning(model: Artifact, chain: Chain, covers: Covers) -> Found | None:
    head: Found = {"model": str(model.address), "bases": _bases(model), "steps": 0, "problem": "", "documents": []}
    related = _comes_from(model, chain)
    try:
        readings = ExampleReadings(model)
        found = by_document(readings.examples, readings.examples.where(covers))
    except (InputError, FileNotFoundError) as error:
        return {**head, "problem": str(error)} if related else None
    if not found and not related:
        return None
    documents = [{**page._asdict(), **_read(readings, numbers)} for page, numbers in found.items()]
    return {**head, "steps": readings.run["steps"], "documents": documents}


def _read(readings: ExampleReadings, numbers: list[int]) -> Found:
    sources = [readings.examples.source(readings.examples[number]) for number in numbers]
    reading = readings.of(numbers)
    return {
        "examples": [{"chunk": one["chunk"], "pages": one.get("pages")} for one in sources],
        **{name: getattr(reading, name) for name in ("sequences", "steps", "skipped_steps", "checkpoints")},
        **({} if reading.withheld_from is None else {"withheld_from": reading.withheld_from}),
    }


def _bases(model: Artifact) -> list[str]:
    return [ref.address for ref in origin_refs(model)]


def _comes_from(model: Artifact, chain: Chain) -> bool:
    """Returns whether a model is that of a chain, or began from its weights."""
    ours = {(one.record.fingerprint, one.record.content) for one in chain.models}
    before = {(ref.fingerprint, ref.content) for ref in origin_refs(model)}
    return bool(ours & {(model.record.fingerprint, model.record.content), *before})
