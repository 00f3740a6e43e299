"""Sending to MLflow: the runs of stages, their metrics and files, and registered models.

Every call may be repeated: runs are found by their key, models by their fingerprint. A registered model has its card,
and its lineage as tags. What could not be sent is kept in the outbox (`tasks.run.tracking.outbox`).
"""

import base64
import json
import logging
import os
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from requests import HTTPError

from tasks.core.artifact import Artifact, ArtifactId, ArtifactRecord
from tasks.core.digest import sha256_of
from tasks.core.errors import SluiceError, StoreError, TransientError, without_login
from tasks.core.ledger import newest
from tasks.core.stage import Listener
from tasks.core.store import AlreadyPublished, Store
from tasks.formats.documents.tombstones import in_force
from tasks.run.tracking import Message, client_uri, describe, run_url

log = logging.getLogger("sluice.tracking")

_FOLDER = "model"
"""Folder with the files of a model in an artifact of the stage `register`."""

_BATCH = 900  # MLflow accepts at most 1,000 metrics in one call
_TEXT = 450  # longest parameter or tag that every backend accepts
_KIND = {"mlflow.experimentKind": "custom_model_development"}  # model training, in MLflow's UI

_FLUSH_S = 3.0

PARENTS = ".mlflow"

_REFUSALS = ("INVALID_PARAMETER_VALUE", "INVALID_STATE", "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS")
"""Codes by which MLflow itself refuses a request. A proxy's 404 is ENDPOINT_NOT_FOUND."""

_REFUSED_FILES = (400, 413)
"""HTTP status by which a file is refused."""

_RUN, _DAG_RUN = "sluice.run_key", "sluice.dag_run"
_OF_A_TASK = ("airflow.task_id", "airflow.try_number")
"""Tags of stage runs that the run of their DAG does not have."""


class StageRun(Listener):
    """The MLflow run of one stage run; buffers data while the server does not respond.

    Args:
        store: the store of the stage.
        message: what is sent.

    Attributes:
        is_refused: whether the server responds, and refuses the data.
    """

    def __init__(self, store: Store, message: Message) -> None:
        self.message = message
        self._store = store
        self._flushed = 0.0
        self._down = False
        self.is_refused = False

    def open(self) -> str:
        """Creates or finds the run; returns its URL, or "" if MLflow is down."""
        self._attempt(lambda: open_run(self._store, self.message))
        return self.url

    @property
    def url(self) -> str:
        """URL of the run in the MLflow UI, or "" if the run does not exist yet."""
        return run_url(self.message)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """See `Listener.metrics`; metrics are sent every few seconds."""
        now = int(time.time() * 1000)
        self.message.metrics += [(name, float(value), now, step) for name, value in values.items()]
        if time.monotonic() - self._flushed > _FLUSH_S and not self._down:
            self._flushed = time.monotonic()
            self._attempt(lambda: send_metrics(self._store, self.message))

    def file(self, name: str, data: bytes) -> None:
        """See `Listener.file`."""
        self.message.files[name] = base64.b64encode(data).decode()

    def close(self, status: str, artifact: Artifact | None, error: str = "") -> bool:
        """Sends the remaining data and ends the run; returns whether everything was sent."""
        self.message.status = status
        self.message.error = error
        self.message.artifact = str(artifact.address) if artifact else ""
        return self._attempt(lambda: deliver(self._store, self.message, artifact))

    def _attempt(self, send: Callable[[], None]) -> bool:
        try:
            send()
        except Exception as error:  # an error in tracking must not fail the stage
            if not self._down:
                self.is_refused = is_refusal(error)
                what = "refuses the data of this run" if self.is_refused else "does not respond"
                if is_fault(error):
                    what = "is not sent the data of this run, by a fault of Sluice"
                text = "MLflow at %s %s (%s); the run continues, and what is missing is kept in the outbox"
                log.warning(text + "%s", self.message.context.uri, what, one_line(error), traceback_of(error))
            self._down = True
            return False
        self._down = self.is_refused = False
        return True


def is_refusal(error: BaseException) -> bool:
    """Returns whether an error of `deliver` stays, however often the message is sent.

    MLflow has answered that something is deleted or invalid, the artifact or its files are gone, the message cannot be
    read, or `is_fault`. An error of the network, of the store or of credentials does not stay, nor does an answer of a
    proxy in front of MLflow, nor an unknown one.
    """
    if isinstance(error, TransientError | StoreError):
        return False
    if isinstance(code := getattr(error, "error_code", None), str):
        return code in _REFUSALS
    if isinstance(error, HTTPError):
        return error.response is not None and error.response.status_code in _REFUSED_FILES
    if isinstance(error, OSError):
        return isinstance(error, FileNotFoundError)
    return isinstance(error, SluiceError | ValueError) or is_fault(error)


