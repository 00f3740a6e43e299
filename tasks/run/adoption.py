"""Adoption: selects the artifact of the source version with the same settings and inputs, which is not made again.

Reads the records of artifacts. All nodes of a gang decide by these functions, so that they decide alike.
"""

import logging
from collections.abc import Sequence

from tasks.core.artifact import Artifact, InputRef
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.run.external_inputs import CODE, EXTERNAL
from tasks.run.input_resolution import ResolvedStage, as_read_by
from tasks.run.lineage import artifacts_of_version, as_read
from tasks.run.recipe import Recipe

log = logging.getLogger("sluice.runner")


def made_at_source_version(
    store: Store, recipe: Recipe, resolved: ResolvedStage, source_version: str | None
) -> list[Artifact]:
    """Returns the artifacts of the kind that the source version has; none for a stage that reads the web."""
    if not source_version or resolved.spec.reads_web:
        return []
    try:
        kind = resolved.address.name.removeprefix(f"{recipe.name}/")
        return artifacts_of_version(store, recipe.name, kind, source_version)
    except InputError as error:
        log.warning("[%s] made again: %s", resolved.address, error)
        return []


def adoptable(
    store: Store, resolved: ResolvedStage, before: Sequence[Artifact]
) -> tuple[Artifact, tuple[InputRef, ...]] | None:
    """Returns the first artifact with the result of `resolved`, and the inputs at this version; None where none has it.

    An artifact that consists of others, such as the groups of `attributes`, can be adopted only while these exist.
    """
    for candidate in before:
        same = as_read_by(resolved, candidate.record)
        if same is None:
            continue
        refs = (*same.refs, *same.named_only)
        roles = {ref.role for ref in refs}
        others = [ref for ref in candidate.record.inputs if ref.role not in roles]
        missing = [ref.address for ref in others if not _exists(store, ref)]
        if not missing:
            return candidate, refs
        log.warning(
            "[%s] %s is not adopted: %s is gone or has been made again",
            resolved.address,
            candidate.address,
            missing[0],
        )
    return None


def _exists(store: Store, ref: InputRef) -> bool:
    return ref.address.startswith((EXTERNAL, CODE)) or as_read(store, ref) is not None
