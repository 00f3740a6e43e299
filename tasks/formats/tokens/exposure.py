"""Exposure: which documents a model has learned from, in its own run or before it.

Reads the records of checkpoints and fine-tuned models for the origin of a model, the one from whose weights its run
began, back to random weights: a model has learned from all that its initial weights have.

Of documents under some tombstones, reads the index of the shards, their sequences in the plan, and the order of the
run; of a fine-tuned model, the documents that its examples are chunks of.
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
from tasks.formats.tokens.readings import ExampleReadings, Reading, Readings, by_document, is_tuned
from tasks.formats.tokens.shard import parse_shard_name

INITIAL = "initial"
"""Role of the origin among the inputs of a training."""
BASE = "base"
"""Role of the origin among the inputs of a fine-tuning."""
_LEARNED_FROM = ("shards", "examples")
"""Roles of the tokens among the inputs of a training or a fine-tuning."""
_TOKENIZER = "tokenizer"

Row = dict[str, Any]
"""{id, url, source, sequences, steps, checkpoints, through}: of a plan its sequences with the document; of a checkpoint
also the steps of its own run that learned from it, and the saved states, as steps done, that have seen it; `through` is
the checkpoint from whose weights the run began, where that one has seen it, or ""."""


def origin_ref(model: Artifact) -> InputRef | None:
    """Returns the reference to the model from whose weights a run began; None where they were random."""
    return next((ref for ref in model.record.inputs if ref.role in (INITIAL, BASE)), None)


def origin_of(model: Artifact) -> Artifact | None:
    """Opens the model from whose weights a run began; None where they were random.

    Raises:
        InputError: it is gone, or has been made again with another result.
    """
    ref = origin_ref(model)
    if ref is None:
        return None
    found = Artifact.find(model.store, ArtifactId.parse(ref.address))
    if found is None or found.record.content != ref.content:
        became = "is gone" if found is None else "has been made again, with other weights"
        raise InputError(
            f"{model.address} began from the weights of {ref.address}, which {became}",
            "restore it, or train again from weights whose history is there",
        )
    return found


def origin_refs(model: Artifact) -> list[InputRef]:
    """Returns references to the models that a model comes from, nearest first, as far as they are there unchanged."""
    found: list[InputRef] = []
    at: Artifact | None = model
    while at and (ref := origin_ref(at)):
        found.append(ref)
        origin = Artifact.find(model.store, ArtifactId.parse(ref.address))
        at = origin if origin and origin.record.content == ref.content else None
    return found


def tokenizer_of(model: Artifact) -> Artifact | None:
    """Returns the tokenizer that the tokens of a model were made with; None where its records do not lead to it."""
    learned_from = next((ref for ref in model.record.inputs if ref.role in _LEARNED_FROM), None)
    tokens = Artifact.find(model.store, ArtifactId.parse(learned_from.address)) if learned_from else None
    ref = next((ref for ref in tokens.record.inputs if ref.role == _TOKENIZER), None) if tokens else None
    found = Artifact.find(model.store, ArtifactId.parse(ref.address)) if ref else None
    return found if found and ref and found.record.content == ref.content else None


@dataclass(frozen=True)
class Exposure:
    """The documents that a checkpoint has learned from, and why not all of them can be known, or ""."""

    rows: list[Row] = field(default_factory=list)
    problem: str = ""


def row_of(uid: str, url: str, source: str, **more: Any) -> Row:
    """Returns a row with nothing but the document, and what is given."""
    return {
        "id": uid,
        "url": url,
        "source": source,
        "sequences": [],
        "steps": [],
        "checkpoints": [],
        "through": "",
    } | more


def in_shards(shards: Artifact, tombstones: Tombstones) -> Iterator[tuple[Row, str, int]]:
    """Yields (row, shard, row in the shard) of the documents of an encoding."""
    for entry in covered_entries(shards, tombstones).to_pylist():
        source, _ = parse_shard_name(entry["shard"])
        yield row_of(entry["doc_uid"].hex(), entry["url"], source), entry["shard"], entry["row"]


def in_plan(plan: Artifact, tombstones: Tombstones) -> Iterator[Row]:
    """Yields the documents of a plan; raises InputError where its shards are gone."""
    return (row for row, _ in _packed(plan, None, tombstones))


def in_examples(examples: Artifact, tombstones: Tombstones) -> Iterator[Row]:
    """Yields the documents of chunks that became examples; those that are held out are in no sequence."""
    found = Examples(examples)
    for page, numbers in by_document(found, found.where(tombstones.mask)).items():
        yield row_of(*page, sequences=sorted({found.sequence_of(number) for number in numbers}))
    if has_heldout(examples):
        found = Examples(examples, HELDOUT)
        yield from (row_of(*page) for page in by_document(found, found.where(tombstones.mask)))


def of_own_run(model: Artifact, tombstones: Tombstones) -> Exposure:
    """Returns the documents that a model has learned from in its run, and not before it."""
    rows: list[Row] = []
    try:
        rows += _learned(model, tombstones)
    except (InputError, FileNotFoundError) as error:
        return Exposure(rows, str(error))
    return Exposure(rows)


def of_checkpoint(
    checkpoint: Artifact, tombstones: Tombstones, known: dict[ArtifactId, Exposure] | None = None
) -> Exposure:
    """Returns the documents that a checkpoint has learned from, in its run or before it.

    Args:
        checkpoint: of a run, or a fine-tuned model.
        tombstones: what to look for.
        known: what earlier calls with the same tombstones have returned; filled, so that a long history is read once.
    """
    known = {} if known is None else known
    if checkpoint.address not in known:
        known[checkpoint.address] = _exposed(checkpoint, tombstones, known)
    return known[checkpoint.address]


def before(checkpoint: Artifact, origin: Artifact, exposure: Exposure) -> list[Row]:
    """Returns the documents that a checkpoint has learned from because `origin`, from which it comes, has.

    Args:
        checkpoint: of a run.
        origin: an earlier checkpoint that its weights come from.
        exposure: of `origin`.
    """
    states = json.loads(checkpoint.read("run.json"))["checkpoint_steps"] if exposure.rows else []
    more = {"checkpoints": states, "through": str(origin.address)}
    return [row_of(row["id"], row["url"], row["source"], **more) for row in exposure.rows]


def _exposed(checkpoint: Artifact, tombstones: Tombstones, known: dict[ArtifactId, Exposure]) -> Exposure:
    rows: dict[str, Row] = {}
    try:
        rows = {row["id"]: row for row in _learned(checkpoint, tombstones)}
        origin = origin_of(checkpoint)
        if origin is None:
            return Exposure(list(rows.values()))
        earlier = of_checkpoint(origin, tombstones, known)
        for row in before(checkpoint, origin, earlier):
            own = rows.get(row["id"], row)
            rows[row["id"]] = {**row, "sequences": own["sequences"], "steps": own["steps"]}
        return Exposure(list(rows.values()), earlier.problem)
    except (InputError, FileNotFoundError) as error:
        return Exposure(list(rows.values()), str(error))


def _learned(checkpoint: Artifact, tombstones: Tombstones) -> Iterator[Row]:
    if is_tuned(checkpoint):
        yield from _tuned(checkpoint, tombstones)
        return
    for row, reading in _packed(_input(checkpoint, "plan"), checkpoint, tombstones):
        if reading.learned:
            yield {**row, "steps": reading.learned, "checkpoints": reading.checkpoints}


def _tuned(model: Artifact, tombstones: Tombstones) -> Iterator[Row]:
    readings = ExampleReadings(model)
    found = readings.examples.where(tombstones.mask)
    for page, numbers in by_document(readings.examples, found).items():
        reading = readings.of(numbers)
        if reading.learned:
            yield row_of(*page, sequences=reading.sequences, steps=reading.learned, checkpoints=reading.checkpoints)


def _packed(plan: Artifact, checkpoint: Artifact | None, tombstones: Tombstones) -> Iterator[tuple[Row, Reading]]:
    """Yields the documents of a plan with their sequences, and who read them."""
    shards = _input(plan, "shards")
    readings = Readings(DocumentIndex(shards), Plan.open(plan), checkpoint)
    for row, shard, place in in_shards(shards, tombstones):
        reading = readings.of(shard, place)
        if reading.sequences:
            yield {**row, "sequences": reading.sequences}, reading


def _input(artifact: Artifact, role: str) -> Artifact:
    """Opens the artifact that another was made from; raises InputError where it is gone."""
    (address,) = (ref.address for ref in artifact.record.inputs if ref.role == role)
    return Artifact.open_at(artifact.store, ArtifactId.parse(address))