def is_fault(error: BaseException) -> bool:
    """Returns whether an error is of the code of Sluice, so that a person needs its traceback."""
    return isinstance(error, TypeError | AttributeError | LookupError | NameError | AssertionError | ArithmeticError)


def traceback_of(error: BaseException) -> str:
    """Returns the traceback of an error of the code of Sluice, on new lines, without passwords in URIs; else ""."""
    return without_login("\n" + "".join(traceback.format_exception(error)).rstrip()) if is_fault(error) else ""


def is_up(uri: str) -> bool:
    """Returns whether an MLflow server answers."""
    try:
        _client(uri).search_experiments(max_results=1)
    except Exception:
        return False
    return True


def deliver(store: Store, message: Message, artifact: Artifact | None) -> None:
    """Sends a message and ends its run; may be repeated. Raises the exceptions of the MLflow client."""
    client = open_run(store, message)
    run_id = message.run_id.partition("/")[2]
    send_metrics(store, message)
    for name in list(message.files):
        _send_file(client, run_id, name, base64.b64decode(message.files[name]))
        del message.files[name]
    if artifact:
        _send_record(client, run_id, artifact)
        if message.registered:
            folder, name = message.registered
            register(client, name or message.context.experiment, folder, run_id, artifact)
        if message.aliases:
            set_aliases(client, message, run_id, artifact)
    if message.error:
        client.set_tag(run_id, "sluice.error", message.error[:_TEXT])
    _describe(client, message, artifact.record if artifact else None)
    client.set_terminated(run_id, status=message.status)
    if parent := _parent_of(client, run_id):
        if artifact:
            _send_summary(client, parent, message.name, artifact)
        client.set_terminated(parent, status=message.status)


def open_run(store: Store, message: Message) -> Any:
    """Creates or finds the message's run and its parent; returns the client."""
    client = _client(message.context.uri)
    if message.run_id:
        return client
    context = message.context
    experiment = _experiment(client, context.experiment)
    describe.on_experiment(client, experiment, context.description)
    versions = {"sluice.version": message.version, "sluice.source_version": message.source_version}
    tags = {**context.tags, **{name: version for name, version in versions.items() if version}}
    parent = _parent_run(client, store, experiment, message, tags) if context.parent_key else ""
    own = {**tags, "sluice.stage": message.name, **({"mlflow.parentRunId": parent} if parent else {})}
    run_id = _find(client, experiment, _RUN, message.key) or _create(
        client, experiment, _RUN, message.key, _named(message.name, message.version), own
    )
    message.run_id = f"{experiment}/{run_id}"
    describe.on_run(client, message.run_id.partition("/")[2], describe.stage(message.about, None))
    return client


def send_metrics(store: Store, message: Message) -> None:
    """Sends the metrics of a message and removes them from it."""
    from mlflow.entities import Metric

    client = open_run(store, message)
    while message.metrics:
        batch = message.metrics[:_BATCH]
        named = [Metric(_key(describe.series_name(name)), *point) for name, *point in batch]
        client.log_batch(message.run_id.partition("/")[2], metrics=named)
        del message.metrics[: len(batch)]


def register(client: Any, name: str, folder_name: str, run_id: str, artifact: Artifact) -> str:
    """Returns the version of the registered model `name` for this artifact; creates it if it is missing."""
    import mlflow.pyfunc
    from mlflow.exceptions import MlflowException

    from tasks.run import lineage
    from tasks.run.trace.cards import card  # slow to import, and most stages register nothing

    query = f"name='{name}' and tags.`sluice.fingerprint` = '{artifact.record.fingerprint}'"
    if versions := client.search_model_versions(query):
        return str(versions[0].version)
    try:  # first, because the name may be refused
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    with scratch_folder() as folder:
        data = folder / "data"
        data.mkdir()
        for path in artifact.files(f"{folder_name}/"):
            shutil.copyfile(artifact.local(path), data / path.rpartition("/")[2])
        takedowns = in_force(artifact.store, artifact.address.name.partition("/")[0])
        (data / "README.md").write_text(card(lineage.chain_of(artifact), takedowns))
        mlflow.pyfunc.save_model(str(folder / "model"), data_path=str(data), loader_module="tasks.trainer.serve",
                                 signature=_signature(), pip_requirements=["sluice[train]"])  # fmt: skip
        client.log_artifacts(run_id, str(folder / "model"), "model")
    tags = {f"sluice.{ref.role}": f"{ref.address} {ref.fingerprint[:16]}" for ref in artifact.record.inputs}
    if initial := json.loads(artifact.read(f"{folder_name}/lineage.json")).get("initial"):
        tags["sluice.initial"] = f"{initial['artifact']} {initial['fingerprint'][:16]}"
    source = f"{client.get_run(run_id).info.artifact_uri}/model"
    version = client.create_model_version(name, source, run_id=run_id, tags={
        "sluice.fingerprint": artifact.record.fingerprint, "sluice.artifact": artifact.record.artifact, **tags
    })  # fmt: skip
    return str(version.version)


