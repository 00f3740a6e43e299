"""Commit of an artifact, the last step of a stage, after all parts are committed.

Writes the manifests, then `.artifact.json` with an exclusive create, so that one of two attempts wins, then removes the
temporary files of the run. A kill or a fault of the store between the last two leaves a complete artifact, with files
that no reader looks at: those that no part lists, hidden folders, manifests of another attempt and, removed last, the
records of parts. The next run of the stage, which skips the work, removes them (`clear`). Reads the version of the code
from the installed package and, in a checkout, from git.
"""

import logging
import os
import platform
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path

from tasks.core import manifest
from tasks.core.artifact import RECORD, REMOVED, TRACKING, Artifact, ArtifactId, ArtifactRecord, InputRef
from tasks.core.config import Config
from tasks.core.errors import DriftError, InputError
from tasks.core.manifest import FILES_IN_MANIFEST, MANIFESTS, PARTS_IN_MANIFEST, PartRecord, Total
from tasks.core.part import PARTS, finite
from tasks.core.remote import concurrently
from tasks.core.removal import ROUNDS, check_references, check_referrers, forget
from tasks.core.removal.adoption import ADOPTING, claim
from tasks.core.stage import SCRATCH, Output, Report, scratch_of
from tasks.core.store import AlreadyPublished, Store
from tasks.core.version_index import enter

log = logging.getLogger("sluice.commit")

_TOGETHER = 8
"""Manifests that are written at a time."""


def commit(
    output: Output,
    stage: str,
    stage_version: int,
    config: Config,
    inputs: Sequence[InputRef],
    report: Report,
    started: datetime | None = None,
) -> Artifact:
    """Publishes the record of `output` and returns the artifact.

    Raises:
        InputError: there is no part to commit, or too many rows were quarantined.
        DriftError: in the meantime, a run with other settings or inputs has committed the same id.
        SupersededError: another attempt has taken over the work.
        InputError, TransientError: files of another version that parts refer to were removed, or are being removed.
    """
    if not output.committed:
        raise InputError(f"{output.address}: the stage {stage} made no part", "check that its inputs are not empty")
    output.check_poison()
    output.check_fence()
    try:
        record = _record(output, stage, stage_version, config, inputs, report, started)
    except FileNotFoundError:  # the attempt that has committed has removed a manifest while this one wrote it (`clear`)
        if not output.store.exists(f"{output.address.path}/{RECORD}"):
            raise
        return _committed_by_other(output.store, output.address, output.fingerprint)
    output.check_fence()
    forget(output.store, output.address)
    check_referrers(output.store, record)
    enter(output.store, record, record.finished)
    check_references(output.store, record)
    try:
        output.store.publish(f"{output.address.path}/{RECORD}", record.model_dump_json(indent=1).encode())
    except AlreadyPublished:
        return _committed_by_other(output.store, output.address, output.fingerprint)
    artifact = Artifact(output.store, output.address, record)
    clear(artifact)
    return artifact


def adopt(source: Artifact, address: ArtifactId, inputs: Sequence[InputRef]) -> Artifact:
    """Publishes at `address` a record that refers to the files of `source`, the same result at another version.

    Args:
        source: an artifact with the same kind, settings and inputs.
        address: id of the artifact to create.
        inputs: the inputs at the version of `address`. Inputs of `source` with other roles are kept.

    Raises:
        DriftError: in the meantime, a run with other settings or inputs has committed the same id.
        TransientError: the files of `source` are being removed.
    """
    roles = {ref.role for ref in inputs}
    others = [ref for ref in source.record.inputs if ref.role not in roles]
    record = source.record.model_copy(
        update={
            "artifact": str(address),
            "inputs": (*inputs, *others),
            "adopted_from": source.record.adopted_from or str(source.address),
        }
    )
    enter(source.store, record, datetime.now(UTC))
    claim(source, address)
    try:
        source.store.publish(f"{address.path}/{RECORD}", record.model_dump_json(indent=1).encode())
    except AlreadyPublished:
        source.store.remove_files([f"{address.path}/{ADOPTING}"])
        return _committed_by_other(source.store, address, record.fingerprint)
    artifact = Artifact(source.store, address, record)
    clear(artifact)
    return artifact


def _committed_by_other(store: Store, address: ArtifactId, fingerprint: str) -> Artifact:
    """Returns the artifact of the attempt that committed first; raises DriftError if its fingerprint differs.

    Removes the manifests of other attempts, whose records can no longer be published.
    """
    artifact = Artifact.open_at(store, address)
    paths = (f"{MANIFESTS}/{name}" for name in store.names(f"{address.path}/{MANIFESTS}"))
    store.remove_files([f"{address.path}/{path}" for path in paths if path not in artifact.record_paths])
    if artifact.record.fingerprint != fingerprint:
        raise DriftError(
            f"{address} was committed in the meantime by a run with other settings or inputs",
            "give one of the two runs another version",
        )
    log.warning("[%s] another attempt committed first; its result is used", address)
    return artifact


