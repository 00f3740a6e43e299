"""Stage annotate: documents -> attributes, measured in one pass by the annotators whose groups are missing.

Reads `extracted`, and the trained models that annotators declare. The column of an annotator is a group, an artifact of
its own (`documents.groups`): `<recipe>/measured/<annotator>@<version>`, with the part names and row order of the
documents, so that dedup and consolidate join by position. The fingerprint of a group depends on everything that affects
it: the documents, the annotator's version and settings, and the models, files and groups that it reads. So adding an
annotator only runs this annotator, and changing a setting only runs the annotators that depend on it.

Writes the groups that exist neither at this version nor at the source version, and `attributes`: its record refers to
all groups of the version, and `groups.json` lists their content hashes.

Documents are neither changed nor dropped, and no limit is applied, so a changed limit only reruns consolidate. A
document on which an annotator fails keeps its row, with null attributes and the error; annotators that do not read
these attributes still process it.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow.compute as pc

from tasks.core import parquet
from tasks.core.artifact import EXTERNAL as OUTSIDE
from tasks.core.artifact import Artifact, InputRef, fingerprint
from tasks.core.clients import hub
from tasks.core.commit import commit
from tasks.core.config import Config, changes
from tasks.core.engine import Engine
from tasks.core.errors import DriftError, InputError
from tasks.core.ledger import Ledger
from tasks.core.part import POISON
from tasks.core.stage import Inputs, Output, Report, total
from tasks.filters.base import Annotator
from tasks.filters.catalogue import annotator
from tasks.formats.documents.external_files import DatasetFiles, model_file
from tasks.formats.documents.groups import KIND, address_of, group_refs, path_of, ref_to, unchanged_groups
from tasks.formats.documents.words import WORDS
from tasks.formats.hooks import External, Hooks
from tasks.stages.annotate import AnnotateConfig
from tasks.stages.annotate.measure import Pass, measure_part, models_of, reads_of

log = logging.getLogger("sluice.annotate")

VERSION = 6
"""Version of the pass and of the shared splits; incrementing it recomputes every group. For a change of one annotator,
increment `Annotator.version`."""

EXTERNAL = "annotator:"
"""Prefix of the role of an annotator's external files."""

GROUPS = "groups.json"


class Group(Config):
    """Settings in the record of a group, which determine its content together with the documents."""

    annotator: str
    code: int | str
    """Version of the annotator's code (`Annotator.version`), with that of the segmentation if its values depend on it
    (`Annotator.segmented`)."""
    settings: dict[str, Any]
    reads: dict[str, str]
    """Fingerprints of the groups that the annotator reads, by annotator."""
    models: dict[str, str]
    """Hashes of the trained models that it reads, by kind and name; other models of the artifact are not included."""


@dataclass(frozen=True)
class RequestedGroup:
    """A group that the settings request; `inputs` are those of its record without the groups that it reads."""

    group: Group
    inputs: tuple[InputRef, ...]
    fingerprint: str

    @property
    def name(self) -> str:
        """Name of the annotator."""
        return self.group.annotator


def external(config: AnnotateConfig) -> dict[str, External]:
    """Returns the external files that annotators read, by role `annotator:<name>`: paths, or a file of the hub."""
    paths_by_name = {name: annotator(name, config.settings[name]).external() for name in config.use}
    return {f"{EXTERNAL}{name}": _external(paths) for name, paths in paths_by_name.items() if paths}


def _external(paths: list[str]) -> External:
    return DatasetFiles(paths[0], model_file) if hub.is_hub(paths[0]) else list(paths)


def at_commits(config: AnnotateConfig, inputs: Inputs) -> AnnotateConfig:
    """Returns the settings for workers: files of the hub at the commits that the run has resolved."""
    settings = dict(config.settings)
    for name in config.use:
        ref = inputs.external.get(f"{EXTERNAL}{name}")
        pinned = ref.address.removeprefix(OUTSIDE) if ref else ""
        if hub.is_hub(pinned):
            (address,) = annotator(name, settings[name]).external()
            settings[name] = {key: pinned if value == address else value for key, value in settings[name].items()}
    return config.model_copy(update={"settings": settings})


def code(config: AnnotateConfig) -> dict[str, str]:
    """Returns the versions of annotators, by name, that differ from the default of `Annotator.version`."""
    versions = {name: _code_of(annotator(name, config.settings[name])) for name in config.use}
    return {name: str(version) for name, version in versions.items() if version != Annotator.version}


def _code_of(current: Annotator) -> int | str:
    return f"{current.version}, {WORDS}" if current.segmented else current.version


HOOKS = Hooks(external=external, code=code)


