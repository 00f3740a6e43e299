"""Input resolution: the artifacts that a stage run reads, the fingerprint of its result, and drift.

Reads the catalogue, the recipe, the records of artifacts and the bytes of files outside the store. Inputs are:
artifacts of the version or its source version, artifacts of the previous version, artifacts whose ids are in settings
(such as `init_from`), takedowns in force, files outside the store, and code with its own versions. A model that a
setting names by its address outside the store is imported first.

In an id in settings, the version `previous` is the newest other version that existed when the run began; without a
recipe, `previous` and `champion` are versions of the same recipe. Takedowns of all versions are inputs, but only their
tombstones are part of fingerprints: an artifact made before a takedown differs from one made after it. A crawl cycle
and a takedown keep the takedowns that they began with, so that a killed run can resume.
"""

import importlib
import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from tasks.core.artifact import EXTERNAL, Artifact, ArtifactId, ArtifactRecord, InputRef, fingerprint
from tasks.core.config import Config, changes, is_operation, nearest
from tasks.core.errors import DriftError, InputError, RecipeError
from tasks.core.ledger import newest_first
from tasks.core.stage import Inputs
from tasks.core.stage_spec import Input, StageSpec, variant_version
from tasks.core.store import Store
from tasks.formats.documents.groups import group_of
from tasks.formats.documents.tombstones import FILES, TAKEDOWN, in_force
from tasks.formats.hooks import Hooks
from tasks.formats.tokens.exposure import BASE, tokenizer_of
from tasks.run.catalogue import MAKERS, STAGES
from tasks.run.lineage import ArtifactsByRole, artifact_of_version, previous_inputs
from tasks.run.outside import code_refs, external_refs
from tasks.run.recipe import Recipe
from tasks.stages.registry.promote import champion_of
from tasks.trainer.checkpoints.fence import first_attempt
from tasks.trainer.config import CHAMPION, PREVIOUS
from tasks.trainer.interchange.address import is_address
from tasks.trainer.tuning.config import FinetuneConfig

log = logging.getLogger("sluice.runner")


