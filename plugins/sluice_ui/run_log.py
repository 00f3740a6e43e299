"""The step log of a training or a fine-tuning in its artifact, as arrays; of one that is not complete, its milestones.

Reads `loss.parquet`, `steps/`, `skipped/` and `layers/`. Fields that depend on the clock are not in the artifact.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.core.artifact import Artifact, ArtifactFolder, ArtifactId
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.formats.tokens.marks import Mark, of_run
from tasks.formats.tokens.readings import LOSS, LOSSES

KINDS = {"checkpoint": "step", "finetuned": "tuned"}
"""Kinds of artifacts with a run -> prefix with which a trace finds a step of it."""

BEFORE = 16
"""Steps before a step with whose mean loss its own is compared."""

MOST_BYTES = 32 * 2**20
"""Maximum size of the log lines that are read for the held-out text; a longer log is not read."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class RunLog:
    """The log of a run.

    Attributes:
        kind: one of KINDS.
        folder: files of the artifact.
        files: their paths, such as "run.json".
        artifact: None if the run is not complete.
    """

    kind: str
    folder: ArtifactFolder
    files: tuple[str, ...]
    artifact: Artifact | None

    @classmethod
    def find(cls, store: Store, recipe: str, version: str, kind: str) -> "RunLog | None":
        """Returns the run of a version; None without one. Lists the folder of the artifact only."""
        address = ArtifactId(f"{recipe}/{kind}", version)
        if artifact := Artifact.find(store, address):
            return cls(kind, artifact, tuple(artifact.files()), artifact)
        inside = len(address.path) + 1
        # Without the record, only the log files of milestones are listed: they are small and written once.
        names = [
            path[inside:] for part in ("steps", "skipped", "layers") for path in store.list(f"{address.path}/{part}")
        ]
        folder = ArtifactFolder(store, address, address.path)
        return cls(kind, folder, tuple(names), None) if names else None

    @cached_property
    def run(self) -> dict[str, Any]:
        """Content of `run.json`; {} for a run that is not complete or was imported."""
        return json.loads(self.folder.read("run.json")) if "run.json" in self.files else {}

    @cached_property
    def columns(self) -> Mapping[str, Floats]:
        """The columns of LOSS by name, float64 [steps]; NaN for the loss and gradient norm of a skipped step."""
        if self.artifact and LOSSES in self.files:
            table = self.artifact.table(LOSSES)
            return {name: table[name].to_numpy().astype(np.float64) for name in LOSS.names}
        lines = [json.loads(line) for name in self._below("steps/") for line in self.folder.read(name).splitlines()]
        return {name: np.array([line[name] for line in lines], np.float64) for name in LOSS.names}

    @cached_property
    def heldout(self) -> dict[str, tuple[list[int], list[float]]]:
        """Steps and bits per byte of held-out text, by source, and of their mean as "mean"; {} if not measured."""
        config = self.artifact.record.config if self.artifact else {"heldout": True}
        if not config.get("heldout") or self._size("steps/") > MOST_BYTES:
            return {}
        curves: dict[str, tuple[list[int], list[float]]] = {}
        for name in self._below("steps/"):
            for line in self.folder.read(name).splitlines():
                if b'"bpb' not in line:
                    continue
                fields = json.loads(line)
                for field, value in fields.items():
                    if field.partition("/")[0] == "bpb" and value is not None:
                        steps, values = curves.setdefault(field.partition("/")[2] or "mean", ([], []))
                        steps.append(fields["step"])
                        values.append(value)
        return curves

    @cached_property
    def skipped(self) -> list[dict[str, Any]]:
        """The skipped steps: {step, reason, loss, grad_norm, documents: their number}."""
        lines = [json.loads(line) for name in self._below("skipped/") for line in self.folder.read(name).splitlines()]
        return [{**line, "documents": len(line.get("slices", ()))} for line in lines]

    @cached_property
    def layers(self) -> list[dict[str, Any]]:
        """Figures of the layers, {step, layers}, by step."""
        return [json.loads(line) for name in self._below("layers/") for line in self.folder.read(name).splitlines()]

    @cached_property
    def marks(self) -> tuple[Mark, ...]:
        """Marks of documents that were blank from a step on."""
        return of_run(self.artifact) if self.artifact else ()

    @cached_property
    def alerts(self) -> list[dict[str, Any]]:
        """Alerts of a run that is not complete, by step: {kind, step, what, do}; the commit removes them."""
        if self.artifact:
            return []
        paths = self.folder.store.list(f"{self.folder.path}/.alerts")
        return [json.loads(self.folder.store.read(path)) for path in paths]

    @property
    def rises(self) -> Floats:
        """Loss of each step minus the mean of the BEFORE steps before it, nats, float64 [steps]; NaN if unknown."""
        return _rises(self.columns["loss"])

    def weights_before(self, step: int) -> int:
        """Returns the newest milestone that had not read a step, in completed steps; the first one if all had."""
        milestones: list[int] = self.run["checkpoint_steps"]
        return max((count for count in milestones if count <= step), default=milestones[0])

    def check(self, step: int) -> None:
        """Raises InputError if the run has no such step."""
        steps = self.columns["step"]
        if not len(steps) or not 0 <= step <= int(steps[-1]):
            last = int(steps[-1]) if len(steps) else -1
            raise InputError(f"{self.folder.address} has no step {step}", f"its steps are 0 to {last}")

    def _below(self, prefix: str) -> list[str]:
        return sorted(name for name in self.files if name.startswith(prefix))

    def _size(self, prefix: str) -> int:
        if self.artifact is None:
            return 0
        return self.artifact.total(prefix).bytes


def _rises(losses: Floats) -> Floats:
    """Returns values minus the mean of the BEFORE values before each, of which NaN are left out."""
    known = ~np.isnan(losses)
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, losses, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    last = np.arange(len(losses))
    first = np.maximum(last - BEFORE, 0)
    before = counts[last] - counts[first]
    with np.errstate(invalid="ignore", divide="ignore"):
        means = (sums[last] - sums[first]) / before
    return np.where(before >= BEFORE // 2, losses - means, np.nan)


def smoothed(values: Floats) -> Floats:
    """Returns the mean of the last fiftieth of the values, at least ten, at each value; NaN are left out."""
    width = max(10, len(values) // 50)
    known = ~np.isnan(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    last = np.arange(1, len(values) + 1)
    first = np.maximum(last - width, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        means: Floats = (sums[last] - sums[first]) / (counts[last] - counts[first])
    return means
