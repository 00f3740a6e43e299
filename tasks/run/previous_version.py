"""Inputs of the previous version, such as the crawl DB or the decided mixture.

Reads the records of artifacts. The previous version is the newest other one that was completed; once a stage has read
it, later runs of the same version read the same one.
"""

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.ledger import newest
from tasks.core.stage_spec import Previous, StageSpec
from tasks.core.store import Store
from tasks.run.lineage import artifact_of_version
from tasks.run.recipe import Recipe

Found = dict[str, Artifact | list[Artifact]]


def previous_inputs(
    recipe: Recipe, store: Store, stage: StageSpec, own: ArtifactId, current: Found, source_version: str | None = None
) -> Found:
    """Returns the inputs of the previous version by role, without an entry where there is none.

    Args:
        recipe: the whole run.
        store: store of its artifacts.
        stage: the stage that reads them.
        own: id of the artifact that it writes.
        current: its inputs of its own version, by role; of the source version where they are missing there.
        source_version: version to read missing inputs of (`Previous.as_source`).

    Raises:
        InputError: the previous version has another number of members than the recipe.
    """
    if not stage.previous or (stage.previous_if and not recipe.field(stage.previous_if)):
        return {}
    member = own.name.removeprefix(f"{recipe.name}/").partition("/")[2]
    deciding = Artifact.find(store, own) or current.get(stage.previous_as)
    source = _same_cycle(recipe, store, own, current, source_version)
    found: Found = {}
    for role, previous in stage.previous.items():
        like = deciding or (source if previous.as_source else None)
        if isinstance(like, Artifact):
            addresses = [ArtifactId.parse(ref.address) for ref in like.record.inputs if ref.role == role]
        else:
            addresses = _newest_completed(recipe, store, previous, member, own.version)
        artifacts = [Artifact.open_at(store, address) for address in addresses]
        if artifacts:
            found[role] = artifacts if previous.kind.endswith("/*") and not member else artifacts[0]
    return found


def _same_cycle(
    recipe: Recipe, store: Store, own: ArtifactId, current: Found, source_version: str | None
) -> Artifact | None:
    """Returns the result of the source version, where no input is of this one."""
    versions = {one.address.version for one in current.values() if isinstance(one, Artifact)}
    if not source_version or own.version in versions:
        return None
    return artifact_of_version(store, recipe.name, own.name.removeprefix(f"{recipe.name}/"), source_version)


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
    if not own or len(members) != recipe.field(previous.members):
        raise InputError(
            f"the {kind} of {completed.address} has {len(members)} members, the recipe has "
            f"{recipe.field(previous.members)}",
            f"set {previous.members} = {len(members)}, or start again under another recipe name",
        )
    return own
