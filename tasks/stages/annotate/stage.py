"""Annotate: every document is measured, in one pass, by the annotators that have not measured it before.

Reads `extracted`, and the models that the pipeline has trained, where annotators want them. What one annotator has
measured is a group, an artifact of its own (`tasks.core.groups`): `<recipe>/measured/<annotator>@<version>`, with the
part names and the row order of the documents, so that dedup and consolidate join by position. Writes the groups that
neither this version nor the source version holds, and `attributes`: its record names all groups of the version,
`groups.json` their contents. So a new annotator costs its own pass, and a changed setting, file or model the pass of
those that read it.

Documents are never changed or dropped here, and no limit is applied: a changed limit costs the join of consolidate. A
document that makes an annotator fail keeps its place, with a null and the error, and is measured by the others that do
not read what this one finds.
"""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow.compute as pc

from tasks.core import parquet
from tasks.core.artifact import Artifact, PartRecord
from tasks.core.commit import commit
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.groups import KIND, address_of, path_of, ref_to
from tasks.core.part import POISON
from tasks.core.stage import Inputs, Output, Report
from tasks.filters.base import Annotator
from tasks.filters.catalogue import annotator
from tasks.stages.annotate.config import AnnotateConfig
from tasks.stages.annotate.groups import EXTERNAL, Wanted, models_of, there_already, wanted
from tasks.stages.annotate.measure import Pass, measure_part

log = logging.getLogger("sluice.annotate")

VERSION = 6
"""Of the pass and of the splits that all annotators share; raised, it has everything measured again. What one annotator
does otherwise is known by its own (`Annotator.version`)."""

GROUPS = "groups.json"


def external(config: AnnotateConfig) -> dict[str, list[str]]:
    """Returns the files outside the store that annotators read, by role `annotator:<name>`."""
    found = {name: annotator(name, config.settings[name]).external() for name in config.use}
    return {f"{EXTERNAL}{name}": paths for name, paths in found.items() if paths}


def code(config: AnnotateConfig) -> dict[str, str]:
    """Returns the versions of annotators, by name; those that are as they came with the stage go without saying."""
    found = {name: annotator(name, config.settings[name]).version for name in config.use}
    return {name: str(version) for name, version in found.items() if version != Annotator.version}


