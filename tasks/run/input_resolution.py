"""Input resolution: the artifacts that a stage run reads, the fingerprint of its result, and drift.

Reads the catalogue, the recipe, the records of artifacts and the bytes of files outside the store.
"""

import importlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tasks.core.artifact import Artifact, ArtifactId, InputRef, Record, fingerprint
from tasks.core.config import Config, changes, nearest
from tasks.core.errors import DriftError, InputError, RecipeError
from tasks.core.groups import group_of
from tasks.core.stage import Inputs
from tasks.core.stage_spec import StageSpec
from tasks.core.store import Store
from tasks.run.base_inputs import TOKENIZER, tokenizer_of_base
from tasks.run.catalogue import MAKERS, STAGES
from tasks.run.external_inputs import EXTERNAL, code_refs, external_refs
from tasks.run.lineage import artifact_of_version
from tasks.run.named_inputs import chosen_roles, named_inputs
from tasks.run.previous_version import Found, previous_inputs
from tasks.run.recipe import Recipe
from tasks.run.takedowns import takedowns_in_force

log = logging.getLogger("sluice.runner")


@dataclass(frozen=True)
class ResolvedStage:
    """A stage with its settings and inputs, which determine its result.

    `refs` are the inputs that count in the fingerprint. `named_only` are artifacts of which only a group is read; the
    record lists them, because they lead to the other groups.
    """

    spec: StageSpec
    module: Any
    config: Config
    member: str
    inputs: Inputs
    refs: tuple[InputRef, ...]
    named_only: tuple[InputRef, ...]
    address: ArtifactId

    @property
    def fingerprint(self) -> str:
        """Identity of the result."""
        return self.fingerprint_with(self.refs)

    def fingerprint_with(self, refs: Iterable[InputRef]) -> str:
        """Returns the identity that the result would have with other inputs."""
        return fingerprint(self.spec.name, self.module.VERSION, self.member, self.config, refs)


def resolve(
    recipe: Recipe, store: Store, name: str, version: str, source_version: str | None, member: str
) -> ResolvedStage:
    """Opens the inputs of stage `name` and computes the fingerprint of its result.

    Args:
        recipe: the whole run.
        store: store of its artifacts.
        name: a stage of the catalogue.
        version: version of the artifact to make.
        source_version: version to read inputs of that are missing at `version` (`tasks.run.lineage`).
        member: member of a mapped stage, or "".

    Raises:
        RecipeError: unknown stage, no settings for it in the recipe, or `member` given or missing by mistake.
        InputError: an input does not exist (names the stage that makes it), or a file outside the store is unreadable.
    """
    spec = _spec(recipe, name, member)
    module = importlib.import_module(spec.module)
    config: Config = getattr(recipe, spec.section)
    kind = f"{spec.output}/{member}" if member else spec.output
    address = ArtifactId(f"{recipe.name}/{kind}", version)
    current, named_only = _current_inputs(recipe, store, spec, version, source_version, member)
    named = named_inputs(store, spec, config, address)
    found = {**current, **named}
    found |= previous_inputs(recipe, store, spec, address, current, source_version)
    found |= takedowns_in_force(recipe, store, spec, address, current, named)
    external = list(external_refs(module, config))
    refs = (
        *(artifact.ref(role) for role in sorted(found) for artifact in _listed(found[role])),
        *external,
        *code_refs(module, config),
    )
    return ResolvedStage(spec, module, config, member, Inputs(found, external), refs, named_only, address)


def _spec(recipe: Recipe, name: str, member: str) -> StageSpec:
    spec = STAGES.get(name)
    if spec is None:
        raise RecipeError(f'no stage "{name}"', nearest(name, STAGES))
    if spec.mapped != bool(member):
        raise RecipeError(f'stage "{name}" {"needs" if spec.mapped else "takes no"} member', "see its --help")
    if not recipe.has(spec):
        raise RecipeError(
            f"the recipe {recipe.name} gives the stage {name} nothing to do",
            f"add the section [{spec.section}], and its asset where the recipe has `makes`",
        )
    return spec


def _current_inputs(
    recipe: Recipe, store: Store, spec: StageSpec, version: str, source_version: str | None, member: str
) -> tuple[Found, tuple[InputRef, ...]]:
    """Returns the inputs at this version by role, and references to artifacts of which only groups are read."""

    def opened(kind: str) -> Artifact:
        own = ArtifactId(f"{recipe.name}/{kind}", version)
        if artifact := Artifact.find(store, own):
            return artifact
        if source_version and (artifact := artifact_of_version(store, recipe.name, kind, source_version)):
            return artifact
        where = f"which is not in {store.root}"
        if source_version and source_version != version:
            where = f"and {source_version} has none in {store.root}, nor was it made from one that still exists"
        raise InputError(
            f"stage {spec.name} needs {own}, {where}",
            f"run the stage {MAKERS[kind.partition('/')[0]].name} first, or name a version that has it "
            "(source_version)",
        )

    borrowed: Found = {}
    if spec.tokenizer_of_base and not recipe.has(MAKERS[TOKENIZER]):
        borrowed[TOKENIZER] = tokenizer_of_base(recipe, store, version)
    own = {role: kind.replace("*", member) for role, kind in spec.inputs.items() if role not in borrowed}
    found: Found = {**{role: opened(kind) for role, kind in own.items()}, **borrowed}
    for role, kind in spec.optional_inputs.items():
        if recipe.has(MAKERS[kind]) and (role not in spec.optional_if or recipe.field(spec.optional_if[role])):
            found[role] = opened(kind)
    for role, (kind, names) in spec.fan_in.items():
        found[role] = [opened(f"{kind}/{member}") for member in opened(names).record.members]
    for role, prefixes in spec.input_files.items():
        whole = found[role]
        assert isinstance(whole, Artifact)
        found[role] = whole.restricted(prefixes)
    wholes = {kind: opened(kind) for kind in sorted({kind for kind, _ in spec.groups.values()})}
    found |= {role: group_of(wholes[kind], group) for role, (kind, group) in spec.groups.items()}
    return found, tuple(whole.ref(kind) for kind, whole in wholes.items())