def _record(
    output: Output,
    stage: str,
    stage_version: int,
    config: Config,
    inputs: Sequence[InputRef],
    report: Report,
    started: datetime | None,
) -> ArtifactRecord:
    """Writes the manifests of the committed parts, group by group, and returns the record."""
    rejected: Counter[str] = Counter()
    metrics: Counter[str] = Counter()
    rows_in = rows_out = 0
    for name in sorted(output.committed):
        part = output.committed[name]
        rejected.update(part.rejected)
        metrics.update(part.metrics)
        rows_in, rows_out = rows_in + part.rows_in, rows_out + part.rows_out
    written = concurrently(partial(manifest.write, output.store, output.address.path), _groups(output), _TOGETHER)
    manifests = tuple(written)
    total = sum((below for one in manifests for below in one.folders.values()), Total())
    now = datetime.now(UTC)
    return ArtifactRecord(
        artifact=str(output.address),
        stage=stage,
        stage_version=stage_version,
        member=output.member,
        fingerprint=output.fingerprint,
        content=total.digest,
        config=config.model_dump(mode="json"),
        inputs=(*inputs, *report.inputs),
        code=code_version(),
        rows_in=rows_in,
        rows_out=rows_out,
        rejected=dict(sorted(rejected.items())),
        bytes=total.bytes,
        manifests=manifests,
        metrics={**finite(metrics, str(output.address)), **finite(report.metrics, str(output.address))},
        members=report.members,
        note=report.note,
        host={"name": socket.gethostname(), "cpus": str(os.cpu_count()), "python": platform.python_version()},
        started=started or now,
        finished=now,
    )


def _groups(output: Output) -> Iterator[list[PartRecord]]:
    group: list[PartRecord] = []
    files = 0
    for name in sorted(output.committed):
        part = output.committed[name]
        if group and (len(group) == PARTS_IN_MANIFEST or files + len(part.files) > FILES_IN_MANIFEST):
            yield group
            group, files = [], 0
        group.append(part)
        files += len(part.files)
    if group:
        yield group


def clear(artifact: Artifact, *, again: bool = False) -> None:
    """Removes the temporary files of a committed artifact; logs errors as a warning, because the artifact is complete.

    With `again`, only if the attempt that committed it did not end with this.
    """
    try:
        if not again:
            _clear(artifact, set())
        elif artifact.store.exists(f"{artifact.address.path}/{_last_left(artifact)}"):
            _clear(artifact, {REMOVED, TRACKING})
    except Exception as error:
        template = "[%s] is complete, but temporary files are left, which the next run of its stage removes: %s"
        log.warning(template, artifact.address, error)


def _clear(artifact: Artifact, kept: set[str]) -> None:
    store, folder, record = artifact.store, artifact.address.path, artifact.record
    # The files of an adopted one are in another folder.
    own = () if record.adopted_from else artifact.parts.entries_at("")
    listed = {f"{folder}/{entry.path}" for entry in own}
    kept = kept | artifact.record_paths
    hidden, stale = set(), []
    for path in store.list(folder, unfinished=True):
        below = path[len(folder) + 1 :]
        # Files that no part lists are leftovers of a killed attempt.
        if path in listed or below in kept or below.startswith((_last_left(artifact), PARTS, SCRATCH, ROUNDS)):
            continue
        if below.startswith(".") and not below.startswith(f"{MANIFESTS}/"):
            hidden.add(below.partition("/")[0])
        else:
            stale.append(path)
    store.remove_files(stale)
    for below in sorted(hidden):
        store.remove(f"{folder}/{below}")
    store.forget_scratch(scratch_of(artifact.address, record.fingerprint))
    store.remove(f"{folder}/{SCRATCH}")
    store.remove(f"{folder}/{PARTS}")
    if record.adopted_from:
        store.remove_files([f"{folder}/{ADOPTING}"])


def _last_left(artifact: Artifact) -> str:
    """Returns what `clear` removes last, because it shows that there is something left."""
    return ADOPTING if artifact.record.adopted_from else PARTS


@cache
def code_version() -> dict[str, str]:
    """Returns the version of the package and, in a checkout, the commit and whether files differ from it."""
    code = {"version": version("sluice")}
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return code
    try:
        head = _git(root, "rev-parse", "HEAD")
        dirty = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return code
    return {**code, "commit": head, "dirty": "yes" if dirty else "no"}


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, text=True, check=True, timeout=10
    ).stdout.strip()
