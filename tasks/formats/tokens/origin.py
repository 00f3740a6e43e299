"""Origin of a checkpoint: the one from whose weights its run began, and those before it, back to random weights.

Reads the records of checkpoints. Whatever an origin has learned from, the later model began with.
"""

from tasks.core.artifact import Artifact, ArtifactId, InputRef
from tasks.core.errors import InputError

ROLE = "initial"
"""Role of the origin among the inputs of a run."""


def origin_ref(checkpoint: Artifact) -> InputRef | None:
    """Returns the reference to the checkpoint from whose weights a run began; None where they were random."""
    return next((ref for ref in checkpoint.record.inputs if ref.role == ROLE), None)


def origin_of(checkpoint: Artifact) -> Artifact | None:
    """Opens the checkpoint from whose weights a run began; None where they were random.

    Raises:
        InputError: it is gone, or has been made again with another result.
    """
    ref = origin_ref(checkpoint)
    if ref is None:
        return None
    found = Artifact.find(checkpoint.store, ArtifactId.parse(ref.address))
    if found is None or found.record.content != ref.content:
        became = "is gone" if found is None else "has been made again, with other weights"
        raise InputError(
            f"{checkpoint.address} began from the weights of {ref.address}, which {became}",
            "restore it, or train again from weights whose history is there",
        )
    return found
