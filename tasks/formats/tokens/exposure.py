"""Exposure: the documents that a model has learned from, in its own run or in earlier ones.

The origin of a model is the model from whose weights its run started. A model has learned from all documents that its
origin has learned from, so the records of checkpoints and fine-tuned models are followed back to random weights.

For documents covered by some tombstones, reads the index of the shards, their sequences in the plan, and the order of
the run; for a fine-tuned model, the documents whose chunks are its examples.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tasks.core.artifact import Artifact, ArtifactId, InputRef
from tasks.core.errors import InputError
from tasks.formats.documents.examples import HELDOUT, Examples, has_heldout
from tasks.formats.documents.tombstones import Tombstones
from tasks.formats.tokens.index import DocumentIndex
from tasks.formats.tokens.marks import covered_entries
from tasks.formats.tokens.plan import Plan
from tasks.formats.tokens.readings import ExampleReadings, Reading, Readings, by_document, checkpoints_of, is_tuned
from tasks.formats.tokens.shard import parse_shard_name

INITIAL = "initial"
"""Role of the origin among the inputs of a training."""
FROM_STEP = "initial_step"
"""Key of `run.json`: the step of the origin's run from whose checkpoint the run started, if it is not the last one."""
BASE = "base"
"""Role of the origin among the inputs of a fine-tuning."""
_LEARNED_FROM = ("shards", "examples")
"""Roles of the tokens among the inputs of a training or a fine-tuning."""
_TOKENIZER = "tokenizer"
IMPORT = "import.json"
"""File of a checkpoint that was imported, with the origin of its weights; the checkpoint has no run."""
SOURCE = "source/"
"""Folder of a checkpoint that was imported, or of a model that was fine-tuned from one: files of the imported folder
that state tokens, chat template and generation, unchanged."""

Row = dict[str, Any]
"""{id, url, source, sequences, steps, checkpoints, through} of a document: for a plan, its sequences with the document;
for a checkpoint also the steps of its own run that learned from it, and the later checkpoints of the run, as numbers of
completed steps. `through` is the origin of the checkpoint if the origin has learned from the document, else ""."""


def unrecorded(model: Artifact) -> str:
    """Returns that the training of an imported model is not on record, as text; "" for a model with a record of it."""
    is_imported = bool(model.files(IMPORT))
    return f"the training of {model.address} is not on record: the model was imported" if is_imported else ""


def source_files(model: Artifact) -> dict[str, bytes]:
    """Returns the files of SOURCE by name; {} for a model that does not come from elsewhere."""
    return {path.removeprefix(SOURCE): model.read(path) for path in model.files(SOURCE)}


def origin_ref(model: Artifact) -> InputRef | None:
    """Returns the reference to the origin of a model, or None if its run started from random weights."""
    return next((ref for ref in model.record.inputs if ref.role in (INITIAL, BASE)), None)


def origin_of(model: Artifact) -> Artifact | None:
    """Opens the origin of a model; returns None if its run started from random weights.

    Raises:
        InputError: the origin is missing, or was trained again with another result.
    """
    ref = origin_ref(model)
    if ref is None:
        return None
    origin = Artifact.find(model.store, ArtifactId.parse(ref.address))
    if origin is None or origin.record.content != ref.content:
        became = "is gone" if origin is None else "has been made again, with other weights"
        raise InputError(
            f"{model.address} began from the weights of {ref.address}, which {became}",
            "restore it, or train again from weights whose history is there",
        )
    return origin


def origin_step(model: Artifact) -> int | None:
    """Returns the step of the origin's run from whose checkpoint a run started; None for the last one."""
    if not any(ref.role == INITIAL for ref in model.record.inputs):
        return None
    step: int | None = json.loads(model.read("run.json")).get(FROM_STEP)
    return step


def origin_refs(model: Artifact) -> list[InputRef]:
    """Returns references to the origins of a model, nearest first, as far as they exist unchanged."""
    refs: list[InputRef] = []
    current: Artifact | None = model
    while current and (ref := origin_ref(current)):
        refs.append(ref)
        origin = Artifact.find(model.store, ArtifactId.parse(ref.address))
        current = origin if origin and origin.record.content == ref.content else None
    return refs


def tokenizer_of(model: Artifact) -> Artifact | None:
    """Returns the tokenizer of a model's training tokens, or the one that was imported with the model.

    None if it cannot be reached through the records.
    """
    learned_from = next((ref for ref in model.record.inputs if ref.role in _LEARNED_FROM), None)
    tokens = Artifact.find(model.store, ArtifactId.parse(learned_from.address)) if learned_from else model
    ref = next((ref for ref in tokens.record.inputs if ref.role == _TOKENIZER), None) if tokens else None
    tokenizer = Artifact.find(model.store, ArtifactId.parse(ref.address)) if ref else None
    return tokenizer if tokenizer and ref and tokenizer.record.content == ref.content else None


@dataclass(frozen=True)
class Exposure:
    """The documents that a checkpoint has learned from; `problem` says why the list may be incomplete, or is ""."""

    rows: list[Row] = field(default_factory=list)
    problem: str = ""


def document_row(uid: str, url: str, source: str, **more: Any) -> Row:
    """Returns the row of a document, with the given fields and defaults for the others."""
    return {
        "id": uid,
        "url": url,
        "source": source,
        "sequences": [],
        "steps": [],
        "checkpoints": [],
        "through": "",
    } | more


