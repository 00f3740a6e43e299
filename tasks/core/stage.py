"""The interface of a stage, which reads artifacts and writes one artifact part by part, without losing a row.

A stage is a module with `VERSION`, a configuration class and

    def run(config, inputs: Inputs, output: Output, engine: Engine) -> Report

It declares what else it computes for the runner as `HOOKS` (`tasks.formats.hooks`).

Each part is committed separately: its files first, then `.parts/<name>.json`, which lists them, with one exclusive
create. So a killed stage resumes at the first part without a record, and two concurrent attempts end with one set of
parts. The artifact's own record is written after all parts (`tasks.core.commit`).
"""

import contextlib
import json
import logging
import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tasks.core.artifact import RECORD, Artifact, ArtifactFolder, ArtifactId, InputRef, PartRecord
from tasks.core.config import Config
from tasks.core.engine import Engine
from tasks.core.errors import InputError, SupersededError
from tasks.core.part import PARTS, POISON, Part, PartSpec, commit_part, make_part, make_run, part_names
from tasks.core.remote import concurrently
from tasks.core.store import Store
from tasks.core.terminal import Progress

log = logging.getLogger("sluice.stage")

__all__ = ["Inputs", "Listener", "Output", "Part", "PartSpec", "Report", "part_names"]

SCRATCH = ".scratch"
QUARANTINE = "quarantine/"


def scratch_of(address: ArtifactId, fingerprint: str) -> str:
    """Returns the folder for work in progress on an artifact, relative to the store's root."""
    return f"{address.path}/{SCRATCH}/{fingerprint[:16]}"


