"""Lineage: the artifacts of a version, its own, those that they were made from, and those of the version before.

Reads records. Where only some stages of a version were run, with a source version, the artifacts of the others are
those that the records list; artifacts are never matched by name alone. The previous version is the newest other one
that was completed (`ledger.newest`); once a stage has read it, later runs of the same version read the same one.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tasks.core.artifact import Artifact, ArtifactId, InputRef
from tasks.core.errors import InputError
from tasks.core.ledger import VERSIONS, newest
from tasks.core.stage_spec import PreviousInput, StageSpec
from tasks.core.store import Store
from tasks.run.catalogue import MAKERS, STAGES
from tasks.run.recipe import Recipe

log = logging.getLogger("sluice.lineage")

Found = dict[str, Artifact | list[Artifact]]


def artifacts_of_version(store: Store, recipe: str, kind: str, version: str) -> list[Artifact]:
    """Returns the artifacts of a kind that belong to a version: its own, else those that its artifacts were made from.

    Follows records from the artifacts of the version to their inputs, and so on; the nearest match counts. Inputs of
    other versions (`StageSpec.of_other_versions`) are not followed.

    Args:
        store: store of the artifacts.
        recipe: name of the recipe.
        kind: such as "extracted", or "segment/p0".
        version: version to start at.

    Returns:
        one artifact, or none; several where artifacts of the version were made from different ones.
    """
    target = ArtifactId(f"{recipe}/{kind}", version)
    if own := Artifact.find(store, target):
        return [own]
    between = _made_from(kind)
    start = (ArtifactId(f"{recipe}/{name}", version) for name in _own(kind, between))
    level = [artifact for address in start if (artifact := Artifact.find(store, address))]
    seen = {artifact.address for artifact in level}
    while level:
        refs = {ArtifactId.parse(ref.address): ref for artifact in level for ref in _inputs(artifact, recipe)}
        if matching := [ref for address, ref in sorted(refs.items()) if address.name == target.name]:
            found = [artifact for ref in matching if (artifact := as_read(store, ref))]
            distinct = {
                (artifact.record.fingerprint, artifact.record.content): artifact for artifact in reversed(found)
            }
            return sorted(distinct.values(), key=lambda artifact: artifact.address)
        following = [
            address for address in sorted(refs) if address not in seen and _kind(address.name, recipe) in between
        ]
        seen.update(following)
        level = [artifact for address in following if (artifact := as_read(store, refs[address]))]
    return []


def artifact_of_version(store: Store, recipe: str, kind: str, version: str) -> Artifact | None:
    """Returns the artifact of a kind that belongs to a version (see `artifacts_of_version`), or None.

    Raises:
        InputError: artifacts of the version were made from different ones.
    """
    found = artifacts_of_version(store, recipe, kind, version)
    if len(found) > 1:
        listed = ", ".join(str(artifact.address) for artifact in found)
        raise InputError(
            f"artifacts of {recipe} at {version} were made from different {kind}: {listed}",
            "name the version of one of these as source version",
        )
    return found[0] if found else None


def chain(store: Store, recipe: str, version: str) -> dict[str, Artifact]:
    """Returns the last artifact made at a version and all that it was made from, by kind, the last one first.

    Records determine which versions belong together, not equal names. Members of mapped stages are left out, and so are
    inputs of other versions.

    Raises:
        InputError: nothing was made at the version.
    """
    stages = [stage for stage in STAGES.values() if not stage.mapped]
    with ThreadPoolExecutor(len(stages)) as pool:  # one wait for a remote store instead of twenty
        addresses = [ArtifactId(f"{recipe}/{stage.output}", version) for stage in stages]
        own = dict(
            zip((stage.output for stage in stages), pool.map(partial(Artifact.find, store), addresses), strict=True)
        )
    found = _followed(store, recipe, {kind: artifact for kind, artifact in own.items() if artifact})
    if not found:
        raise InputError(f"nothing of {recipe}@{version} is in {store.root}", "run the recipe, or name its version")
    return found


def chain_of(artifact: Artifact) -> dict[str, Artifact]:
    """Returns an artifact and all that it was made from, as `chain` does for the last one of a version."""
    recipe, _, kind = artifact.address.name.partition("/")
    return _followed(artifact.store, recipe, {kind: artifact})


def as_read(store: Store, ref: InputRef) -> Artifact | None:
    """Opens the artifact of a reference, if it exists and is unchanged since it was read."""
    artifact = Artifact.find(store, ArtifactId.parse(ref.address))
    if artifact and (artifact.record.fingerprint, artifact.record.content) != (ref.fingerprint, ref.content):
        log.warning("[%s] was made again since it was read, with another result: it is not used", ref.address)
        return None
    return artifact


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
        source_version: version to read missing inputs of (`PreviousInput.accumulates`).

    Raises:
        InputError: the previous version has another number of members than the recipe; or, of what accumulates, another
            version has been completed since this one was begun.
    """
    wanted = {role: one for role, one in stage.previous.items() if not one.when or recipe.field(one.when)}
    if not wanted:
        return {}
    member = own.name.removeprefix(f"{recipe.name}/").partition("/")[2]
    deciding = Artifact.find(store, own) or current.get(stage.decided_by)
    source = _same_cycle(recipe, store, own, current, source_version)
    found: Found = {}
    for role, previous in wanted.items():
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


