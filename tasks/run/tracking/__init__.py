"""Tracking of stage runs in MLflow: one experiment per recipe, one run per stage run, one parent run per DAG run.

Only this package imports mlflow (1.5 CPU-seconds, so inside functions). Tracking is optional: a stage continues when
the server is down. What is to be sent of a stage run is a message (`Message`); unsent ones may stay in the outbox for
days, and are sent by the next stage that reaches the server, or by `python -m tasks sync`.
"""

import json
from dataclasses import asdict, dataclass, field

TRAINING_VIEW = "workflowType=machine_learning"
"""Query of the URL of an MLflow page that selects the view of model training."""

__all__ = ["TrackingContext"]


@dataclass(frozen=True)
class TrackingContext:
    """MLflow server, experiment and parent run of stage runs.

    Args:
        uri: the server; empty: no tracking.
        experiment: experiment name, the recipe's.
        parent_key: identity of the parent run ("<dag id>/<run id>"); empty: no parent.
        tags: further tags of the runs (dag id, run id, try number).
        description: description of the experiment, in Markdown.
    """

    uri: str
    experiment: str
    parent_key: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    description: str = ""


@dataclass
class Message:
    """All that remains to be sent about one stage run; sent items are removed.

    `name` is that of the stage, with its member; `about` is the purpose of the stage in a sentence; `aliases` are those
    of registered models, with the id of the artifact.
    """

    context: TrackingContext
    key: str
    name: str
    about: str = ""
    status: str = "RUNNING"
    artifact: str = ""
    run_id: str = ""
    registered: tuple[str, str] | None = None
    aliases: dict[str, str] = field(default_factory=dict)
    metrics: list[tuple[str, float, int, int]] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    error: str = ""

    def to_json(self) -> bytes:
        """Encodes the message for the outbox."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "Message":
        """Decodes the value of `to_json`."""
        fields = json.loads(data)
        fields["context"] = TrackingContext(**fields["context"])
        fields["metrics"] = [tuple(metric) for metric in fields["metrics"]]
        fields["registered"] = fields["registered"] and tuple(fields["registered"])
        return cls(**fields)


def run_url(message: Message) -> str:
    """Returns the URL of a message's run, or "" while there is none.

    MLflow 3 shows an experiment in a view for GenAI or for model training. The browser stores the choice for all
    experiments and starts with GenAI, whatever the kind of the experiment; only the URL overrides it.
    """
    if not message.run_id:
        return ""
    experiment, _, run_id = message.run_id.partition("/")
    return f"{message.context.uri.rstrip('/')}/#/experiments/{experiment}/runs/{run_id}?{TRAINING_VIEW}"
