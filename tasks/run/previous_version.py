"""The version before: which artifacts of it a stage reads, such as the crawl database or the mixture that was decided.

Reads the records of artifacts. The version before is the newest other one that was completed; once a stage has read it,
a run of the same version that is repeated later reads the same.
"""

from functools import reduce
from typing import Any

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.ledger import newest
from tasks.core.stage_spec import Previous, StageSpec
from tasks.core.store import Store
from tasks.run.recipe import Recipe

Found = dict[str, Artifact | list[Artifact]]


def previous_inputs(recipe: Recipe, store: Store, stage: StageSpec, own: ArtifactId, current: Found) -> Found:
    """Returns by role what a stage reads of the version before; without an entry where there is none.

    Args:
        recipe: the whole run.
        store: where its artifacts lie.
        stage: the stage that reads.
        own: what it writes.
        current: its inputs of its own version, by role.

    Raises:
        InputError: the version before has another number of members than the recipe.
    """
    if not stage.previous or (stage.previous_if and not _field(recipe, stage.previous_if)):
        return {}
    member = own.name.removeprefix(f"{recipe.name}/").partition("/")[2]
    chosen_by = Artifact.find(store, own) or current.get(stage.previous_as)
    found: Found = {}
    for role, previous in stage.previous.items():
        if isinstance(chosen_by, Artifact):
            addresses = [ArtifactId.parse(ref.address) for ref in chosen_by.record.inputs if ref.role == role]
        else:
            addresses = _newest_completed(recipe, store, previous, member, own.version)
        several = [Artifact.open_at(store, address) for address in addresses]
        if several:
            found[role] = several if previous.kind.endswith("/*") and not member else several[0]
    return found


def _newest_completed(recipe: Recipe, store: Store, previous: Previous, member: str, version: str) -> list[ArtifactId]:
    completed = newest(store, f"{recipe.name}/{previous.completed_by}", but=version)
    if completed is None:
        return []
    kind = previous.kind.removesuffix("/*")
    if kind == previous.kind:
        return [ArtifactId(f"{recipe.name}/{kind}", completed.address.version)]
    refs = completed.record.inputs
    members = sorted(ArtifactId.parse(ref.address) for ref in refs if ref.address.startswith(f"{recipe.name}/{kind}/"))
    if not member:
        return members
    own = [address for address in members if address.name == f"{recipe.name}/{kind}/{member}"]
    if not own or len(members) != _field(recipe, previous.members):
        raise InputError(
            f"the {kind} of {completed.address} has {len(members)} members, the recipe asks for "
            f"{_field(recipe, previous.members)}",
            f"set {previous.members} = {len(members)}, or begin anew under another recipe name",
        )
    return own


def _field(recipe: Recipe, path: str) -> Any:
    return reduce(getattr, path.split("."), recipe)
