"""Mirrors stage runs into MLflow: one experiment per recipe, one run per stage run, under one parent run per DAG run.

Used by the runner. This is the only module that imports mlflow (1.5 CPU-seconds, so inside functions). MLflow is a
mirror, never a condition: a stage goes on when the server is down, and what could not be sent is kept in the store
(`tasks.outbox`) and sent by the next stage that finds the server up, or by `python -m tasks sync`.
"""

import base64
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tasks.artifact import Artifact, Record
from tasks.stage import Listener

log = logging.getLogger("sluice.tracking")

_FLUSH_S = 3.0
_BATCH = 900  # MLflow takes 1,000 metrics in one call
_TEXT = 450  # longest parameter and tag that every backend takes


@dataclass(frozen=True)
class TrackingContext:
    """Which MLflow, and under what the runs hang.

    Args:
        uri: the server; empty: nothing is tracked.
        experiment: experiment name, the recipe's.
        parent_key: identity of the parent run ("<dag id>/<run id>"); empty: no parent.
        tags: further tags of the runs (dag id, run id, try number).
    """

    uri: str
    experiment: str
    parent_key: str = ""
    tags: dict[str, str] = field(default_factory=dict)


@dataclass
class Message:
    """All that is to be told about one stage run; what was told already is taken out."""

    context: TrackingContext
    key: str
    name: str
    status: str = "RUNNING"
    artifact: str = ""
    run_id: str = ""
    registered: tuple[str, str] | None = None
    metrics: list[tuple[str, float, int, int]] = field(default_factory=list)
    figures: dict[str, str] = field(default_factory=dict)
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


class StageRun(Listener):
    """The MLflow run of one stage run; buffers while the server does not answer."""

    def __init__(self, context: TrackingContext, key: str, name: str) -> None:
        self.message = Message(context, key, name)
        self._flushed = 0.0
        self._down = False

    def open(self) -> str:
        """Makes or finds the run; returns its page, or "" when MLflow is down."""
        self._attempt(lambda: _open_run(self.message))
        return self.url

    @property
    def url(self) -> str:
        """The run's page in the MLflow UI, or "" while there is none."""
        return run_url(self.message)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """See `Listener.metrics`; sent every few seconds."""
        now = int(time.time() * 1000)
        self.message.metrics += [(name, float(value), now, step) for name, value in values.items()]
        if time.monotonic() - self._flushed > _FLUSH_S and not self._down:
            self._flushed = time.monotonic()
            self._attempt(lambda: _send_metrics(self.message))

    def figure(self, name: str, png: bytes) -> None:
        """See `Listener.figure`."""
        self.message.figures[name] = base64.b64encode(png).decode()

    def close(self, status: str, artifact: Artifact | None, error: str = "") -> bool:
        """Sends what is left and ends the run; returns whether everything was told."""
        self.message.status = status
        self.message.error = error
        self.message.artifact = str(artifact.address) if artifact else ""
        return self._attempt(lambda: deliver(self.message, artifact))

    def _attempt(self, send: Callable[[], None]) -> bool:
        try:
            send()
        except Exception as error:  # a mirror that breaks must not break what it mirrors
            if not self._down:
                log.warning(
                    "MLflow at %s does not answer (%s); the run goes on and is sent later",
                    self.message.context.uri,
                    _one_line(error),
                )
            self._down = True
            return False
        self._down = False
        return True


def run_url(message: Message) -> str:
    """Returns the page of a message's run, or "" while there is none."""
    if not message.run_id:
        return ""
    experiment, _, run_id = message.run_id.partition("/")
    return f"{message.context.uri.rstrip('/')}/#/experiments/{experiment}/runs/{run_id}"


def deliver(message: Message, artifact: Artifact | None) -> None:
    """Tells MLflow all of `message`; may be repeated. Raises what the client raises."""
    client = _open_run(message)
    run_id = message.run_id.partition("/")[2]
    _send_metrics(message)
    for name in list(message.figures):
        _send_file(client, run_id, name, base64.b64decode(message.figures[name]))
        del message.figures[name]
    if artifact:
        _send_record(client, run_id, artifact)
        if message.registered:
            _register(client, message, run_id, artifact)
    if message.error:
        client.set_tag(run_id, "sluice.error", message.error[:_TEXT])
    client.set_terminated(run_id, status=message.status)
    if parent := _parent_of(client, run_id):
        client.set_terminated(parent, status=message.status)


def _client(uri: str) -> Any:
    # The defaults would hold a stage up for minutes when the server is down.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def _open_run(message: Message) -> Any:
    client = _client(message.context.uri)
    if message.run_id:
        return client
    context = message.context
    experiment = _experiment(client, context.experiment)
    tags = {**context.tags, "sluice.run_key": message.key, "sluice.stage": message.name}
    if context.parent_key:
        tags["mlflow.parentRunId"] = _find_or_create(
            client, experiment, "sluice.dag_run", context.parent_key, context.parent_key, context.tags
        )
    message.run_id = (
        f"{experiment}/{_find_or_create(client, experiment, 'sluice.run_key', message.key, message.name, tags)}"
    )
    return client


