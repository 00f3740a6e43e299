"""Result of a stage run as plain JSON: last line of the shell's output, XCom of a task, extra of an asset event."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class StageResult:
    """Result of a stage run: ids and numbers, never data.

    Attributes:
        address: id of the artifact, as name@version.
        fingerprint: identity of the artifact by its inputs and settings.
        content: identity of its bytes.
        version: the version that was run.
        skipped: nothing was made: the artifact existed already, or the source version had it.
        members: members of the mapped stage that follows.
        metrics: summary numbers.
        rows: rows by outcome: "in", "out", or the reason of a rejection.
        mlflow_run_url: URL of the MLflow run, "" where the run was not tracked.
    """

    address: str
    fingerprint: str
    content: str
    version: str
    skipped: bool
    members: tuple[str, ...]
    metrics: dict[str, float]
    rows: dict[str, int]
    mlflow_run_url: str

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON values."""
        return {**asdict(self), "members": list(self.members)}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "StageResult":
        """Reads the value of `to_json`; raises TypeError where a field is missing or unknown."""
        return cls(**{**found, "members": tuple(found["members"])})
