"""What there is to tell MLflow about one stage run. Imports no MLflow: it may lie in the outbox for days."""

import json
from dataclasses import asdict, dataclass, field

TRAINING_VIEW = "workflowType=machine_learning"
"""Ends the address of a page of MLflow that is to be shown as one of model training."""


@dataclass(frozen=True)
class TrackingContext:
    """Which MLflow, and under what the runs hang.

    Args:
        uri: the server; empty: nothing is tracked.
        experiment: experiment name, the recipe's.
        parent_key: identity of the parent run ("<dag id>/<run id>"); empty: no parent.
        tags: further tags of the runs (dag id, run id, try number).
        description: what the experiment is, in Markdown.
    """

    uri: str
    experiment: str
    parent_key: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    description: str = ""


@dataclass
class Message:
    """All that is to be told about one stage run; what was told already is taken out.

    `name` is that of the stage, with its member; `about` says in a sentence what the stage does.
    """

    context: TrackingContext
    key: str
    name: str
    about: str = ""
    status: str = "RUNNING"
    artifact: str = ""
    run_id: str = ""
    registered: tuple[str, str] | None = None
    metrics: list[tuple[str, float, int, int]] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    error: str = ""

    def to_json(self) -> bytes:
        """Encodes the message for the outbox."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "Message":
        """Decodes `to_json`."""
        held = json.loads(data)
        held["context"] = TrackingContext(**held["context"])
        held["metrics"] = [tuple(metric) for metric in held["metrics"]]
        held["registered"] = held["registered"] and tuple(held["registered"])
        return cls(**held)


def run_url(message: Message) -> str:
    """Returns the page of a message's run, or "" while there is none.

    MLflow 3 shows an experiment as one of GenAI or of model training. Which, a browser remembers for all experiments,
    and begins with GenAI, whatever kind the experiment is of; the address alone says otherwise.
    """
    if not message.run_id:
        return ""
    experiment, _, run_id = message.run_id.partition("/")
    return f"{message.context.uri.rstrip('/')}/#/experiments/{experiment}/runs/{run_id}?{TRAINING_VIEW}"