def _followed(store: Store, recipe: str, own: Mapping[str, Artifact]) -> dict[str, Artifact]:
    """Returns what records lead to, by kind; of a kind that none leads to, the one of `own`."""
    found: dict[str, Artifact] = {}
    known = {artifact.address: artifact for artifact in own.values()}
    for stage in reversed(STAGES.values()):
        kind = stage.output
        artifact = found.pop(kind, None) or own.get(kind)
        if artifact is None:
            continue
        found[kind] = artifact
        for ref in _inputs(artifact, recipe):
            name = ref.address.partition("@")[0].removeprefix(f"{recipe}/")
            address = ArtifactId.parse(ref.address)
            if name in MAKERS and name not in found:
                read = known.get(address) or Artifact.find(store, address)
                if read:
                    found[name] = read
    return {stage.output: found[stage.output] for stage in reversed(STAGES.values()) if stage.output in found}


def _kind(name: str, recipe: str) -> str:
    """Returns the kind of an artifact's name without its member: "segment" of "demo/segment/p0"."""
    return name.removeprefix(f"{recipe}/").partition("/")[0]


def _made_from(kind: str) -> set[str]:
    """Returns the kinds that are made from a kind, directly or indirectly: their records can lead to it."""
    found: set[str] = set()
    added = {kind.partition("/")[0]}
    while added:
        added = {stage.output for stage in STAGES.values() if added & set(stage.input_kinds())} - found
        found |= added
    return found


def _own(kind: str, among: Iterable[str]) -> Iterator[str]:
    """Yields the names, without the recipe's, that a version's own artifacts of some kinds may have."""
    member = kind.partition("/")[2]
    mapped = {stage.output for stage in STAGES.values() if stage.mapped}
    for name in sorted(among):
        if name not in mapped:
            yield name
        elif member:
            yield f"{name}/{member}"


def _inputs(artifact: Artifact, recipe: str) -> Iterator[InputRef]:
    stage = STAGES.get(artifact.record.stage)
    for ref in artifact.record.inputs:
        if ref.address.startswith(f"{recipe}/") and not (stage and ref.role in stage.of_other_versions):
            yield ref


def _same_cycle(
    recipe: Recipe, store: Store, own: ArtifactId, current: Found, source_version: str | None
) -> Artifact | None:
    """Returns the result of the source version, where no input is of this one."""
    versions = {one.address.version for one in current.values() if isinstance(one, Artifact)}
    if not source_version or own.version in versions:
        return None
    return artifact_of_version(store, recipe.name, own.name.removeprefix(f"{recipe.name}/"), source_version)


def _completed(recipe: Recipe, store: Store, previous: PreviousInput, version: str) -> Artifact | None:
    return Artifact.find(store, ArtifactId(f"{recipe.name}/{previous.completed_by}", version))


def _read_by(artifact: Artifact, role: str) -> list[ArtifactId]:
    return [ArtifactId.parse(ref.address) for ref in artifact.record.inputs if ref.role == role]


def _require_newest(
    recipe: Recipe, store: Store, previous: PreviousInput, role: str, begun: Artifact, version: str
) -> None:
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


def _newest_completed(
    recipe: Recipe, store: Store, previous: PreviousInput, member: str, version: str
) -> list[ArtifactId]:
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