def shard_rows(shards: Artifact, tombstones: Tombstones) -> Iterator[tuple[Row, str, int]]:
    """Yields (row, shard, row in the shard) for the covered documents of an encoding."""
    for entry in covered_entries(shards, tombstones).to_pylist():
        source, _ = parse_shard_name(entry["shard"])
        yield document_row(entry["doc_uid"].hex(), entry["url"], source), entry["shard"], entry["row"]


def plan_rows(plan: Artifact, tombstones: Tombstones) -> Iterator[Row]:
    """Yields the covered documents of a plan; raises InputError if its shards are missing."""
    return (row for row, _ in _readings_of(plan, None, tombstones))


def example_rows(examples: Artifact, tombstones: Tombstones) -> Iterator[Row]:
    """Yields the covered documents whose chunks are examples; held-out examples are in no sequence."""
    opened = Examples(examples)
    for document, numbers in by_document(opened, opened.where(tombstones.mask)).items():
        yield document_row(*document, sequences=sorted({opened.sequence_of(number) for number in numbers}))
    if has_heldout(examples):
        opened = Examples(examples, HELDOUT)
        yield from (document_row(*document) for document in by_document(opened, opened.where(tombstones.mask)))


def run_exposure(model: Artifact, tombstones: Tombstones) -> Exposure:
    """Returns the covered documents that a model has learned from in its own run."""
    rows: list[Row] = []
    try:
        rows += _learned_rows(model, tombstones, None)
    except (InputError, FileNotFoundError) as error:
        return Exposure(rows, str(error))
    return Exposure(rows)


Exposures = dict[tuple[ArtifactId, int | None], Exposure]
"""Exposures by model, and by the step of its run whose checkpoint is meant; None for the last one."""


def checkpoint_exposure(
    checkpoint: Artifact, tombstones: Tombstones, cache: Exposures | None = None, until: int | None = None
) -> Exposure:
    """Returns the covered documents that a checkpoint has learned from, in its own run or in earlier ones.

    Args:
        checkpoint: checkpoint of a run, or a fine-tuned model.
        tombstones: documents to look for.
        cache: results of earlier calls with the same tombstones; updated, so that a long history is read once.
        until: step of the run whose checkpoint is meant; None for the last one.
    """
    cache = {} if cache is None else cache
    key = (checkpoint.address, until)
    if key not in cache:
        cache[key] = _compute_exposure(checkpoint, tombstones, cache, until)
    return cache[key]


def inherited_rows(checkpoint: Artifact, origin: Artifact, exposure: Exposure) -> list[Row]:
    """Returns the documents that a checkpoint has learned from through one of its origins.

    Args:
        checkpoint: checkpoint of a run.
        origin: an earlier checkpoint from which its weights derive.
        exposure: exposure of `origin`.
    """
    states = checkpoints_of(json.loads(checkpoint.read("run.json"))) if exposure.rows else []
    more = {"checkpoints": states, "through": str(origin.address)}
    return [document_row(row["id"], row["url"], row["source"], **more) for row in exposure.rows]


def _compute_exposure(checkpoint: Artifact, tombstones: Tombstones, cache: Exposures, until: int | None) -> Exposure:
    rows: dict[str, Row] = {}
    try:
        rows = {row["id"]: row for row in _learned_rows(checkpoint, tombstones, until)}
        origin = origin_of(checkpoint)
        if origin is None:
            return Exposure(list(rows.values()))
        earlier = checkpoint_exposure(origin, tombstones, cache, origin_step(checkpoint))
        for row in inherited_rows(checkpoint, origin, earlier):
            own = rows.get(row["id"], row)
            rows[row["id"]] = {**row, "sequences": own["sequences"], "steps": own["steps"]}
        return Exposure(list(rows.values()), earlier.problem)
    except (InputError, FileNotFoundError) as error:
        return Exposure(list(rows.values()), str(error))


def _learned_rows(checkpoint: Artifact, tombstones: Tombstones, until: int | None) -> Iterator[Row]:
    if problem := unrecorded(checkpoint):
        raise InputError(problem)
    if is_tuned(checkpoint):
        yield from _finetuned_rows(checkpoint, tombstones)
        return
    for row, reading in _readings_of(checkpoint.open_input("plan"), checkpoint, tombstones, until):
        if reading.learned:
            yield {**row, "steps": reading.learned, "checkpoints": reading.checkpoints}


def _finetuned_rows(model: Artifact, tombstones: Tombstones) -> Iterator[Row]:
    readings = ExampleReadings(model)
    covered = readings.examples.where(tombstones.mask)
    for document, numbers in by_document(readings.examples, covered).items():
        reading = readings.of(numbers)
        if reading.learned:
            yield document_row(
                *document, sequences=reading.sequences, steps=reading.learned, checkpoints=reading.checkpoints
            )


def _readings_of(
    plan: Artifact, checkpoint: Artifact | None, tombstones: Tombstones, until: int | None = None
) -> Iterator[tuple[Row, Reading]]:
    """Yields the covered documents of a plan with their sequences, and their readings before the step `until`."""
    shards = plan.open_input("shards")
    readings = Readings(DocumentIndex(shards), Plan.open(plan), checkpoint, until)
    for row, shard, shard_row in shard_rows(shards, tombstones):
        reading = readings.of(shard, shard_row)
        if reading.sequences:
            yield {**row, "sequences": reading.sequences}, reading
