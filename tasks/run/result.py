"""What a stage run came to, as small and plain JSON: the last line of the shell, a task's XCom, an asset's event."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class StageResult:
    """What a stage run came to: addresses and numbers, never data.

    Attributes:
        address: of the artifact, as name@version.
        fingerprint: identity of the artifact by what it was made from.
        content: identity of its bytes.
        version: the version that was run.
        skipped: nothing was made: the artifact was there already, or the source version had it.
        members: of the mapped stage that follows.
        metrics: summary numbers.
        rows: rows by outcome: "in", "out", or the reason of a rejection.
        mlflow_run_url: page of the MLflow run, "" where the run was not tracked.
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
        """Returns the fields as JSON has them."""
        return {**asdict(self), "members": list(self.members)}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "StageResult":
        """Reads what `to_json` returned; raises TypeError where a field is missing or unknown."""
        return cls(**{**found, "members": tuple(found["members"])})