def _listed(found: Artifact | Sequence[Artifact]) -> Sequence[Artifact]:
    return [found] if isinstance(found, Artifact) else found


def as_read_by(resolved: ResolvedStage, record: Record) -> ResolvedStage | None:
    """Returns `resolved` with the previous version that `record` read, if its fingerprint is then that of `record`.

    The previous version is chosen once: the same stage at another version with the same inputs adopts the result, and
    does not start from a version that has been completed since.
    """
    roles = {*resolved.spec.previous, *chosen_roles(resolved.spec, resolved.config)}
    previous = [ref for ref in record.inputs if ref.role in roles]
    artifacts = [ref for ref in resolved.refs if ref.role in resolved.inputs and ref.role not in roles]
    others = [ref for ref in resolved.refs if ref.role not in resolved.inputs]
    refs = (*sorted((*artifacts, *previous), key=lambda ref: ref.role), *others)
    if resolved.fingerprint_with(refs) not in (record.fingerprint, _fingerprint_today(resolved, record)):
        return None
    return replace(resolved, refs=refs)


def check_drift(existing: Artifact, resolved: ResolvedStage) -> None:
    """Raises DriftError, which names the changed field, when `existing` has another fingerprint than `resolved`."""
    record = existing.record
    if resolved.fingerprint in (record.fingerprint, _fingerprint_today(resolved, record)):
        return
    if record.fingerprint == resolved.fingerprint_with(_with_files_as_read(record, resolved)):
        log.warning("[%s] files outside the store have changed; this version keeps what it read", resolved.address)
        return
    raise DriftError(
        f"{resolved.address} exists with another fingerprint: {_difference(record, resolved)}",
        "give this run another version (recipe `version`, --version, or the form's field), or delete the artifact",
    )


def _fingerprint_today(resolved: ResolvedStage, record: Record) -> str:
    """Returns the fingerprint of a record by the current rules for inputs.

    Older records list every input as a whole. The files that the stage reads are looked up in the input's own
    record, so that artifacts of such records are recognized as unchanged.
    """
    if not resolved.spec.input_files:
        return record.fingerprint
    store = resolved.inputs[next(iter(resolved.spec.input_files))].store
    counted = {*(ref.role for ref in resolved.refs), *resolved.spec.previous}
    refs = [_restricted(store, resolved.spec.input_files, ref) for ref in record.inputs if ref.role in counted]
    return fingerprint(record.stage, record.stage_version, record.member, record.config, refs)


def _restricted(store: Store, input_files: Mapping[str, tuple[str, ...]], ref: InputRef) -> InputRef:
    if ref.files or ref.role not in input_files:
        return ref
    artifact = Artifact.find(store, ArtifactId.parse(ref.address))
    if artifact is None or (artifact.record.fingerprint, artifact.record.content) != (ref.fingerprint, ref.content):
        return ref
    return artifact.restricted(input_files[ref.role]).ref(ref.role)


def _with_files_as_read(record: Record, resolved: ResolvedStage) -> list[InputRef]:
    """Returns the inputs with those files outside the store that `record` read.

    Such files may change, like the web: a version keeps the content that it has read, another version reads them again.
    """
    recorded = {ref.address: ref for ref in record.inputs if ref.address.startswith(EXTERNAL)}
    return [recorded.get(ref.address, ref) for ref in resolved.refs]


def _difference(record: Record, resolved: ResolvedStage) -> str:
    if record.stage_version != resolved.module.VERSION:
        current = resolved.module.VERSION
        return f"made by version {record.stage_version} of the stage {resolved.spec.name}, which is {current} now"
    settings = resolved.config.model_dump(mode="json")
    for path, old, new in changes(record.config, settings, resolved.spec.section):
        return f"{path} was {json.dumps(old)} and is {json.dumps(new)}"
    before = {(ref.role, ref.address): ref.identity for ref in record.inputs}
    for ref in resolved.refs:
        if before.get((ref.role, ref.address)) != ref.identity:
            if ref.role == resolved.spec.takedowns:
                return f"the takedown {ref.address} came into force after it was made"
            return f"its input {ref.role} ({ref.address}) has changed"
    return "its inputs have changed"
