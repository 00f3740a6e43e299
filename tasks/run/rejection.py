"""Rejection of the mixture of a version, by a person: no later cycle of canaries starts from it.

The artifact `rejected` at the version of the mixture refers to the mixture as it was rejected, so one that is made
again with another result is not rejected. `rejected.json` has {mixture, by, why}. The runs of the rejected cycle stay
evidence for later cycles (`stages.canary.evidence`).
"""

import json

from tasks.core.artifact import Artifact, ArtifactId, fingerprint
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.ledger import is_marked
from tasks.core.stage import Output, Report
from tasks.core.store import Store

COMMAND, VERSION = "reject", 1
"""Stage and version in the records, and in the fingerprints."""
REJECTED = "rejected"
"""Kind of the artifact."""


def reject(store: Store, recipe: str, version: str, by: str = "", why: str = "") -> Artifact:
    """Publishes the rejection of a version's mixture; one that exists stays as it is.

    Args:
        store: store of the artifacts.
        recipe: name of the recipe.
        version: version of the mixture.
        by: who rejects it; "" if nobody answered.
        why: the reason.

    Raises:
        InputError: the version has no mixture.
    """
    mixture = Artifact.open_at(store, ArtifactId(f"{recipe}/mixture", version))
    if is_marked(mixture, REJECTED):
        return Artifact.open_at(store, _address(recipe, version))
    if outdated := Artifact.find(store, _address(recipe, version)):
        outdated.remove()
    ref = mixture.ref("mixture")
    output = Output(store, _address(recipe, version), fingerprint(COMMAND, VERSION, "", Config(), [ref]))
    with output.part("rejected", conserved=False) as part, part.file("rejected.json") as file:
        content = {"mixture": str(mixture.address), "by": by, "why": why}
        file.write(json.dumps(content, indent=1, sort_keys=True).encode())
    note = f"rejected by {by or 'no answer in time'}" + (f": {why}" if why else "")
    return commit(output, COMMAND, VERSION, Config(), [ref], Report(note=note))


def withdraw(store: Store, recipe: str, version: str) -> bool:
    """Ends the rejection of a version's mixture; returns whether there was one."""
    if rejected := Artifact.find(store, _address(recipe, version)):
        rejected.remove()
    return rejected is not None


def _address(recipe: str, version: str) -> ArtifactId:
    return ArtifactId(f"{recipe}/{REJECTED}", version)