@dataclass(frozen=True)
class Report:
    """Result of a stage's `run`.

    `metrics` are summary numbers for the record and MLflow. `members` are the members of the mapped stage that follows
    (canary arms). `note` is one line for people. `inputs` are references to artifacts that the stage has found or made
    itself: the record lists them, but they are not part of the fingerprint.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    members: tuple[str, ...] = ()
    note: str = ""
    inputs: tuple[InputRef, ...] = ()


class Inputs(Mapping[str, Artifact]):
    """The artifacts that a stage reads, by role. A fan-in role has several artifacts (segments, canaries).

    `external` has references to files outside the store, by role, with the hashes that are part of the fingerprint.
    """

    def __init__(
        self, artifacts: Mapping[str, Artifact | Sequence[Artifact]], external: Sequence[InputRef] = ()
    ) -> None:
        self._artifacts = artifacts
        self.external = {ref.role: ref for ref in external}

    def __getitem__(self, role: str) -> Artifact:
        artifact = self._artifacts[role]
        if not isinstance(artifact, Artifact):
            raise TypeError(f'the input "{role}" is a fan-in of several artifacts: read it with many()')
        return artifact

    def __contains__(self, role: object) -> bool:
        return role in self._artifacts

    def __iter__(self) -> Iterator[str]:
        return iter(self._artifacts)

    def __len__(self) -> int:
        return len(self._artifacts)

    def many(self, role: str) -> list[Artifact]:
        """Returns the artifacts of a role, sorted by id."""
        value = self._artifacts[role]
        artifacts = [value] if isinstance(value, Artifact) else list(value)
        return sorted(artifacts, key=lambda artifact: artifact.address)


class Output:
    """The artifact that a stage writes.

    Args:
        store: the store to write to.
        address: name and version.
        fingerprint: identity of the result; parts left by a run with another fingerprint are removed.
        member: member of a mapped stage ("p0", "arm-2-seed-1"), or "".
        max_bad_share: largest share of rows that may be quarantined, 0 to 1.
        source_artifacts: artifacts of this kind at the source version, whose parts a stage may reuse.
        place: how training runs in this place (`tasks.trainer.place.TrainPlace`), which affects no result; None for the
            defaults.

    Raises:
        SupersededError: another attempt has committed the artifact while the records of its parts were read.
    """

    def __init__(
        self,
        store: Store,
        address: ArtifactId,
        fingerprint: str,
        *,
        member: str = "",
        max_bad_share: float = 0.01,
        source_artifacts: Sequence[Artifact] = (),
        place: Config | None = None,
    ) -> None:
        self.store = store
        self.address = address
        self.fingerprint = fingerprint
        self.member = member
        self.max_bad_share = max_bad_share
        self.source_artifacts = tuple(source_artifacts)
        self.place = place
        self.attempt = secrets.token_hex(4)
        self.model: tuple[str, str] | None = None
        self.aliases: dict[str, str] = {}
        self.fence: Callable[[], None] | None = None
        """Called before each commit; raises SupersededError if another attempt has taken over the work."""

        self._listener: Listener | None = None
        self._progress = Progress(f"{member or address.name.rpartition('/')[2]} {address.version}")
        self.committed = self._load()

    @property
    def version(self) -> str:
        """The artifact's version."""
        return self.address.version

    @property
    def folder(self) -> ArtifactFolder:
        """The files of the parts that are written already."""
        return ArtifactFolder(self.store, self.address, self.address.path)

    @property
    def scratch(self) -> str:
        """Local folder for work in progress. It survives a kill and is removed when the artifact is committed."""
        return self.store.scratch(scratch_of(self.address, self.fingerprint))

    def listen(self, listener: "Listener") -> None:
        """Sends live metrics and files to `listener` from now on."""
        self._listener = listener

    def map_parts(
        self,
        engine: Engine,
        fn: Callable[[Part, Any], None],
        specs: Sequence[PartSpec],
        *,
        conserved: bool = True,
    ) -> list[PartRecord]:
        """Makes the parts that are not committed yet on the engine's workers; returns the records of all `specs`.

        Args:
            engine: executor of the parts.
            fn: called with a new `Part` and the spec's payload; must be picklable.
            specs: the parts, with unique names.
            conserved: whether rows in must equal rows out plus rejected.

        Raises:
            SupersededError: another attempt has committed the artifact and removed parts that this one reads.
        """
        missing = [spec for spec in specs if spec.name not in self.committed]
        done, rows = len(specs) - len(missing), 0
        if done:
            log.info("[%s] %d of %d parts already exist", self.address, done, len(specs))
        make = partial(make_part, self.store, self.address.path, self.fingerprint, self.attempt, fn, conserved)
        try:
            for _, records in engine.map(partial(make_run, make), group_by_run(missing)):
                self.committed |= {record.name: record for record in records}
                done, rows = done + len(records), rows + sum(record.rows_in for record in records)
                counted = f"{rows:,} rows " if rows else ""
                self._progress.report(done, len(specs), f"{counted}on {engine.name}")
        except FileNotFoundError as error:
            if not self.store.exists(f"{self.address.path}/{RECORD}"):
                raise
            raise SupersededError(f"{self.address}: another attempt has already committed it") from error
        return [self.committed[spec.name] for spec in specs]

    @contextlib.contextmanager
    def part(self, name: str, *, conserved: bool = True) -> Iterator[Part]:
        """Yields one part to make in this process; commits it on a clean exit."""
        part = Part(self.store, self.address.path, name, self.attempt)
        yield part
        record = part.record(conserved=conserved)
        self.check_fence()
        self.committed[name] = commit_part(self.store, self.address.path, self.fingerprint, record)

    def carry(self, source: ArtifactFolder, record: PartRecord) -> PartRecord:
        """Takes over an unchanged part of another version by reference, without a request; returns its record here.

        Its files stay where they are. The commit checks that they still exist (`tasks.core.removal`), and is what makes
        the references known: a killed stage takes the part over again.

        Args:
            source: the files of a version of the same artifact in the same store.
            record: the part of it.

        Raises:
            InputError: a file is one of this version, which was removed and is made again.
            ValueError: the files are those of another artifact.
        """
        name, _, version = source.path.rpartition("/")
        if (name, source.store.root) != (self.address.name, self.store.root):
            raise ValueError(f"{source.path} is no version of {self.address.name} in this store")
        files = tuple(entry.model_copy(update={"home": entry.home or version}) for entry in record.files)
        if any(entry.home == self.version for entry in files):
            cause = f"{source.path} refers to files of {self.address}, which was removed and is made again"
            raise InputError(cause, "give the run another version")
        self.committed[record.name] = record.model_copy(update={"files": files})
        return self.committed[record.name]

    def leave_out(self, names: Iterable[str]) -> None:
        """Excludes parts from the artifact, for intermediate results; the commit removes their files.

        Until the commit the files exist, so that a killed stage can resume with them.
        """
        for name in names:
            del self.committed[name]

    def progress(self, done: float, total: float, note: str = "") -> None:
        """Reports the progress of a stage that is not divided into parts."""
        self._progress.report(done, total, note)

    def log_metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Sends metrics of a step to the tracker, if there is one; never fails the stage."""
        if self._listener:
            self._listener.metrics(step, {k: v for k, v in values.items() if math.isfinite(v)})

    def log_file(self, name: str, data: bytes | Callable[[], bytes]) -> None:
        """Sends a picture or page to the tracker, if there is one, as the file `name`; never fails the stage.

        A picture takes half a CPU-second to draw: as a function, it is drawn only if there is a tracker.
        """
        if self._listener:
            self._listener.file(name, data() if callable(data) else data)

    def register_model(self, folder: str, name: str) -> None:
        """Asks the tracker to register `folder` of the artifact as the model `name` ("" for the recipe's name)."""
        self.model = (folder, name)

    def alias(self, name: str, model: ArtifactId) -> None:
        """Asks the tracker to give a registered model the alias `name`.

        If several artifacts with this artifact's name set aliases, those of the newest one take effect, whatever order
        the tracker receives them in.
        """
        self.aliases[name] = str(model)

    def check_fence(self) -> None:
        """Raises SupersededError if another attempt has taken over the work."""
        if self.fence is not None:
            self.fence()

    def check_poison(self, causes: str = "") -> None:
        """Raises InputError if more than `max_bad_share` of the rows could not be processed.

        Args:
            causes: file with the causes, for the message; "" for the folder with the quarantined rows.
        """
        records = self.committed.values()
        bad = sum(record.rejected.get(POISON, 0) for record in records)
        rows = sum(record.rows_in for record in records)
        if bad <= self.max_bad_share * rows:
            return
        if not causes and any(entry.path.startswith(QUARANTINE) for record in records for entry in record.files):
            causes = self.store.url(f"{self.address.path}/{QUARANTINE}")
        raise InputError(
            f"{self.address}: {bad} of {rows} rows could not be processed (max_bad_share = {self.max_bad_share})",
            f"{f'read the causes in {causes}, ' if causes else ''}correct the input or raise max_bad_share",
        )

    def _load(self) -> dict[str, PartRecord]:
        listed = self.store.list(f"{self.address.path}/{PARTS}")
        if not listed:
            return {}
        found = {path: self._parse(data) for path, data in concurrently(self._read, listed) if data is not None}
        if len(found) < len(listed) and self.store.exists(f"{self.address.path}/{RECORD}"):
            raise SupersededError(f"{self.address}: another attempt has already committed it")
        # Listed after the records are read: the files of a part are written before its record.
        sizes = self.store.sizes(self.address.path)
        parts, stale = {}, []
        for path, record in found.items():
            if record and all(sizes.get(entry.path) == entry.bytes for entry in record.files):
                parts[record.name] = record
            else:
                stale.append(path)
        if stale:
            names = ", ".join(path.rpartition("/")[2].removesuffix(".json") for path in stale[:3])
            more = f" and {len(stale) - 3:,} more" if len(stale) > 3 else ""
            log.warning("[%s] removing parts of another run or without their files: %s%s", self.address, names, more)
            self.store.remove_files(stale)
        return parts

    def _read(self, path: str) -> tuple[str, bytes | None]:
        """Returns the path and the bytes of a published record; None if it was removed since it was listed."""
        try:
            return path, self.store.read(path)
        except FileNotFoundError:
            return path, None

    def _parse(self, data: bytes) -> PartRecord | None:
        """Returns the part of a published record; None if it is of another run."""
        published = json.loads(data)
        return PartRecord.model_validate(published["part"]) if published["fingerprint"] == self.fingerprint else None


def group_by_run(specs: Sequence[PartSpec]) -> list[list[PartSpec]]:
    """Groups specs by run (see `PartSpec`), each group in the original order.

    >>> specs = [PartSpec("a", 0), PartSpec("b", 0, "x"), PartSpec("c", 0, "x")]
    >>> [[spec.name for spec in run] for run in group_by_run(specs)]
    [['a'], ['b', 'c']]
    """
    runs: dict[str, list[PartSpec]] = {}
    for spec in specs:
        runs.setdefault(f"run {spec.run}" if spec.run else f"part {spec.name}", []).append(spec)
    return list(runs.values())


def group_by_size(sizes: Iterable[int], limit: int) -> Iterator[tuple[int, int]]:
    """Yields first and end of groups of consecutive items of at most `limit` together; a larger item is one of its own.

    >>> list(group_by_size([3, 3, 9, 1], 6))
    [(0, 2), (2, 3), (3, 4)]
    """
    first = end = total = 0
    for size in sizes:
        if total and total + size > limit:
            yield first, end
            first, total = end, 0
        end, total = end + 1, total + size
    if end > first:
        yield first, end


def total(records: Iterable[PartRecord], metric: str) -> float:
    """Returns the sum of a metric over parts; a part without it counts as 0."""
    return sum(record.metrics.get(metric, 0.0) for record in records)


class Listener:
    """Receiver of the live metrics and files of a running stage. This base class ignores them."""

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Receives the metrics of one step."""

    def file(self, name: str, data: bytes) -> None:
        """Receives a picture or page."""