def set_aliases(client: Any, message: Message, run_id: str, decision: Artifact) -> None:
    """Gives registered models the aliases in a message; creates model versions that MLflow does not have yet.

    Only the newest decision in the store sets aliases, so a message that is sent late does not move an alias back.
    """
    latest = newest(decision.store, decision.address.name)
    if latest and latest.record.content != decision.record.content:
        log.info("[%s] sets no alias: %s is newer", decision.address, latest.address)
        return
    for alias, address in sorted(message.aliases.items()):
        model = Artifact.find(decision.store, ArtifactId.parse(address))
        if model is None:
            log.warning("[%s] %s gets no alias %s: it is gone", decision.address, address, alias)
            continue
        tuned = "-tuned" if model.address.name.endswith("/tuned_model") else ""
        settings = model.record.config.get("registry") or model.record.config  # of a merged model, or of another one
        name = settings["model"] or f"{message.context.experiment}{tuned}"
        client.set_registered_model_alias(name, alias, register(client, name, _FOLDER, run_id, model))


def _signature() -> Any:
    """Returns a signature with the fields of `Sampling`; MLflow ignores parameters that have no signature."""
    from mlflow.models import ModelSignature
    from mlflow.types.schema import ParamSchema, ParamSpec

    from tasks.trainer.inference import Sampling  # imports torch

    types = {int: "long", float: "double"}
    defaults = Sampling().model_dump().items()
    return ModelSignature(params=ParamSchema([ParamSpec(name, types[type(value)], value) for name, value in defaults]))


