"""Input resolution: the artifacts that a stage run reads, the fingerprint of its result, and drift.

Reads the catalogue, the recipe, the records of artifacts and the bytes of files outside the store. Inputs are, in this
order: artifacts of the version or its source version, those of the version before, those that a setting names by id
(such as `init_from`), takedowns in force, files outside the store, and code with versions of its own.

A named version `previous` is the newest other one that was there when the run began. Takedowns count whatever their
version, by their tombstones alone: what was made before one is not what would be made after it. A crawl cycle and a
takedown keep those that they began with, so that a killed one resumes.
"""

import importlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from tasks.core.artifact import Artifact, ArtifactId, ArtifactRecord, InputRef, fingerprint
from tasks.core.config import Config, changes, nearest, sha256_of_json
from tasks.core.digest import sha256_of_stream
from tasks.core.errors import DriftError, InputError, RecipeError
from tasks.core.groups import group_of
from tasks.core.ledger import versions_of
from tasks.core.stage import Inputs
from tasks.core.stage_spec import StageSpec
from tasks.core.store import Store, open_outside
from tasks.formats.documents.tombstones import FILES, TAKEDOWN, in_force
from tasks.formats.tokens.exposure import BASE, tokenizer_of
from tasks.run.catalogue import MAKERS, STAGES
from tasks.run.lineage import Found, artifact_of_version, previous_inputs
from tasks.run.recipe import Recipe
from tasks.trainer.checkpoints.fence import first_attempt
from tasks.trainer.tuning.config import FinetuneConfig

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

    found: Found = {}
    wholes: dict[str, Artifact] = {}
    for role, given in spec.own_inputs.items():
        made = recipe.has(MAKERS[given.kind.partition("/")[0]])
        if given.optional and not (made and (not given.when or recipe.field(given.when))):
            continue
        if given.or_of_base and not made:
            found[role] = tokenizer_of_base(recipe, store, version)
        elif given.members_of:
            found[role] = [opened(f"{given.kind}/{one}") for one in opened(given.members_of).record.members]
        elif given.group:
            whole = wholes.setdefault(given.kind, opened(given.kind))
            found[role] = group_of(whole, given.group)
        else:
            whole = opened(given.kind.replace("*", member))
            found[role] = whole.restricted(given.files) if given.files else whole
    return found, tuple(wholes[kind].ref(kind) for kind in sorted(wholes))


def _listed(found: Artifact | Sequence[Artifact]) -> Sequence[Artifact]:
    return [found] if isinstance(found, Artifact) else found


def as_read_by(resolved: ResolvedStage, record: ArtifactRecord) -> ResolvedStage | None:
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


def _fingerprint_today(resolved: ResolvedStage, record: ArtifactRecord) -> str:
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


def _with_files_as_read(record: ArtifactRecord, resolved: ResolvedStage) -> list[InputRef]:
    """Returns the inputs with those files outside the store that `record` read.

    Such files may change, like the web: a version keeps the content that it has read, another version reads them again.
    """
    recorded = {ref.address: ref for ref in record.inputs if ref.address.startswith(EXTERNAL)}
    return [recorded.get(ref.address, ref) for ref in resolved.refs]


def _difference(record: ArtifactRecord, resolved: ResolvedStage) -> str:
    if record.stage_version != resolved.module.VERSION:
        current = resolved.module.VERSION
        return f"made by version {record.stage_version} of the stage {resolved.spec.name}, which is {current} now"
    settings = resolved.config.model_dump(mode="json")
    for path, old, new in changes(record.config, settings, resolved.spec.section):
        return f"{path} was {json.dumps(old)} and is {json.dumps(new)}"
    before = {(ref.role, ref.address): ref.identity for ref in record.inputs}
    for ref in resolved.refs:
        if before.get((ref.role, ref.address)) != ref.identity:
            if resolved.spec.takedowns and ref.role == resolved.spec.takedowns.role:
                return f"the takedown {ref.address} came into force after it was made"
            return f"its input {ref.role} ({ref.address}) has changed"
    return "its inputs have changed"


PREVIOUS = "previous"


def named_inputs(store: Store, stage: StageSpec, config: Config, own: ArtifactId) -> Found:
    """Returns the artifacts that the settings of a stage name, by role, without an entry where they name none.

    Args:
        store: store of the artifacts.
        stage: the stage that reads them.
        config: its settings.
        own: id of the artifact that it writes.

    Raises:
        InputError: a named artifact does not exist, or is the one that the stage writes.
    """
    found: Found = {}
    for role, field in stage.named_inputs.items():
        if not (given := _setting(config, field)):
            continue
        setting = f"{stage.section}.{field}"
        if not isinstance(given, str):
            found[role] = [_opened(store, setting, ArtifactId.parse(name), own) for name in given]
            continue
        address = ArtifactId.parse(given)
        if address.version != PREVIOUS:
            found[role] = _opened(store, setting, address, own)
        elif previous := _previous(store, role, address.name, own):
            found[role] = previous
    return found