def _experiment(client: Any, name: str) -> str:
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found:
        return str(found.experiment_id)
    try:
        return str(client.create_experiment(name))
    except MlflowException:  # a task beside this one was faster
        return str(client.get_experiment_by_name(name).experiment_id)


def _find_or_create(client: Any, experiment: str, tag: str, value: str, name: str, tags: dict[str, str]) -> str:
    quoted = value.replace("'", "")
    found = client.search_runs([experiment], f"tags.`{tag}` = '{quoted}'", max_results=1, order_by=["start_time ASC"])
    if found:
        return str(found[0].info.run_id)
    run = client.create_run(experiment, tags={**tags, tag: quoted}, run_name=name)
    return str(run.info.run_id)


def _parent_of(client: Any, run_id: str) -> str:
    return str(client.get_run(run_id).data.tags.get("mlflow.parentRunId", ""))


def _send_metrics(message: Message) -> None:
    from mlflow.entities import Metric

    client = _open_run(message)
    while message.metrics:
        batch = message.metrics[:_BATCH]
        client.log_batch(message.run_id.partition("/")[2], metrics=[Metric(*metric) for metric in batch])
        del message.metrics[: len(batch)]


def _send_record(client: Any, run_id: str, artifact: Artifact) -> None:
    from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag

    record = artifact.record
    now = int(record.finished.timestamp() * 1000)
    numbers = {**record.metrics, "rows_in": record.rows_in, "rows_out": record.rows_out, "bytes": record.bytes,
               "seconds": (record.finished - record.started).total_seconds(),
               **{f"rejected.{reason}": count for reason, count in record.rejected.items()}}  # fmt: skip
    client.log_batch(
        run_id,
        metrics=[Metric(_key(name), float(value), now, 0) for name, value in numbers.items()],
        params=[Param(name, value) for name, value in _flat(record.config)],
        tags=[RunTag(f"sluice.{name}", value) for name, value in _tags(record).items()],
    )
    client.log_inputs(
        run_id,
        datasets=[
            DatasetInput(
                dataset=Dataset(
                    name=ref.address,
                    digest=ref.content[:16],
                    source_type="sluice",
                    source=json.dumps({"uri": ref.address}),
                ),
                tags=[InputTag("mlflow.data.context", ref.role)],
            )
            for ref in record.inputs
        ],
    )
    _send_file(client, run_id, "artifact.json", record.model_dump_json(indent=1).encode())


def _tags(record: Record) -> dict[str, str]:
    return {
        "artifact": record.artifact,
        "fingerprint": record.fingerprint,
        "content": record.content,
        "code.version": record.code.get("version", ""),
        "code.commit": record.code.get("commit", ""),
    }


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            yield _key(f"{prefix}{name}"), text[:_TEXT]


def _key(name: str) -> str:
    return "".join(c if c.isalnum() or c in "_-. /" else "_" for c in name)[:240]


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sluice-mlflow-") as name:
        yield Path(name)


def _send_file(client: Any, run_id: str, name: str, data: bytes) -> None:
    with _folder() as folder:
        (folder / name).write_bytes(data)
        client.log_artifact(run_id, str(folder / name))


def _register(client: Any, message: Message, run_id: str, artifact: Artifact) -> None:
    import mlflow.pyfunc
    from mlflow.exceptions import MlflowException

    folder_name, wanted = message.registered or ("", "")
    name = wanted or message.context.experiment
    if client.search_model_versions(f"name='{name}' and tags.`sluice.fingerprint` = '{artifact.record.fingerprint}'"):
        return
    with _folder() as folder:
        data = folder / "data"
        data.mkdir()
        for path in artifact.files(f"{folder_name}/"):
            (data / path.rpartition("/")[2]).write_bytes(artifact.read(path))
        mlflow.pyfunc.save_model(str(folder / "model"), data_path=str(data), loader_module="tasks.train.serve",
                                 pip_requirements=["sluice[train]"])  # fmt: skip
        client.log_artifacts(run_id, str(folder / "model"), "model")
    try:
        client.create_registered_model(name)
    except MlflowException:  # it exists
        client.get_registered_model(name)
    lineage = {f"sluice.{ref.role}": f"{ref.address} {ref.fingerprint[:16]}" for ref in artifact.record.inputs}
    source = f"{client.get_run(run_id).info.artifact_uri}/model"
    client.create_model_version(name, source, run_id=run_id, tags={
        "sluice.fingerprint": artifact.record.fingerprint, "sluice.artifact": artifact.record.artifact, **lineage
    })  # fmt: skip


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
