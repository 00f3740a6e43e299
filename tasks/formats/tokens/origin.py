"""Origin of a model: the one from whose weights its run began, and those before it, back to random weights.

Reads the records of checkpoints and fine-tuned models. Whatever an origin has learned from, the later model began with.
"""

from tasks.core.artifact import Artifact, ArtifactId, InputRef
from tasks.core.errors import InputError

INITIAL = "initial"
"""Role of the origin among the inputs of a training."""
BASE = "base"
"""Role of the origin among the inputs of a fine-tuning."""
_LEARNED_FROM = ("shards", "examples")
"""Roles of the tokens among the inputs of a training or a fine-tuning."""
_TOKENIZER = "tokenizer"


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
