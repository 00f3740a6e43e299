"""Binds a stage run to its inputs: which artifacts it reads, what its result's identity is, and whether it has drifted.

Reads the catalogue, the recipe, the records of artifacts and the bytes of files outside the store.
"""

import hashlib
import importlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.core.artifact import Artifact, ArtifactId, InputRef, Record, fingerprint
from tasks.core.config import Config, canonical_json, changes, nearest
from tasks.core.errors import DriftError, InputError, RecipeError
from tasks.core.groups import group_of
from tasks.core.ledger import newest
from tasks.core.stage import Inputs
from tasks.core.store import Store, read_outside
from tasks.run.catalogue import CRAWL, STAGES, Stage
from tasks.run.lineage import one_held
from tasks.run.recipe import Recipe

log = logging.getLogger("sluice.runner")

EXTERNAL = "external:"
"""Begins the address of an input that lies outside the store."""

CODE = "code:"
"""Begins the address of an input that is code."""


@dataclass(frozen=True)
class ResolvedStage:
    """A stage with everything that decides what it makes: `refs` are the inputs that do.

    `beside` names artifacts of which only one group is read: where the others can be found that belong to it.
    """

    stage: Stage
    module: Any
    config: Config
    inputs: Inputs
    refs: tuple[InputRef, ...]
    beside: tuple[InputRef, ...]
    address: ArtifactId
    fingerprint: str


def bind(
    recipe: Recipe, store: Store, name: str, version: str, source_version: str | None, member: str
) -> ResolvedStage:
    """Finds the inputs of `name` and fingerprints what it would make of them.

    Args:
        recipe: the whole run.
        store: where its artifacts lie.
        name: a stage of the catalogue.
        version: version of the artifact to make.
        source_version: where an input is missing at `version`, the version that holds it (`tasks.run.lineage`).
        member: which member of a mapped stage, or "".

    Raises:
        RecipeError: there is no such stage, the recipe has nothing for it, or a member too many or too few.
        InputError: an input does not exist, names the stage that makes it; or a file outside the store cannot be read.
    """
    stage = STAGES.get(name)
    if stage is None:
        raise RecipeError(f'no stage "{name}"', nearest(name, STAGES))
    if stage.mapped != bool(member):
        raise RecipeError(f'stage "{name}" {"needs" if stage.mapped else "takes no"} member', "see its --help")
    if not recipe.has(stage):
        raise RecipeError(
            f"the recipe {recipe.name} gives the stage {name} nothing to do",
            f"add the section [{stage.section}], and what it makes where the recipe has `makes`",
        )
    module = importlib.import_module(stage.module)
    config: Config = getattr(recipe, stage.section)
    kind = f"{stage.writes}/{member}" if member else stage.writes
    address = ArtifactId(f"{recipe.name}/{kind}", version)
    read, beside = _read(recipe, store, stage, version, source_version, member)
    found = {**read, **_earlier(recipe, store, stage, address)}
    external = list(_external(module, config))
    refs = (
        *(one.ref(role) for role in sorted(found) for one in _several(found[role])),
        *external,
        *_code(module, config),
    )
    print_ = fingerprint(name, module.VERSION, member, config, refs)
    return ResolvedStage(stage, module, config, Inputs(found, external), refs, beside, address, print_)


def _read(
    recipe: Recipe, store: Store, stage: Stage, version: str, source_version: str | None, member: str
) -> tuple[dict[str, Artifact | list[Artifact]], tuple[InputRef, ...]]:
    """Returns the inputs of the version by role, and what of them only groups are read of (`ResolvedStage.beside`)."""

    def one(kind: str) -> Artifact:
        own = ArtifactId(f"{recipe.name}/{kind}", version)
        if artifact := Artifact.find(store, own):
            return artifact
        if source_version and (artifact := one_held(store, recipe.name, kind, source_version)):
            return artifact
        maker = next((s.name for s in STAGES.values() if s.writes == kind.partition("/")[0]), "")
        where = f"which is not in {store.root}"
        if source_version and source_version != version:
            where = f"and {source_version} holds none in {store.root}, nor was it made from one that is still there"
        raise InputError(
            f"stage {stage.name} needs {own}, {where}",
            f"run the stage {maker} first, or name a version that holds it (source_version)",
        )

    found: dict[str, Artifact | list[Artifact]] = {
        role: one(kind.replace("*", member)) for role, kind in stage.reads.items()
    }
    found |= {role: one(STAGES[maker].writes) for role, maker in stage.wants.items() if recipe.has(STAGES[maker])}
    for role, (kind, names) in stage.gathers.items():
        found[role] = [one(f"{kind}/{member}") for member in one(names).record.members]
    wholes = {kind: one(kind) for kind in sorted({kind for kind, _ in stage.groups.values()})}
    found |= {role: group_of(wholes[kind], group) for role, (kind, group) in stage.groups.items()}
    return found, tuple(whole.ref(kind) for kind, whole in wholes.items())