def run(config: AnnotateConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Measures what is missing.

    Raises:
        InputError: a model is not there, or too many documents made an annotator fail.
        DriftError: a group of this version exists with another fingerprint, and a version is made of it.
    """
    groups = wanted(config, inputs, VERSION)
    held = there_already(groups, output)
    missing = {name: _output(output, one) for name, one in groups.items() if name not in held}
    told = _told(held, list(missing), output.version)
    log.info("[%s] %s", output.address, told)
    parts = [part.name for part in inputs["extracted"].parts]
    _measure(_pass(config, inputs, held, missing, output), parts, missing, output, engine)
    for name, one in missing.items():
        if artifact := _committed(groups[name], one, held):
            held[name] = artifact
    _refuse_poison(groups, held, missing, output, parts)
    _write_index(groups, held, output)
    refs = tuple(ref_to(held[name], name) for name in groups)
    counts = {"groups_measured": float(len(missing)), "groups_taken_over": float(len(groups) - len(missing))}
    return Report(metrics=counts, note=told, inputs=refs)


def _output(output: Output, group: Wanted) -> Output:
    address, bad = address_of(output.address, group.name), output.max_bad_share
    return Output(output.store, address, group.fingerprint, member=group.name, max_bad_share=bad)


def _told(held: Mapping[str, Artifact], missing: Sequence[str], version: str) -> str:
    """Returns in words which groups are measured now, and at which version the others were."""
    told = [f"measures {', '.join(missing) or 'nothing'}"]
    for other in sorted({one.address.version for one in held.values()}):
        names = ", ".join(name for name, one in held.items() if one.address.version == other)
        told.append(f"{names}: there already" if other == version else f"{names}: as measured at {other}")
    return "; ".join(told)


def _pass(
    config: AnnotateConfig,
    inputs: Inputs,
    held: Mapping[str, Artifact],
    missing: Mapping[str, Output],
    output: Output,
) -> Pass:
    asked = [annotator(name, config.settings[name]) for name in missing]
    models = {kind: artifact for one in asked for kind, artifact in models_of(one, inputs).items()}
    folders = {name: (held.get(name) or missing[name]).address.path for name in config.use}
    marks = {name: one.fingerprint for name, one in missing.items()}
    return Pass(config, inputs["extracted"].folder, models, folders, marks, output.attempt)


def _measure(work: Pass, parts: Sequence[str], missing: Mapping[str, Output], output: Output, engine: Engine) -> None:
    """Makes the parts that any of the missing groups lacks, each in one pass over its documents."""
    lacking = {part: [name for name, one in missing.items() if part not in one.committed] for part in parts}
    tasks = [(part, names) for part, names in lacking.items() if names]
    done, rows = len(parts) - len(tasks), 0
    if missing and done:
        log.info("[%s] %d of %d parts are there already", output.address, done, len(parts))
    for _, records in engine.map(partial(measure_part, work), tasks):
        for name, record in records.items():
            missing[name].committed[record.name] = record
        done, rows = done + 1, rows + max(record.rows_in for record in records.values())
        output.progress(done, len(parts), f"{rows:,} rows by {', '.join(records)} on {engine.name}")


def _committed(group: Wanted, one: Output, held: Mapping[str, Artifact]) -> Artifact | None:
    """Commits a group; returns None, and leaves its parts, where it or one that it reads failed on too many documents.

    So what stops one annotator costs the others nothing.
    """
    parts = one.committed.values()
    sound = _poison(parts) <= one.max_bad_share * sum(part.rows_in for part in parts)
    if not sound or not all(name in held for name in group.group.reads):
        return None
    refs = [*group.inputs, *(ref_to(held[name], name) for name in group.group.reads)]
    return commit(one, "annotate", VERSION, group.group, refs, Report())


def _poison(parts: Iterable[PartRecord]) -> float:
    return sum(part.metrics.get(POISON, 0.0) for part in parts)


def _refuse_poison(
    groups: Mapping[str, Wanted],
    held: Mapping[str, Artifact],
    missing: Mapping[str, Output],
    output: Output,
    parts: Sequence[str],
) -> None:
    """Raises InputError where annotators failed on more documents than are tolerated, all groups taken together."""
    failing: dict[str, str] = {}
    for name in groups:
        one = held[name].parts if name in held else missing[name].committed.values()
        if bad := _poison(one):
            failing[f"{name} on {bad:.0f}"] = (held.get(name) or missing[name]).address.path
    bad = rows = 0
    for part in parts if failing else ():
        paths = [output.store.local(f"{folder}/{path_of(part)}") for folder in failing.values()]
        errors = [parquet.read(path, ["error"]).column("error") for path in paths]
        bad += int(np.any([pc.is_valid(one).to_numpy() for one in errors], axis=0).sum())
        rows += len(errors[0])
    if bad > output.max_bad_share * rows:
        where = ", ".join(output.store.url(f"{folder}/{KIND}/") for folder in failing.values())
        raise InputError(
            f"{output.address}: annotators failed on {bad} of {rows} documents ({', '.join(failing)})",
            f"read the causes in the column `error` of {where}",
        )


def _write_index(groups: Mapping[str, Wanted], held: Mapping[str, Artifact], output: Output) -> None:
    """Writes what each group holds, and not where it lies or why: the same bytes give the same bytes."""
    if GROUPS in output.committed:
        return
    told = [{"annotator": name, "content": held[name].record.content} for name in groups]
    rows = max((held[name].record.rows_in for name in groups), default=0)
    with output.part(GROUPS) as part, part.file(GROUPS, rows=len(told)) as file:
        part.count_in(rows)
        part.count_out(rows)
        file.write(json.dumps(told, indent=1).encode() + b"\n")