def delete_runs(uri: str, recipe: str, artifacts: Collection[str]) -> int:
    """Marks the runs of artifacts, given by their ids, as deleted; `mlflow gc` removes such runs for good.

    Args:
        uri: address of the MLflow server.
        recipe: name of the recipe, which is that of its experiment.
        artifacts: the ids.

    Returns:
        the number of runs that were not deleted before.

    Raises:
        TransientError: the server does not respond.
    """
    from mlflow.exceptions import MlflowException

    client = _client(uri)
    try:
        experiment = client.get_experiment_by_name(recipe)
        found: list[str] = []
        token: str | None = ""
        while experiment and token is not None:
            page = client.search_runs([experiment.experiment_id], page_token=token or None)
            found += [run.info.run_id for run in page if run.data.tags.get("sluice.artifact") in artifacts]
            token = page.token or None
        for run_id in found:
            client.delete_run(run_id)
    except MlflowException as error:
        raise TransientError(f"MLflow at {uri} does not respond ({one_line(error)})", "run this again later") from None
    return len(found)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yields a temporary folder and removes it afterwards."""
    with tempfile.TemporaryDirectory(prefix="sluice-mlflow-") as name:
        yield Path(name)


def _describe(client: Any, message: Message, record: ArtifactRecord | None) -> None:
    experiment, _, run_id = message.run_id.partition("/")
    if record:
        describe.on_run(client, run_id, describe.stage(message.about, record))
        describe.on_experiment(client, experiment, message.context.description, record)
    if parent := _parent_of(client, run_id):
        outcome = describe.outcome(record) if record else f"{message.status.lower()}: {message.error}"
        describe.on_dag_run(client, parent, message.context.parent_key, message.name, outcome[:_TEXT])


def _client(uri: str) -> Any:
    # With the defaults, a stage would be delayed for minutes if the server is down.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    from mlflow import MlflowClient

    uri = client_uri(uri)
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def _experiment(client: Any, name: str) -> str:
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment:
        for tag in _KIND.keys() - experiment.tags.keys():
            client.set_experiment_tag(experiment.experiment_id, tag, _KIND[tag])
        return str(experiment.experiment_id)
    try:
        return str(client.create_experiment(name, tags=_KIND))
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
        return str(client.get_experiment_by_name(name).experiment_id)  # another task has just created it


def _parent_run(client: Any, store: Store, experiment: str, message: Message, tags: dict[str, str]) -> str:
    """Returns the run of the DAG run, or of the shell; creates it.

    MLflow has no unique keys, and the first stages of a DAG start together. The file that only one of them can create
    in the store names the parent; the others delete the runs that they have created, which nobody else uses.
    """
    key = message.context.parent_key
    claim = f"{PARENTS}/{sha256_of(f'{message.context.uri} {experiment} {key}'.encode())[:24]}"
    known = _claimed(store, claim)
    if known and _is_active(client, known):
        return known
    shown = {name: tag for name, tag in tags.items() if name not in _OF_A_TASK}
    run_id = _create(client, experiment, _DAG_RUN, key, _named(key.partition("/")[0], message.version), shown)
    try:
        store.publish(claim, run_id.encode())
    except AlreadyPublished:
        if (winner := _claimed(store, claim)) != known:
            client.delete_run(run_id)
            return winner
        with store.write(claim) as file:  # the server has lost the run, or somebody deleted it
            file.write(run_id.encode())
    return run_id


def _claimed(store: Store, claim: str) -> str:
    """Returns the id of the run that a file in the store names, "" if there is no such file."""
    try:
        return store.read(claim).decode()
    except FileNotFoundError:
        return ""


def _is_active(client: Any, run_id: str) -> bool:
    """Returns whether a run exists; not if the server has lost it, or somebody deleted it."""
    from mlflow.exceptions import MlflowException

    try:
        return bool(client.get_run(run_id).info.lifecycle_stage == "active")
    except MlflowException:
        return False


def _named(name: str, version: str) -> str:
    return f"{name} @{version}" if version else name


def _find(client: Any, experiment: str, tag: str, value: str) -> str:
    """Returns the id of the earliest run with this tag, or ""."""
    query = f"tags.`{tag}` = '{_quoted(value)}'"
    runs = client.search_runs([experiment], query, max_results=1, order_by=["start_time ASC"])
    return str(runs[0].info.run_id) if runs else ""


def _create(client: Any, experiment: str, tag: str, value: str, name: str, tags: dict[str, str]) -> str:
    run = client.create_run(experiment, tags={**tags, tag: _quoted(value)}, run_name=name)
    return str(run.info.run_id)


def _quoted(value: str) -> str:
    return value.replace("'", "")


def _parent_of(client: Any, run_id: str) -> str:
    return str(client.get_run(run_id).data.tags.get("mlflow.parentRunId", ""))


def _send_record(client: Any, run_id: str, artifact: Artifact) -> None:
    from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag

    record = artifact.record
    now = int(record.finished.timestamp() * 1000)
    seconds = "seconds_of_source" if record.adopted_from else "seconds"
    metrics = {**record.metrics, "rows_in": record.rows_in, "rows_out": record.rows_out, "bytes": record.bytes,
               seconds: (record.finished - record.started).total_seconds(),
               **{f"rejected.{reason}": count for reason, count in record.rejected.items()}}  # fmt: skip
    client.log_batch(
        run_id,
        metrics=[Metric(_key(describe.number_name(name)), float(value), now, 0) for name, value in metrics.items()],
        params=[Param(name, value) for name, value in _flatten(record.config)],
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


def _send_summary(client: Any, parent: str, name: str, artifact: Artifact) -> None:
    """Sends the main results of the stage `name` to the run of its DAG, whose columns compare versions."""
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    results = describe.summary(name, artifact)
    client.log_batch(parent, metrics=[Metric(_key(metric), value, now, 0) for metric, value in results.items()])
    # The last of several stages that end together reads the times of all of them. Of two totals, MLflow shows the one
    # with the greater step: the number of stages in it.
    totals = describe.totals(client.get_run(parent).data)
    stages = int(totals["stages_made"] + totals["stages_adopted"])
    client.log_batch(parent, metrics=[Metric(metric, value, now, stages) for metric, value in totals.items()])


def _tags(record: ArtifactRecord) -> dict[str, str]:
    return {
        "artifact": record.artifact,
        "fingerprint": record.fingerprint,
        "content": record.content,
        "outcome": "adopted" if record.adopted_from else "made",
        **({"adopted_from": record.adopted_from} if record.adopted_from else {}),
        "code.version": record.code.get("version", ""),
        "code.commit": record.code.get("commit", ""),
    }


def _flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            yield _key(f"{prefix}{name}"), text[:_TEXT]


def _key(name: str) -> str:
    return "".join(c if c.isalnum() or c in "_-. /" else "_" for c in name)[:240]


def _send_file(client: Any, run_id: str, name: str, data: bytes) -> None:
    with scratch_folder() as folder:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)  # a name may contain folders: "cards/quality.md"
        file.write_bytes(data)
        client.log_artifact(run_id, str(file), os.path.dirname(name) or None)


def one_line(error: BaseException) -> str:
    """Returns the message of an error in at most 200 characters, without passwords in URIs."""
    return without_login(" ".join(str(error).split()))[:200] or type(error).__name__
