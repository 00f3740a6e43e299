"""Result of a stage run as JSON: last line of the shell's output, XCom of a task, extra of an asset event."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

JsonValue = None | bool | int | float | str | Sequence["JsonValue"] | Mapping[str, "JsonValue"]
Json = dict[str, JsonValue]
"""A JSON object: the return type of `to_json` methods."""


@dataclass(frozen=True)
class StageResult:
    """Result of a stage run: ids and numbers, no data.

    Attributes:
        address: id of the artifact, name@version.
        fingerprint: identity of the result: sha256 over stage, settings and inputs.
        content: identity of the artifact's bytes.
        version: the version of the run.
        skipped: whether the artifact already existed or was adopted from the source version.
        members: members of the mapped stage that follows.
        metrics: summary numbers.
        rows: numbers of rows: "in", "out", and rejected rows by reason.
        mlflow_run_url: URL of the MLflow run; "" if the run was not tracked.
        adopted_from: id of the artifact whose files it has; "" if it was made for its version.
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
    adopted_from: str = ""

    def to_json(self) -> Json:
        """Returns the fields as JSON values."""
        return {**asdict(self), "members": list(self.members)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "StageResult":
        """Reads the value of `to_json`; raises KeyError or TypeError if a field is missing or unknown."""
        return cls(**{**fields, "members": tuple(fields["members"])})
