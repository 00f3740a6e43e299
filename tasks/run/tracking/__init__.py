"""Tracking of stage runs in MLflow: one experiment per recipe, one run per stage run, one parent run per DAG run.

Only this package imports mlflow, inside functions because the import takes 1.5 CPU-seconds. Tracking is optional: a
stage continues if the server is down. A `Message` has the data to send about a stage run. Unsent messages may stay in
the outbox for days; they are sent by the next stage that reaches the server, or by `sluice sync`.
"""

import json
from dataclasses import asdict, dataclass, field

from tasks.core.errors import without_login
from tasks.run.place import Place, expand_env

TRAINING_VIEW = "workflowType=machine_learning"
"""URL query of an MLflow page that selects the view for model training."""

__all__ = ["TrackingContext"]


@dataclass(frozen=True)
class TrackingContext:
    """MLflow server, experiment and parent run of stage runs.

    Args:
        uri: URI of the server, of `server_of`; "" for no tracking.
        experiment: name of the experiment, the recipe's name.
        parent_key: identity of the parent run, "<dag id>/<run id>", or "shell/<version>"; "" for no parent.
        tags: additional tags of the runs (DAG id, run id, try number).
        description: description of the experiment, in Markdown.
    """

    uri: str
    experiment: str
    parent_key: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    description: str = ""


_uris_of_clients: dict[str, str] = {}


def server_of(place: Place) -> str:
    """Returns the URI of the MLflow server of a place, without user and password; "" for no tracking.

    The URI is logged, stored in the outbox and part of links. `client_uri` has them again, in this process.

    Raises:
        RecipeError: an environment variable is missing.
    """
    uri = expand_env(place.mlflow)
    _uris_of_clients[without_login(uri)] = uri
    return without_login(uri)


def client_uri(uri: str) -> str:
    """Returns the URI with the user and password that `server_of` has left out."""
    return _uris_of_clients.get(uri, uri)


SHELL = "shell"
"""In place of a DAG id: the parent of the stages of a version that were run from a shell."""


@dataclass
class Message:
    """The data still to be sent about one stage run; sent items are removed.

    `name` is the name of the stage, with its member. `about` is the purpose of the stage in one sentence. `version` and
    `source_version` are those of the run ("" for none). `registered`
    is (folder of the artifact, name) of a model to register. `aliases` are ids of artifacts of registered models, by
    alias. `metrics` are (name, value, time in ms, step). `files` are base64 by name.
    """

    context: TrackingContext
    key: str
    name: str
    about: str = ""
    version: str = ""
    source_version: str = ""
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
    """Returns the URL of a message's run, or "" if the run does not exist yet.

    MLflow 3 shows an experiment in a view for GenAI or for model training. The browser stores one choice for all
    experiments, and the default is GenAI whatever the kind of the experiment. Only the URL overrides it.
    """
    if not message.run_id:
        return ""
    experiment, _, run_id = message.run_id.partition("/")
    return f"{message.context.uri.rstrip('/')}/#/experiments/{experiment}/runs/{run_id}?{TRAINING_VIEW}"
