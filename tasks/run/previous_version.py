"""Inputs of the previous version, such as the crawl DB or the decided mixture.

Reads the records of artifacts. The previous version is the newest other one that was completed (`ledger.newest`); once
a stage has read it, later runs of the same version read the same one.
"""

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import InputError
from tasks.core.ledger import VERSIONS, newest
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
        source_version: version to read missing inputs of (`Previous.accumulates`).

    Raises:
        InputError: the previous version has another number of members than the recipe; or, of what accumulates, another
            version has been completed since this one was begun.
    """
    if not stage.previous or (stage.previous_if and not recipe.field(stage.previous_if)):
        return {}
    member = own.name.removeprefix(f"{recipe.name}/").partition("/")[2]
    deciding = Artifact.find(store, own) or current.get(stage.previous_as)
    source = _same_cycle(recipe, store, own, current, source_version)
    found: Found = {}
    for role, previous in stage.previous.items():
        like = deciding or (
            _completed(recipe, store, previous, own.version) or source if previous.accumulates else None
        )
        if isinstance(like, Artifact):
            addresses = _read_by(like, role)
            if previous.accumulates and source_version is None and like.address != own:
                _require_newest(recipe, store, previous, role, like, own.version)
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


def _completed(recipe: Recipe, store: Store, previous: Previous, version: str) -> Artifact | None:
    return Artifact.find(store, ArtifactId(f"{recipe.name}/{previous.completed_by}", version))


def _read_by(artifact: Artifact, role: str) -> list[ArtifactId]:
    return [ArtifactId.parse(ref.address) for ref in artifact.record.inputs if ref.role == role]


def _require_newest(recipe: Recipe, store: Store, previous: Previous, role: str, begun: Artifact, version: str) -> None:
    """Raises InputError where a version was completed that has more in it than the one that `version` began from."""
    name = f"{recipe.name}/{previous.completed_by}"
    latest = newest(store, name, but=version)
    before = [found for address in _read_by(begun, role) if (found := Artifact.find(store, address))]
    held = max((artifact.record.metrics.get(VERSIONS, 0.0) for artifact in before), default=0.0)
    if latest is None or latest.record.metrics.get(VERSIONS, 0.0) <= held:
        return
    front: Artifact | None = latest
    while front is not None:
        if front.address.version == version:
            return  # it has been completed before, and is made again
        parents = _read_by(front, role)
        front = Artifact.find(store, parents[0]) if parents else None
    raise InputError(
        f"{latest.address} was completed after {begun.address} had been made, and has documents that this version was "
        "not compared with",
        f"remove what {recipe.name} has of version {version} from {begun.address} on, and run it again; or, if it is "
        "another result of a version, name that one as source version",
    )


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