def _earlier(recipe: Recipe, store: Store, stage: Stage, own: ArtifactId) -> dict[str, Artifact | list[Artifact]]:
    """Finds the inputs of the cycle before. Once bound they stay: a run repeated later reads what it read first."""
    if not stage.earlier or (stage.section == CRAWL and not recipe.crawl.recrawl):
        return {}
    member = own.name.removeprefix(f"{recipe.name}/").partition("/")[2]
    bound = Artifact.find(store, own)
    if bound is None and member and "fetchlist" in stage.reads:  # all of a cycle starts from the same crawl DB
        bound = Artifact.find(store, ArtifactId(f"{recipe.name}/fetchlist/{member}", own.version))
    found: dict[str, Artifact | list[Artifact]] = {}
    for role, (wanted, closing) in stage.earlier.items():
        if bound:
            refs = [ArtifactId.parse(ref.address) for ref in bound.record.inputs if ref.role == role]
            addresses = refs
        else:
            addresses = _addresses_before(recipe, store, wanted, closing, member, own.version)
        several = [Artifact.open_at(store, address) for address in addresses]
        if several:
            found[role] = several if wanted.endswith("/*") and not member else several[0]
    return found


def _addresses_before(
    recipe: Recipe, store: Store, kind: str, closing: str, member: str, version: str
) -> list[ArtifactId]:
    """Returns where `kind` lies in the newest cycle that has come to its end; nothing where there is none."""
    closed = newest(store, f"{recipe.name}/{closing}", but=version)
    if closed is None:
        return []
    name = f"{recipe.name}/{kind.replace('*', member)}" if member else f"{recipe.name}/{kind}"
    if not kind.endswith("/*"):
        return [ArtifactId(name, closed.address.version)]
    held = sorted(
        ArtifactId.parse(ref.address)
        for ref in closed.record.inputs
        if ref.address.startswith(f"{recipe.name}/{kind.removesuffix('*')}")
    )
    if not member:
        return held
    mine = [address for address in held if address.name == name]
    if not mine or len(held) != recipe.crawl.partitions:
        raise InputError(
            f"the crawl DB of {closed.address} has {len(held)} partitions, the recipe asks for "
            f"{recipe.crawl.partitions}",
            f"set [crawl] partitions = {len(held)}, or begin a new crawl under another recipe name",
        )
    return mine


def _external(module: Any, config: Config) -> Iterator[InputRef]:
    """Pins files from outside the store: their names and bytes enter the fingerprint."""
    if not hasattr(module, "external"):
        return
    for role, paths in sorted(module.external(config).items()):
        listing = [[os.path.basename(path), _hashed(role, path)] for path in paths]
        content = hashlib.sha256(canonical_json(listing).encode()).hexdigest()
        yield InputRef(role=role, address=f"{EXTERNAL}{role}", fingerprint=content, content=content)


def _code(module: Any, config: Config) -> Iterator[InputRef]:
    """Names code that only some settings bring in, and that has versions of its own."""
    if hasattr(module, "code"):
        for name, version in sorted(module.code(config).items()):
            yield InputRef(role=f"{CODE}{name}", address=f"{CODE}{name}", fingerprint=version, content=version)


def _hashed(role: str, path: str) -> str:
    try:
        if "://" in path:
            return hashlib.sha256(read_outside(path)).hexdigest()
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{role}: {path} cannot be read ({error.strerror or error})", "correct the path") from None


def _several(found: Artifact | Sequence[Artifact]) -> Sequence[Artifact]:
    return [found] if isinstance(found, Artifact) else found


def check_drift(existing: Artifact, bound: ResolvedStage) -> None:
    """Raises DriftError, naming the field that changed, when `existing` is not what `bound` would make."""
    record = existing.record
    if record.fingerprint == bound.fingerprint:
        return
    if record.fingerprint == _with_files_as_read(record, bound):
        log.warning("[%s] files outside the store have changed; this version keeps what it read", bound.address)
        return
    raise DriftError(
        f"{bound.address} exists with another fingerprint: {_difference(record, bound)}",
        "give this run another version (recipe `version`, --version, or the form's field), or delete the artifact",
    )


def _with_files_as_read(record: Record, bound: ResolvedStage) -> str:
    """Returns the fingerprint as if files outside the store were as `record` read them.

    Such files are like the web: they move, and a version of an artifact keeps how they were. Another reads them anew.
    """
    read = {ref.address: ref for ref in record.inputs if ref.address.startswith(EXTERNAL)}
    refs = [read.get(ref.address, ref) for ref in bound.refs]
    return fingerprint(bound.stage.name, bound.module.VERSION, record.member, bound.config, refs)


def _difference(record: Record, bound: ResolvedStage) -> str:
    if record.stage_version != bound.module.VERSION:
        return f"by version {record.stage_version} of the stage {bound.stage.name}, which is {bound.module.VERSION} now"
    now = bound.config.model_dump(mode="json")
    for path, old, new in changes(record.config, now, bound.stage.section):
        return f"{path} was {json.dumps(old)} and is {json.dumps(new)}"
    before = {(ref.role, ref.address): ref for ref in record.inputs}
    for ref in bound.refs:
        held = before.get((ref.role, ref.address))
        if held is None or (held.fingerprint, held.content) != (ref.fingerprint, ref.content):
            return f"its input {ref.role} ({ref.address}) is not what it was"
    return "its inputs are not what they were"