@dataclass(frozen=True)
class ResolvedStage:
    """A stage with its settings and inputs, which determine its result.

    `refs` are the inputs that are part of the fingerprint. `named_only` are artifacts of which the stage reads only a
    group; the record lists them too, because they refer to the other groups.
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
        """Identity of the result (`tasks.core.artifact.fingerprint`)."""
        return self.fingerprint_with(self.refs)

    def fingerprint_with(self, refs: Iterable[InputRef]) -> str:
        """Returns the fingerprint that the result would have with other inputs."""
        return fingerprint(self.spec.name, self.module.VERSION, self.member, self.config, refs)


def resolve(
    recipe: Recipe, store: Store, name: str, version: str, source_version: str | None, member: str
) -> ResolvedStage:
    """Opens the inputs of stage `name` and computes the fingerprint of its result.

    Args:
        recipe: the recipe.
        store: store of its artifacts.
        name: name of a stage in the catalogue.
        version: version of the artifact to make.
        source_version: version from which inputs that are missing at `version` are read (`tasks.run.lineage`).
        member: member of a mapped stage, or "".

    Raises:
        RecipeError: the stage is unknown or has nothing to do in the recipe, or `member` is missing or superfluous.
        InputError: an input does not exist (the message names the stage that makes it), or a file outside the store
            cannot be read.
    """
    spec = _spec(recipe, name, member)
    module = importlib.import_module(spec.module)
    config: Config = getattr(recipe, spec.section)
    kind = f"{spec.output}/{member}" if member else spec.output
    address = ArtifactId(f"{recipe.name}/{kind}", version)
    current, named_only = _current_inputs(recipe, store, spec, version, source_version, member)
    named = named_inputs(store, spec, config, address)
    artifacts = {**current, **named}
    artifacts |= previous_inputs(recipe, store, spec, address, current, source_version)
    artifacts |= takedowns_in_force(recipe, store, spec, address, current, named)
    hooks = Hooks.of(module)
    external = list(external_refs(hooks, config, store, address))
    refs = (
        *(artifact.ref(role) for role in sorted(artifacts) for artifact in _as_list(artifacts[role])),
        *external,
        *code_refs(hooks, config),
    )
    return ResolvedStage(spec, module, config, member, Inputs(artifacts, external), refs, named_only, address)


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


@dataclass(frozen=True)
class _Opener:
    """Opens the artifacts of one version that a stage reads; see `resolve`."""

    recipe: Recipe
    store: Store
    spec: StageSpec
    version: str
    source_version: str | None

    def open(self, kind: str, variant: str = "") -> Artifact:
        """Opens the artifact of a kind, at this version or its source version; that of a variant is never elsewhere.

        Raises:
            InputError: it does not exist.
        """
        maker, source = MAKERS[kind.partition("/")[0]].name, "" if variant else self.source_version
        own = ArtifactId(
            f"{self.recipe.name}/{kind}", variant_version(self.version, variant) if variant else self.version
        )
        if artifact := Artifact.find(self.store, own):
            return artifact
        if source and (artifact := artifact_of_version(self.store, self.recipe.name, kind, source)):
            return artifact
        where, remedy = f"which is not in {self.store.root}", f"run the stage {maker} first"
        if variant:
            remedy = f"run the stages up to {maker} with --variant {variant} first"
        elif source and source != self.version:
            where = f"and {source} has none in {self.store.root}, nor was it made from one that still exists"
        if not variant:
            remedy += ", or name a version that has it (source_version)"
        raise InputError(f"stage {self.spec.name} needs {own}, {where}", remedy)

    def variants(self, declared: Input, kind: str, member: str) -> Artifact | list[Artifact]:
        """Opens an artifact that is not the member of a list: one, or one of each variant that is read."""
        section = getattr(self.recipe, self.spec.section)
        variant = declared.variant(member, section) if declared.variant else ""
        opened = [self.open(kind, name) for name in ([variant] if isinstance(variant, str) else variant)]
        read = [artifact.restricted_to(declared.files) if declared.files else artifact for artifact in opened]
        return read[0] if isinstance(variant, str) else read


def _current_inputs(
    recipe: Recipe, store: Store, spec: StageSpec, version: str, source_version: str | None, member: str
) -> tuple[ArtifactsByRole, tuple[InputRef, ...]]:
    """Returns the inputs at this version, and references to artifacts of which only groups are read."""
    opener = _Opener(recipe, store, spec, version, source_version)
    artifacts: ArtifactsByRole = {}
    wholes: dict[str, Artifact] = {}
    for role, declared in spec.own_inputs.items():
        is_made = recipe.has(MAKERS[declared.kind.partition("/")[0]])
        which = declared.member(member, getattr(recipe, spec.section)) if declared.member else None
        if which == "" or not _is_read(recipe, declared, is_made):
            continue
        of = f"/{which}" if which else ""
        if declared.or_of_base and not is_made:
            artifacts[role] = tokenizer_of_base(recipe, store, version)
        elif declared.members_of:
            members = opener.open(declared.members_of + of).record.members
            artifacts[role] = [opener.open(f"{declared.kind}/{name}") for name in members]
        elif declared.group:
            whole = wholes.setdefault(declared.kind, opener.open(declared.kind))
            artifacts[role] = group_of(whole, declared.group)
        elif read := opener.variants(declared, declared.kind.replace("*", member) + of, member):
            artifacts[role] = read
    return artifacts, tuple(wholes[kind].ref(kind) for kind in sorted(wholes))


def _is_read(recipe: Recipe, declared: Input, is_made: bool) -> bool:
    """Returns whether an input is required, or optional and both made and wanted."""
    return not declared.optional or (is_made and (not declared.when or bool(recipe.field(declared.when))))


def _as_list(value: Artifact | Sequence[Artifact]) -> Sequence[Artifact]:
    return [value] if isinstance(value, Artifact) else value


def with_recorded_previous(resolved: ResolvedStage, record: ArtifactRecord) -> ResolvedStage | None:
    """Returns `resolved` with the previous version that `record` read, or None if its fingerprint then still differs.

    The previous version is chosen once: a run of the same stage at another version with the same inputs adopts the
    result, instead of starting from a version that was completed later.
    """
    roles = {*resolved.spec.previous, *chosen_roles(resolved.spec, resolved.config)}
    previous = [ref for ref in record.inputs if ref.role in roles]
    artifacts = [ref for ref in resolved.refs if ref.role in resolved.inputs and ref.role not in roles]
    others = [ref for ref in resolved.refs if ref.role not in resolved.inputs]
    refs = (*sorted((*artifacts, *previous), key=lambda ref: ref.role), *others)
    if resolved.fingerprint_with(refs) != record.fingerprint:
        return None
    return replace(resolved, refs=refs)


def check_drift(existing: Artifact, resolved: ResolvedStage) -> None:
    """Raises DriftError with the changed field if `existing` and `resolved` have different fingerprints."""
    record = existing.record
    if resolved.fingerprint == record.fingerprint:
        return
    if record.fingerprint == resolved.fingerprint_with(_with_recorded_files(record, resolved)):
        log.warning("[%s] files outside the store have changed; this version keeps their old content", resolved.address)
        return
    raise DriftError(
        f"{resolved.address} exists with another fingerprint: {_difference(record, resolved)}",
        "give this run another version (recipe `version`, --version, or the form's field), or delete the artifact",
    )


def check_recorded(existing: Artifact, identity: str) -> None:
    """Raises DriftError if the artifact of a command has another fingerprint than its settings and inputs give now."""
    if existing.record.fingerprint != identity:
        cause = f"{existing.address} exists, and was made with other settings or inputs"
        raise DriftError(cause, "give another --version, or delete the artifact")


def _with_recorded_files(record: ArtifactRecord, resolved: ResolvedStage) -> list[InputRef]:
    """Returns the inputs of `resolved`, with the files outside the store as `record` read them.

    Such files may change, like the web. A version keeps the content that it has read; another version reads them again.
    """
    recorded = {ref.address: ref for ref in record.inputs if ref.address.startswith(EXTERNAL)}
    return [recorded.get(ref.address, ref) for ref in resolved.refs]


def _difference(record: ArtifactRecord, resolved: ResolvedStage) -> str:
    if record.stage_version != resolved.module.VERSION:
        current = resolved.module.VERSION
        return (
            f"made by version {record.stage_version} of the stage {resolved.spec.name}, which now has version {current}"
        )
    settings = resolved.config.model_dump(mode="json")
    for path, old, new in changes(record.config, settings, ""):
        if not is_operation(type(resolved.config), path):
            return f"{resolved.spec.section}.{path} was {json.dumps(old)} and is {json.dumps(new)}"
    recorded = {(ref.role, ref.address): ref.identity for ref in record.inputs}
    for ref in resolved.refs:
        if recorded.get((ref.role, ref.address)) != ref.identity:
            if resolved.spec.takedowns and ref.role == resolved.spec.takedowns.role:
                return f"the takedown {ref.address} came into force after it was made"
            address = str(_setting(resolved.config, resolved.spec.named_inputs.get(ref.role, "")))
            if is_address(address):
                return f"{address}, its input {ref.role}, has changed, and is now {ref.address}"
            return f"its input {ref.role} ({ref.address}) has changed"
    return "its inputs have changed"


def named_inputs(store: Store, stage: StageSpec, config: Config, own: ArtifactId) -> ArtifactsByRole:
    """Returns the artifacts whose ids are in the settings of a stage; roles without an id are left out.

    A model that a setting names by its address outside the store is imported, unless it has been before.

    Args:
        store: store of the artifacts.
        stage: the stage that reads them.
        config: its settings.
        own: id of the artifact that it writes.

    Raises:
        InputError: an artifact does not exist, or is the one that the stage writes; a model cannot be imported.
        SluiceError: see `imported_model`.
    """
    artifacts: ArtifactsByRole = {}
    for role, field in stage.named_inputs.items():
        if not (value := _setting(config, field)):
            continue
        path = f"{stage.section}.{field}"
        if not isinstance(value, str):
            artifacts[role] = [named_artifact(store, path, id_, own) for id_ in value]
            continue
        if not _is_chosen(value):
            artifacts[role] = named_artifact(store, path, value, own)
        elif chosen := _find_chosen(store, role, value, own):
            artifacts[role] = chosen
    return artifacts


def _is_chosen(name: str) -> bool:
    """Returns whether a setting leaves the version to the run."""
    return name in (PREVIOUS, CHAMPION) or (name.endswith(f"@{PREVIOUS}") and not is_address(name))


def chosen_roles(stage: StageSpec, config: Config) -> Sequence[str]:
    """Returns the roles whose artifact is chosen when the run begins, such as that of the previous version."""
    return [role for role, field in stage.named_inputs.items() if _is_chosen(str(_setting(config, field)))]


def _setting(config: Config, path: str) -> Any:
    """Returns the setting at a dotted path; "" without a path, or if a section on the path is missing."""
    value: Any = config if path else ""
    for step in path.split("."):
        value = "" if value in (None, "") else getattr(value, step)
    return value


def named_artifact(store: Store, field: str, name: str, own: ArtifactId | None = None) -> Artifact:
    """Opens an artifact by its id, or a model from elsewhere by its address.

    Args:
        store: store of the artifacts.
        field: what names it, for messages.
        name: the id, or the address.
        own: id of the artifact that the run makes, which cannot be its input.

    Raises:
        InputError, SluiceError: see `named_inputs`.
    """
    if is_address(name):
        from tasks.run.import_model import imported_model

        try:
            return imported_model(store, name)
        except InputError as error:
            raise InputError(f"{field}: {error.cause}", error.remedy) from None
    address = ArtifactId.parse(name)
    if address == own:
        raise InputError(
            f"{field}: {address} is the artifact that this run would make",
            "name an earlier version, or give the run another version",
        )
    if artifact := Artifact.find(store, address):
        return artifact
    raise InputError(
        f"{field}: {address} is not in {store.root}, or was never completed",
        "choose an artifact that `sluice ledger` lists, or remove the setting",
    )


def _find_chosen(store: Store, role: str, value: str, own: ArtifactId) -> Artifact | None:
    """Returns the artifact that a setting without a version meant when the run began, which is now if it has not begun.

    Returns None if there was none.
    """
    if result := Artifact.find(store, own):
        return result.open_input(role) if result.ids_of(role) else None
    began = first_attempt(store, own) or datetime.now(UTC)
    if value == CHAMPION:
        name = f"{own.name.partition('/')[0]}/champion"
    else:
        name = own.name if value == PREVIOUS else ArtifactId.parse(value).name
    versions = (version for version in newest_first(store, name) if version.address != own)
    chosen = next((version for version in versions if version.record.finished <= began), None)
    if chosen is None or value != CHAMPION:
        return chosen
    return champion_of(chosen).open_input("checkpoint")


_FINETUNE = STAGES["finetune"]


def tokenizer_of_base(recipe: Recipe, store: Store, version: str) -> Artifact:
    """Returns the tokenizer of the base model of a recipe's fine-tuning.

    Raises:
        InputError: the recipe names no base, the base does not exist, or its tokenizer is gone.
    """
    own, config = ArtifactId(f"{recipe.name}/{_FINETUNE.output}", version), recipe.of(FinetuneConfig)
    base = named_inputs(store, _FINETUNE, config, own).get(BASE)
    if not isinstance(base, Artifact):
        raise InputError(
            f"[finetune] base: {config.base} is not in {store.root}"
            if config.base
            else f"the recipe {recipe.name} makes no tokenizer, and names no base that has one",
            "name a model that `sluice ledger` lists",
        )
    tokenizer = tokenizer_of(base)
    if tokenizer is None:
        raise InputError(f"the tokenizer of {base.address} is gone", "restore it, or name another base")
    return tokenizer


def takedowns_in_force(
    recipe: Recipe, store: Store, stage: StageSpec, own: ArtifactId, current: ArtifactsByRole, named: ArtifactsByRole
) -> ArtifactsByRole:
    """Returns the takedowns that a stage reads, by role; {} if there are none.

    Args:
        recipe: the recipe.
        store: store of its artifacts.
        stage: the stage that reads them.
        own: id of the artifact that it writes.
        current: its inputs of its own version.
        named: its inputs whose ids are in settings; takedowns of their recipes are included.

    Raises:
        InputError: the record of a takedown cannot be read.
    """
    if not stage.takedowns or (stage.takedowns.when and not recipe.field(stage.takedowns.when)):
        return {}
    deciding = None
    if stage.reads_web or stage.output == TAKEDOWN:
        deciding = Artifact.find(store, own) or current.get(stage.decided_by)
    if isinstance(deciding, Artifact):
        refs = [ref for ref in deciding.record.inputs if ref.address.startswith(f"{recipe.name}/{TAKEDOWN}@")]
        takedowns = [Artifact.open_at(store, ArtifactId.parse(ref.address)) for ref in refs]
    else:
        named_artifacts = [value for value in named.values() if isinstance(value, Artifact)]
        recipes = {recipe.name, *(artifact.address.name.partition("/")[0] for artifact in named_artifacts)}
        takedowns = [takedown for name in sorted(recipes) for takedown in in_force(store, name)]
    return {stage.takedowns.role: [takedown.restricted_to(FILES) for takedown in takedowns]} if takedowns else {}
