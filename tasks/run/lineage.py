"""Lineage: the artifacts of a version, the artifacts that they were made from, and those of the previous version.

Reads records. If only some stages were run at a version, with a source version, the artifacts of the other stages are
those that the records refer to; artifacts are never matched only by name. The previous version is the newest other
version that is complete (`ledger.newest`). Once a stage has read it, later runs of the same version read the same one.
"""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tasks.core.artifact import Artifact, ArtifactId, InputRef
from tasks.core.errors import InputError
from tasks.core.ledger import newest
from tasks.core.stage_spec import PreviousInput, StageSpec
from tasks.core.store import Store
from tasks.core.version_index import VERSIONS
from tasks.run.catalogue import MAKERS, STAGES
from tasks.run.recipe import Recipe

ArtifactsByRole = dict[str, Artifact | list[Artifact]]
"""Inputs of a stage by role; a list for a fan-in role."""


def artifacts_of_version(store: Store, recipe: str, kind: str, version: str) -> list[Artifact]:
    """Returns the artifacts of a kind that belong to a version: its own, else those that its artifacts were made from.

    Follows records breadth-first from the artifacts of the version to their inputs, up to the nearest match. Inputs
    from other versions (`StageSpec.of_other_versions`) are not followed.

    Args:
        store: store of the artifacts.
        recipe: name of the recipe.
        kind: kind of the artifacts, such as "extracted" or "segment/p0".
        version: version to start at.

    Returns:
        one artifact or none; several if artifacts of the version were made from different ones.
    """
    target = ArtifactId(f"{recipe}/{kind}", version)
    if own := Artifact.find(store, target):
        return [own]
    between = _downstream_kinds(kind)
    start = (ArtifactId(f"{recipe}/{name}", version) for name in _names_of_kinds(between, kind.partition("/")[2]))
    level = [artifact for address in start if (artifact := Artifact.find(store, address))]
    visited = {artifact.address for artifact in level}
    while level:
        refs = {ArtifactId.parse(ref.address): ref for artifact in level for ref in _inputs(artifact, recipe)}
        if matches := [ref for address, ref in sorted(refs.items()) if address.name == target.name]:
            artifacts = [artifact for ref in matches if (artifact := Artifact.find_unchanged(store, ref))]
            distinct = {
                (artifact.record.fingerprint, artifact.record.content): artifact for artifact in reversed(artifacts)
            }
            return sorted(distinct.values(), key=lambda artifact: artifact.address)
        following = [
            address for address in sorted(refs) if address not in visited and _kind(address.name, recipe) in between
        ]
        visited.update(following)
        level = [artifact for address in following if (artifact := Artifact.find_unchanged(store, refs[address]))]
    return []


def artifact_of_version(store: Store, recipe: str, kind: str, version: str) -> Artifact | None:
    """Returns the artifact of a kind that belongs to a version (see `artifacts_of_version`), or None.

    Raises:
        InputError: artifacts of the version were made from different artifacts of the kind.
    """
    artifacts = artifacts_of_version(store, recipe, kind, version)
    if len(artifacts) > 1:
        addresses = ", ".join(str(artifact.address) for artifact in artifacts)
        raise InputError(
            f"artifacts of {recipe} at {version} were made from different {kind}: {addresses}",
            "name the version of one of these as source version",
        )
    return artifacts[0] if artifacts else None


def chain(store: Store, recipe: str, version: str) -> dict[str, Artifact]:
    """Returns the last artifact made at a version and all artifacts that it was made from, by kind, last one first.

    Records determine which versions belong together, not equal names. Members of mapped stages and inputs from other
    versions are not included.

    Raises:
        InputError: the version has no artifact.
    """
    stages = [stage for stage in STAGES.values() if not stage.mapped]
    with ThreadPoolExecutor(len(stages)) as pool:  # all requests to a remote store at once
        addresses = [ArtifactId(f"{recipe}/{stage.output}", version) for stage in stages]
        own = dict(
            zip((stage.output for stage in stages), pool.map(partial(Artifact.find, store), addresses), strict=True)
        )
    artifacts = _follow(store, recipe, {kind: artifact for kind, artifact in own.items() if artifact})
    if not artifacts:
        raise InputError(f"nothing of {recipe}@{version} is in {store.root}", "run the recipe, or name its version")
    return artifacts


def chain_of(artifact: Artifact) -> dict[str, Artifact]:
    """Returns an artifact and all artifacts that it was made from, by kind, as `chain` does."""
    recipe, _, kind = artifact.address.name.partition("/")
    return _follow(artifact.store, recipe, {kind: artifact})


