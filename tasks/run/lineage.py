"""What a version holds: its own artifacts, and those that they were made from.

Where only some stages of a version were run, at a source version, the others' artifacts are at that one. The records
name them, and nothing else is ever taken for them.
"""

import logging
from collections.abc import Iterable, Iterator

from tasks.core.artifact import Artifact, ArtifactId, InputRef
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.run.catalogue import MAKERS, STAGES

log = logging.getLogger("sluice.lineage")


def held(store: Store, recipe: str, kind: str, version: str) -> list[Artifact]:
    """Returns the artifact of a kind that a version holds: its own or, without one, what its artifacts were made from.

    Records are followed from the artifacts of the version to their inputs, and to the inputs of those; the nearest
    counts. Cycles before, which a stage reads too, are no part of the version.

    Args:
        store: where artifacts lie.
        recipe: name of the recipe.
        kind: such as "extracted", or "segment/p0".
        version: where to begin.

    Returns:
        one artifact, or none; several where artifacts of the version were made from different ones.
    """
    wanted = ArtifactId(f"{recipe}/{kind}", version)
    if own := Artifact.find(store, wanted):
        return [own]
    between = _made_from(kind)
    starts = (ArtifactId(f"{recipe}/{name}", version) for name in _own(kind, between))
    level = [artifact for address in starts if (artifact := Artifact.find(store, address))]
    seen = {artifact.address for artifact in level}
    while level:
        refs = {ArtifactId.parse(ref.address): ref for artifact in level for ref in _inputs(artifact, recipe)}
        if named := [ref for at, ref in sorted(refs.items()) if at.name == wanted.name]:
            found = [artifact for ref in named if (artifact := as_read(store, ref))]
            distinct = {(one.record.fingerprint, one.record.content): one for one in reversed(found)}
            return sorted(distinct.values(), key=lambda one: one.address)
        onward = [at for at in sorted(refs) if at not in seen and _kind(at.name, recipe) in between]
        seen.update(onward)
        level = [artifact for at in onward if (artifact := as_read(store, refs[at]))]
    return []


def one_held(store: Store, recipe: str, kind: str, version: str) -> Artifact | None:
    """Returns the artifact of a kind that a version holds (see `held`), or None.

    Raises:
        InputError: artifacts of the version were made from different ones.
    """
    found = held(store, recipe, kind, version)
    if len(found) > 1:
        several = ", ".join(str(artifact.address) for artifact in found)
        raise InputError(
            f"artifacts of {recipe} at {version} were made from different {kind}: {several}",
            "name the version of one of these as source version",
        )
    return found[0] if found else None


def chain(store: Store, recipe: str, version: str) -> dict[str, Artifact]:
    """Returns the last artifact made at a version and everything it was made from, by kind, the last one first.

    The records decide which versions belong together, not equal names. Members of mapped stages are left out, and so is
    what was read of the version before.

    Raises:
        InputError: nothing was made at the version.
    """
    found: dict[str, Artifact] = {}
    for stage in (stage for stage in reversed(STAGES.values()) if not stage.mapped):
        kind = stage.output
        artifact = found.pop(kind, None) or Artifact.find(store, ArtifactId(f"{recipe}/{kind}", version))
        if artifact is None:
            continue
        found[kind] = artifact
        for ref in _inputs(artifact, recipe):
            name = ref.address.partition("@")[0].removeprefix(f"{recipe}/")
            if name in MAKERS and name not in found and (read := Artifact.find(store, ArtifactId.parse(ref.address))):
                found[name] = read
    if not found:
        raise InputError(f"nothing of {recipe}@{version} is in {store.root}", "run the recipe, or name its version")
    return {stage.output: found[stage.output] for stage in reversed(STAGES.values()) if stage.output in found}


def _kind(name: str, recipe: str) -> str:
    """Returns the kind of an artifact's name without its member: "segment" of "demo/segment/p0"."""
    return name.removeprefix(f"{recipe}/").partition("/")[0]


def _made_from(kind: str) -> set[str]:
    """Returns the kinds that a kind goes into, straight or by way of others: records of these can lead to it."""
    found: set[str] = set()
    fresh = {kind.partition("/")[0]}
    while fresh:
        fresh = {stage.output for stage in STAGES.values() if fresh & set(stage.input_kinds())} - found
        found |= fresh
    return found


def _own(kind: str, among: Iterable[str]) -> Iterator[str]:
    """Yields the names, without the recipe's, under which a version may hold artifacts of some kinds."""
    member = kind.partition("/")[2]
    mapped = {stage.output for stage in STAGES.values() if stage.mapped}
    for one in sorted(among):
        if one not in mapped:
            yield one
        elif member:
            yield f"{one}/{member}"


def _inputs(artifact: Artifact, recipe: str) -> Iterator[InputRef]:
    stage = STAGES.get(artifact.record.stage)
    for ref in artifact.record.inputs:
        if ref.address.startswith(f"{recipe}/") and not (stage and ref.role in stage.previous):
            yield ref


def as_read(store: Store, ref: InputRef) -> Artifact | None:
    """Opens what a record names, if it is there and still what was read."""
    artifact = Artifact.find(store, ArtifactId.parse(ref.address))
    if artifact and (artifact.record.fingerprint, artifact.record.content) != (ref.fingerprint, ref.content):
        log.warning("[%s] has been made anew since it was read: it is not taken for what it was", ref.address)
        return None
    return artifact