def run(config: AnnotateConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Computes the missing groups and writes `attributes`.

    Raises:
        InputError: a model is missing, or annotators failed on too many documents.
        DriftError: a group of this version has another fingerprint, and an artifact refers to it.
    """
    groups = _requested_groups(config, inputs)
    existing = _existing_groups(groups, output)
    missing = {name: _output(output, group) for name, group in groups.items() if name not in existing}
    note = _note(existing, list(missing), output.version)
    log.info("[%s] %s", output.address, note)
    parts = list(inputs["extracted"].parts.rows_out())
    _measure(_pass(config, inputs, existing, missing, output), parts, missing, output, engine)
    for name, group_output in missing.items():
        if artifact := _commit_group(groups[name], group_output, existing):
            existing[name] = artifact
    _refuse_poison(groups, existing, missing, output, parts)
    _write_index(groups, existing, output)
    refs = tuple(ref_to(existing[name], name) for name in groups)
    counts = {"groups_measured": float(len(missing)), "groups_taken_over": float(len(groups) - len(missing))}
    summed = {key: value for name in groups for key, value in _summary(existing[name], name)}
    return Report(metrics=counts | summed, note=note, inputs=refs)


def _summary(group: Artifact, name: str) -> list[tuple[str, float]]:
    """Returns the sums of `Annotator.summary` over the parts of a group, by name of the metric."""
    return [(key, value) for key, value in group.record.metrics.items() if key.startswith(f"{name}/")]


def _output(output: Output, group: RequestedGroup) -> Output:
    address, bad = address_of(output.address, group.name), output.max_bad_share
    return Output(output.store, address, group.fingerprint, member=group.name, max_bad_share=bad)


def _note(existing: Mapping[str, Artifact], missing: Sequence[str], version: str) -> str:
    """Returns a note with the groups to compute, and the versions of the existing ones."""
    clauses = [f"measures {', '.join(missing) or 'nothing'}"]
    for other in sorted({group.address.version for group in existing.values()}):
        names = ", ".join(name for name, group in existing.items() if group.address.version == other)
        clauses.append(f"{names}: there already" if other == version else f"{names}: as measured at {other}")
    return "; ".join(clauses)


def _pass(
    config: AnnotateConfig,
    inputs: Inputs,
    existing: Mapping[str, Artifact],
    missing: Mapping[str, Output],
    output: Output,
) -> Pass:
    annotators = [annotator(name, config.settings[name]) for name in missing]
    models = {kind: artifact for current in annotators for kind, artifact in models_of(current, inputs).items()}
    folders = {name: (existing.get(name) or missing[name]).address.path for name in config.use}
    fingerprints = {name: group_output.fingerprint for name, group_output in missing.items()}
    return Pass(at_commits(config, inputs), inputs["extracted"].folder, models, folders, fingerprints, output.attempt)


def _measure(work: Pass, parts: Sequence[str], missing: Mapping[str, Output], output: Output, engine: Engine) -> None:
    """Writes the missing parts of the missing groups, with one pass over the documents of each part."""
    groups_by_part = {part: [name for name, group in missing.items() if part not in group.committed] for part in parts}
    tasks = [(part, names) for part, names in groups_by_part.items() if names]
    done, rows = len(parts) - len(tasks), 0
    if missing and done:
        log.info("[%s] %d of %d parts exist already", output.address, done, len(parts))
    for _, records in engine.map(partial(measure_part, work), tasks):
        for name, record in records.items():
            missing[name].committed[record.name] = record
        done, rows = done + 1, rows + max(record.rows_in for record in records.values())
        output.progress(done, len(parts), f"{rows:,} rows by {', '.join(records)} on {engine.name}")


def _commit_group(group: RequestedGroup, output: Output, existing: Mapping[str, Artifact]) -> Artifact | None:
    """Commits a group; returns None and keeps its parts if it, or a group that it reads, has too many failures.

    Other groups are committed independently and need no second pass.
    """
    parts = output.committed.values()
    acceptable = total(parts, POISON) <= output.max_bad_share * sum(part.rows_in for part in parts)
    if not acceptable or not all(name in existing for name in group.group.reads):
        return None
    refs = [*group.inputs, *(ref_to(existing[name], name) for name in group.group.reads)]
    return commit(output, "annotate", VERSION, group.group, refs, Report())


def _refuse_poison(
    groups: Mapping[str, RequestedGroup],
    existing: Mapping[str, Artifact],
    missing: Mapping[str, Output],
    output: Output,
    parts: Sequence[str],
) -> None:
    """Raises InputError if annotators failed on more documents than `max_bad_share` allows, over all groups."""
    failing: dict[str, str] = {}
    for name in groups:
        group = existing.get(name)
        if bad := group.record.metrics.get(POISON, 0) if group else total(missing[name].committed.values(), POISON):
            failing[f"{name} on {bad:.0f}"] = (existing.get(name) or missing[name]).address.path
    bad = rows = 0
    for part in parts if failing else ():
        paths = [output.store.local(f"{folder}/{path_of(part)}") for folder in failing.values()]
        errors = [parquet.read(path, ["error"]).column("error") for path in paths]
        bad += int(np.any([pc.is_valid(column).to_numpy() for column in errors], axis=0).sum())
        rows += len(errors[0])
    if bad > output.max_bad_share * rows:
        where = ", ".join(output.store.url(f"{folder}/{KIND}/") for folder in failing.values())
        raise InputError(
            f"{output.address}: annotators failed on {bad} of {rows} documents ({', '.join(failing)})",
            f"read the causes in the column `error` of {where}",
        )


def _write_index(groups: Mapping[str, RequestedGroup], existing: Mapping[str, Artifact], output: Output) -> None:
    """Writes the content hash of each group, without its id and fingerprint, so that equal groups give equal bytes."""
    if GROUPS in output.committed:
        return
    index = [{"annotator": name, "content": existing[name].record.content} for name in groups]
    rows = max((existing[name].record.rows_in for name in groups), default=0)
    with output.part(GROUPS) as part, part.file(GROUPS, rows=len(index)) as file:
        part.count_in(rows)
        part.count_out(rows)
        file.write(json.dumps(index, indent=1).encode() + b"\n")


def _requested_groups(config: AnnotateConfig, inputs: Inputs) -> dict[str, RequestedGroup]:
    """Returns the groups that the settings request, by annotator in the order of `use`."""
    requested: dict[str, RequestedGroup] = {}
    for name in config.use:
        current = annotator(name, config.settings[name])
        models = models_of(current, inputs)
        group = Group(
            annotator=name,
            code=_code_of(current),
            settings=config.settings[name],
            reads={other: requested[other].fingerprint for other in reads_of(current, list(requested))},
            models={
                f"{kind}/{model}": _hash_of(artifact, model)
                for kind, artifact in models.items()
                for model in current.trained()[kind] or ("",)
            },
        )
        files = [inputs.external[role]] if (role := f"{EXTERNAL}{name}") in inputs.external else []
        documents = inputs["extracted"].ref("extracted")
        # `group` has the hashes of the models that it reads; other models in the artifact do not affect it.
        group_fingerprint = fingerprint("annotate", VERSION, name, group, [documents, *files])
        refs = (documents, *(artifact.ref(kind) for kind, artifact in models.items()), *files)
        requested[name] = RequestedGroup(group, refs, group_fingerprint)
    return requested


def _hash_of(artifact: Artifact, model: str) -> str:
    """Returns a hash of the files of one model in an artifact; of all files if `model` is ""."""
    return artifact.total(f"{model}/" if model else "").digest


def _existing_groups(groups: Mapping[str, RequestedGroup], output: Output) -> dict[str, Artifact]:
    """Returns the groups that exist with the requested fingerprint, by annotator.

    They may be at this version, from an interrupted run, or at the source version. A group of this version that has
    another fingerprint and to which no `attributes` artifact refers is removed.

    Raises:
        DriftError: a group of this version has another fingerprint, and an artifact refers to it.
    """
    matching_groups, earlier = {}, [unchanged_groups(attributes) for attributes in output.source_artifacts]
    for name, group in groups.items():
        own = Artifact.find(output.store, address_of(output.address, name))
        if own and own.record.fingerprint != group.fingerprint:
            _clear(own, group, output)
            own = None
        candidates = (own, *(groups_before.get(name) for groups_before in earlier))
        matching = (other for other in candidates if other and other.record.fingerprint == group.fingerprint)
        if artifact := next(matching, None):
            matching_groups[name] = artifact
    return matching_groups


def _clear(own: Artifact, group: RequestedGroup, output: Output) -> None:
    users = [artifact for artifact in Ledger(output.store, output.address.name) if _refers_to(artifact, own)]
    if users:
        raise DriftError(
            f"{own.address} exists with another fingerprint: {_difference(own, group)}; "
            f"{users[0].address} refers to it",
            "give this run another version (recipe `version`, --version, or the form's field), or delete both",
        )
    log.warning("[%s] removing measurements with other settings or inputs: %s", own.address, _difference(own, group))
    own.remove()


def _refers_to(attributes: Artifact, group: Artifact) -> bool:
    return str(group.address) in {ref.address for ref in group_refs(attributes).values()}


def _difference(own: Artifact, group: RequestedGroup) -> str:
    for path, old, new in changes(own.record.config, group.group.model_dump(mode="json"), ""):
        return f"{path} was {old!r} and is {new!r}"
    return "its documents, files or stage version have changed"