def previous_inputs(
    recipe: Recipe,
    store: Store,
    stage: StageSpec,
    own: ArtifactId,
    current: ArtifactsByRole,
    source_version: str | None = None,
) -> ArtifactsByRole:
    """Returns the inputs from the previous version; roles without one are left out.

    Args:
        recipe: the recipe.
        store: store of its artifacts.
        stage: the stage that reads them.
        own: id of the artifact that it writes.
        current: its inputs of its own version, or of the source version if they are missing there.
        source_version: version from which missing inputs are read (see `PreviousInput.accumulates`).

    Raises:
        InputError: the previous version has another number of members than the recipe; or, for an input that
            accumulates, another version was completed after this one was begun.
    """
    active = {role: previous for role, previous in stage.previous.items() if _is_active(recipe, previous)}
    if not active:
        return {}
    member = own.name.removeprefix(f"{recipe.name}/").partition("/")[2]
    deciding = Artifact.find(store, own) or current.get(stage.decided_by)
    source = _same_cycle(recipe, store, own, current, source_version)
    inputs: ArtifactsByRole = {}
    for role, previous in active.items():
        precedent = deciding
        if precedent is None and previous.accumulates:
            completed = ArtifactId(f"{recipe.name}/{previous.completed_by}", own.version)
            precedent = Artifact.find(store, completed) or source
        if isinstance(precedent, Artifact):
            addresses = precedent.ids_of(role)
            if previous.accumulates and source_version is None and precedent.address != own:
                _require_newest(recipe, store, previous, role, precedent, own.version)
        else:
            addresses = _newest_completed(recipe, store, previous, member, own.version)
        artifacts = [Artifact.open_at(store, address) for address in addresses]
        if artifacts:
            inputs[role] = artifacts if previous.kind.endswith("/*") and not member else artifacts[0]
    return inputs


def _is_active(recipe: Recipe, previous: PreviousInput) -> bool:
    return not previous.when or bool(recipe.field(previous.when))


def _follow(store: Store, recipe: str, own: Mapping[str, Artifact]) -> dict[str, Artifact]:
    """Returns the artifacts that records refer to, by kind, and those of `own` for kinds without a reference."""
    artifacts: dict[str, Artifact] = {}
    opened = {artifact.address: artifact for artifact in own.values()}
    for stage in reversed(STAGES.values()):
        kind = stage.output
        artifact = artifacts.pop(kind, None) or own.get(kind)
        if artifact is None:
            continue
        artifacts[kind] = artifact
        for ref in _inputs(artifact, recipe):
            name = ref.address.partition("@")[0].removeprefix(f"{recipe}/")
            address = ArtifactId.parse(ref.address)
            if name in MAKERS and name not in artifacts:
                source = opened.get(address) or Artifact.find(store, address)
                if source:
                    artifacts[name] = source
    return {stage.output: artifacts[stage.output] for stage in reversed(STAGES.values()) if stage.output in artifacts}


def _kind(name: str, recipe: str) -> str:
    """Returns the kind in an artifact's name, without member: "segment" for "demo/segment/p0"."""
    return name.removeprefix(f"{recipe}/").partition("/")[0]


def _downstream_kinds(kind: str) -> set[str]:
    """Returns the kinds that are made from a kind, directly or indirectly; their records can lead to it."""
    kinds: set[str] = set()
    added = {kind.partition("/")[0]}
    while added:
        added = {stage.output for stage in STAGES.values() if added & set(stage.input_kinds())} - kinds
        kinds |= added
    return kinds


def _names_of_kinds(kinds: Iterable[str], member: str) -> Iterator[str]:
    """Yields the names, without the recipe's, of artifacts of some kinds; for mapped stages, those of one member."""
    mapped = {stage.output for stage in STAGES.values() if stage.mapped}
    for name in sorted(kinds):
        if name not in mapped:
            yield name
        elif member:
            yield f"{name}/{member}"


def _inputs(artifact: Artifact, recipe: str) -> Iterator[InputRef]:
    """Yields the references to artifacts of the recipe that belong to the same version."""
    stage = STAGES.get(artifact.record.stage)
    for ref in artifact.record.inputs:
        if ref.address.startswith(f"{recipe}/") and not (stage and ref.role in stage.of_other_versions):
            yield ref


def _same_cycle(
    recipe: Recipe, store: Store, own: ArtifactId, current: ArtifactsByRole, source_version: str | None
) -> Artifact | None:
    """Returns the result at the source version if no input is from the own version, else None."""
    versions = {value.address.version for value in current.values() if isinstance(value, Artifact)}
    if not source_version or own.version in versions:
        return None
    return artifact_of_version(store, recipe.name, own.name.removeprefix(f"{recipe.name}/"), source_version)


def _require_newest(
    recipe: Recipe, store: Store, previous: PreviousInput, role: str, begun: Artifact, version: str
) -> None:
    """Raises InputError if another version contains more versions than the one that `version` began from."""
    name = f"{recipe.name}/{previous.completed_by}"
    latest = newest(store, name, but=version)
    inputs = [artifact for address in begun.ids_of(role) if (artifact := Artifact.find(store, address))]
    versions = max((artifact.record.metrics.get(VERSIONS, 0.0) for artifact in inputs), default=0.0)
    if latest is None or latest.record.metrics.get(VERSIONS, 0.0) <= versions:
        return
    current: Artifact | None = latest
    while current is not None:
        if current.address.version == version:
            return  # this version was complete before and is made again
        parents = current.ids_of(role)
        current = Artifact.find(store, parents[0]) if parents else None
    raise InputError(
        f"{latest.address} was completed after {begun.address} was made, and has documents that this version was not "
        "compared with",
        f"remove the artifacts of {recipe.name} at version {version} from {begun.address} on, and run it again; or, if "
        "it is another result of an earlier version, give that one as source version",
    )


def _newest_completed(
    recipe: Recipe, store: Store, previous: PreviousInput, member: str, version: str
) -> list[ArtifactId]:
    completed = newest(store, f"{recipe.name}/{previous.completed_by}", but=version, unless=previous.unless)
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
