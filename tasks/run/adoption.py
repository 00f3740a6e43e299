"""Adoption: what the source version has already, by settings and inputs, need not be made again.

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
    """Returns what the source version has of the kind; nothing of a stage whose equal settings read another web."""
    if not source_version or resolved.spec.reads_web:
        return []
    try:
        kind = resolved.address.name.removeprefix(f"{recipe.name}/")
        return artifacts_of_version(store, recipe.name, kind, source_version)
    except InputError as error:
        log.warning("[%s] made anew: %s", resolved.address, error)
        return []


def adoptable(
    store: Store, resolved: ResolvedStage, before: Sequence[Artifact]
) -> tuple[Artifact, tuple[InputRef, ...]] | None:
    """Returns the first artifact that is what would be made, with its inputs as they are at this version, or None.

    An artifact that is made of others, such as the groups of `attributes`, can be adopted only while these are there.
    """
    for one in before:
        same = as_read_by(resolved, one.record)
        if same is None:
            continue
        refs = (*same.refs, *same.named_only)
        roles = {ref.role for ref in refs}
        others = [ref for ref in one.record.inputs if ref.role not in roles]
        if gone := [ref.address for ref in others if not _is_there(store, ref)]:
            log.warning(
                "[%s] %s is not adopted: %s is gone or has been made anew", resolved.address, one.address, gone[0]
            )
            continue
        return one, refs
    return None


def _is_there(store: Store, ref: InputRef) -> bool:
    return ref.address.startswith((EXTERNAL, CODE)) or as_read(store, ref) is not None