def chosen_roles(stage: StageSpec, config: Config) -> Sequence[str]:
    """Returns the roles whose artifact is chosen when the run begins, and not by its settings."""
    return [role for role, field in stage.named_inputs.items() if str(_setting(config, field)).endswith(f"@{PREVIOUS}")]


def _setting(config: Config, path: str) -> Any:
    """Returns the setting at a dotted path; "" below a section that is not given."""
    found: Any = config
    for step in path.split("."):
        found = "" if found in (None, "") else getattr(found, step)
    return found


def _opened(store: Store, field: str, address: ArtifactId, own: ArtifactId) -> Artifact:
    if address == own:
        raise InputError(
            f"{field}: {address} is what this run would make",
            "name an earlier version, or give the run another version",
        )
    if artifact := Artifact.find(store, address):
        return artifact
    raise InputError(
        f"{field}: {address} is not in {store.root}, or was never completed",
        "list what is there with `python -m tasks ledger`, and name one of these; or leave the setting out",
    )


def _previous(store: Store, role: str, name: str, own: ArtifactId) -> Artifact | None:
    """Returns what the run began with, or would begin with now; None where nothing was there."""
    if made := Artifact.find(store, own):
        refs = [ref for ref in made.record.inputs if ref.role == role]
        return Artifact.open_at(store, ArtifactId.parse(refs[0].address)) if refs else None
    began = first_attempt(store, own) or datetime.now(UTC)
    others = [one for one in versions_of(store, name) if one.address != own and one.record.finished <= began]
    return max(others, key=lambda one: (one.record.finished, one.address), default=None)


EXTERNAL = "external:"
"""Prefix of the id of an input from outside the store."""

CODE = "code:"
"""Prefix of the id of an input that is code."""


def external_refs(module: Any, config: Config) -> Iterator[InputRef]:
    """Yields references to the files outside the store that a stage reads; names and bytes count in the fingerprint.

    Raises:
        InputError: a file cannot be read.
    """
    if not hasattr(module, "external"):
        return
    for role, paths in sorted(module.external(config).items()):
        listing = [[os.path.basename(path), _sha256(role, path)] for path in paths]
        content = sha256_of_json(listing)
        yield InputRef(role=role, address=f"{EXTERNAL}{role}", fingerprint=content, content=content)


def code_refs(module: Any, config: Config) -> Iterator[InputRef]:
    """Yields references to code that only some settings use, with its own versions."""
    if hasattr(module, "code"):
        for name, version in sorted(module.code(config).items()):
            yield InputRef(role=f"{CODE}{name}", address=f"{CODE}{name}", fingerprint=version, content=version)


def _sha256(role: str, path: str) -> str:
    try:
        with open_outside(path) as file:
            return sha256_of_stream(file)
    except OSError as error:
        raise InputError(f"{role}: {path} cannot be read ({error.strerror or error})", "correct the path") from None


_FINETUNE = STAGES["finetune"]


def tokenizer_of_base(recipe: Recipe, store: Store, version: str) -> Artifact:
    """Returns the tokenizer of the model that a fine-tuning begins from.

    Raises:
        InputError: the recipe names no base, there is no such model, or its tokenizer is gone.
    """
    own, config = ArtifactId(f"{recipe.name}/{_FINETUNE.output}", version), recipe.of(FinetuneConfig)
    base = named_inputs(store, _FINETUNE, config, own).get(BASE)
    if not isinstance(base, Artifact):
        raise InputError(
            f"[finetune] base: {config.base} is not in {store.root}"
            if config.base
            else f"the recipe {recipe.name} makes no tokenizer, and names no base that would have one",
            "name a model that `python -m tasks ledger` lists",
        )
    found = tokenizer_of(base)
    if found is None:
        raise InputError(f"the tokenizer of {base.address} is gone", "restore it, or name another base")
    return found


def takedowns_in_force(
    recipe: Recipe, store: Store, stage: StageSpec, own: ArtifactId, current: Found, named: Found
) -> Found:
    """Returns the takedowns that a stage reads, by role; {} where there are none.

    Args:
        recipe: the whole run.
        store: store of its artifacts.
        stage: the stage that reads them.
        own: id of the artifact that it writes.
        current: its inputs of its own version, by role.
        named: its inputs that its settings name, by role: what their recipes have taken down counts, too.

    Raises:
        InputError: a takedown's record cannot be read.
    """
    if not stage.takedowns or (stage.takedowns.when and not recipe.field(stage.takedowns.when)):
        return {}
    deciding = None
    if stage.reads_web or stage.output == TAKEDOWN:
        deciding = Artifact.find(store, own) or current.get(stage.decided_by)
    if isinstance(deciding, Artifact):
        refs = [ref for ref in deciding.record.inputs if ref.address.startswith(f"{recipe.name}/{TAKEDOWN}@")]
        found = [Artifact.open_at(store, ArtifactId.parse(ref.address)) for ref in refs]
    else:
        others = {one.address.name.partition("/")[0] for one in named.values() if isinstance(one, Artifact)}
        found = [one for name in sorted({recipe.name, *others}) for one in in_force(store, name)]
    return {stage.takedowns.role: [one.restricted(FILES) for one in found]} if found else {}
