"""The outbox against a real MLflow server: what is refused for good is set aside, and everything else is sent."""

import json
from pathlib import Path

import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import ErrorCode
from requests import ConnectionError as NoConnection
from requests import HTTPError, JSONDecodeError, Response

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError, StoreError, TransientError
from tasks.core.store import Store
from tasks.run.shell import main
from tasks.run.tracking import Message, TrackingContext, outbox
from tasks.run.tracking.outbox import REFUSED, keep_message, send_messages, waiting_messages
from tasks.run.tracking.send import StageRun, is_refusal
from tests.conftest import run_stage_in
from tests.tasks.run.toy_stage import ToyConfig
from tests.tasks.run.tracking.servers import client

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Artifact:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    return run_stage_in(tmp_path / "store", "tests.tasks.run.toy_stage", ToyConfig())


def keep(artifact: Artifact, uri: str, experiment: str, *keys: str, **more: object) -> list[Message]:
    """Keeps messages about finished runs as if MLflow had been down."""
    context = TrackingContext(uri, experiment)
    made = [Message(context, key, key, version="1", status="FINISHED", **more) for key in keys]  # type: ignore[arg-type]
    for message in made:
        message.artifact = str(artifact.address)
        keep_message(artifact.store, message)
    return made


def sent(uri: str, experiment: str) -> set[str]:
    held = client(uri)
    found = held.get_experiment_by_name(experiment)
    return {run.info.run_name for run in held.search_runs([found.experiment_id])} if found else set()


KEYS = ("a", "c", "e")
"""By the order of their hashes, some are before the refused ones of each test and some behind."""


def test_a_deleted_experiment_is_set_aside_and_sent_when_it_is_restored(
    server: str, artifact: Artifact, caplog
) -> None:
    held, store = client(server), artifact.store
    experiment = held.create_experiment("deleted")
    held.delete_experiment(experiment)
    keep(artifact, server, "deleted", "gone")
    keep(artifact, server, "after-deleted", *KEYS)
    delivery = send_messages(store)
    assert (delivery.sent, waiting_messages(store)) == (3, 0)
    assert sent(server, "after-deleted") == {f"{key} @1" for key in KEYS}
    [refused] = delivery.refused
    assert (refused.experiment, refused.version, refused.stage) == ("deleted", "1", "gone")
    assert "must be in the 'active' state" in refused.reason
    [path] = store.list(REFUSED)
    assert json.loads(store.read(path))["reason"] == refused.reason
    assert f"MLflow refuses a run, which is set aside; correct the cause, then `sluice sync`: {refused}" in (
        caplog.messages
    )
    assert send_messages(store).refused == [], "a stage does not try it again"
    held.restore_experiment(experiment)
    assert send_messages(store, again=True).sent == 1
    assert (sent(server, "deleted"), store.list(REFUSED)) == ({"gone @1"}, [])


def test_a_deleted_run_and_a_refused_name_of_a_model_are_set_aside(server: str, artifact: Artifact) -> None:
    store, held = artifact.store, client(server)
    begun = StageRun(store, Message(TrackingContext(server, "runs"), "begun", "begun", version="1"))
    begun.open()
    begun.message.status = "FINISHED"
    held.delete_run(begun.message.run_id.partition("/")[2])
    keep_message(store, begun.message)
    keep(artifact, server, "runs", "model", registered=("model", "team/guide"))
    keep(artifact, server, "runs", *KEYS)
    delivery = send_messages(store)
    assert (delivery.sent, waiting_messages(store)) == (3, 0)
    reasons = {one.stage: one.reason for one in delivery.refused}
    assert set(reasons) == {"begun", "model"}
    assert "must be in the 'active' state" in reasons["begun"]
    assert "Names cannot contain" in reasons["model"] or "Invalid model name" in reasons["model"]


def test_a_stage_whose_data_are_refused_says_so_and_is_not_called_an_outage(
    server: str, artifact: Artifact, caplog: pytest.LogCaptureFixture
) -> None:
    held = client(server)
    held.delete_experiment(held.create_experiment("refusing"))
    run = StageRun(artifact.store, Message(TrackingContext(server, "refusing"), "one", "one"))
    assert run.open() == ""
    assert run.is_refused
    assert "refuses the data of this run" in caplog.text
    assert "does not respond" not in caplog.text
    down = StageRun(artifact.store, Message(TrackingContext(NOWHERE, "refusing"), "two", "two"))
    assert (down.open(), down.is_refused) == ("", False)
    assert f"MLflow at {NOWHERE} does not respond" in caplog.text


def test_a_server_that_is_down_holds_up_no_other_and_is_asked_once(
    server: str, artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, deliver = [], outbox.deliver

    def counted(store: Store, message: Message, made: Artifact | None) -> None:
        asked.append(message.context.uri)
        deliver(store, message, made)

    monkeypatch.setattr(outbox, "deliver", counted)
    keep(artifact, NOWHERE, "down", *"xyz")
    keep(artifact, server, "up", *KEYS)
    delivery = send_messages(artifact.store)
    assert (delivery.sent, delivery.refused, set(delivery.down)) == (3, [], {NOWHERE})
    assert (asked.count(NOWHERE), waiting_messages(artifact.store)) == (1, 3)


CODES = ("INTERNAL_ERROR", "REQUEST_LIMIT_EXCEEDED", "PERMISSION_DENIED", "ENDPOINT_NOT_FOUND")


def test_what_may_be_accepted_later_stays_in_the_outbox_and_those_behind_it_are_sent(
    server: str, artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver = outbox.deliver

    def fails(store: Store, message: Message, made: Artifact | None) -> None:
        if message.name in CODES:
            raise MlflowException("not now", error_code=ErrorCode.Value(message.name))
        deliver(store, message, made)

    monkeypatch.setattr(outbox, "deliver", fails)
    keep(artifact, server, "later", *CODES, *KEYS)
    delivery = send_messages(artifact.store)
    assert (delivery.sent, delivery.refused, delivery.down) == (3, [], {})
    assert {(one.stage, one.reason) for one in delivery.kept} == {(code, "not now") for code in CODES}
    assert waiting_messages(artifact.store) == len(CODES)


def test_a_message_that_cannot_be_read_is_set_aside(server: str, artifact: Artifact) -> None:
    store = artifact.store
    (message,) = keep(artifact, server, "unread", "whole")
    for name, content in (("half", message.to_json()[:50]), ("newer", message.to_json()[:-1] + b', "more": 1}')):
        with store.write(f".outbox/{name}.json") as file:
            file.write(content)
    delivery = send_messages(store)
    assert (delivery.sent, waiting_messages(store)) == (1, 0)
    assert store.list(REFUSED) == [f"{REFUSED}/half.json", f"{REFUSED}/newer.json"]
    assert [str(one).partition(":")[0] for one in delivery.refused] == ["a message that cannot be read"] * 2


@pytest.mark.parametrize("content", [b"{", b"{}", b"[]", b'{"message": 1}', b'{"message": "{}"}'])
def test_a_file_that_was_set_aside_and_is_broken_does_not_stop_the_others(
    server: str, artifact: Artifact, content: bytes
) -> None:
    store = artifact.store
    (message,) = keep(artifact, server, "broken", "behind")
    with store.write(f"{REFUSED}/0.json") as file:
        file.write(content)
    with store.write(f"{REFUSED}/1.json") as file:
        file.write(json.dumps({"reason": "", "message": message.to_json().decode()}).encode())
    for path in store.list(".outbox"):
        store.remove(path)
    delivery = send_messages(store, again=True)
    assert (delivery.sent, len(delivery.refused), store.list(REFUSED)) == (1, 1, [f"{REFUSED}/0.json"])
    again = send_messages(store, again=True)
    assert (again.sent, [one.stage for one in again.refused]) == (0, [""])


def test_sync_names_what_is_refused_and_forgets_it_only_when_it_is_told(
    server: str, artifact: Artifact, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store, held = artifact.store, client(server)
    monkeypatch.setenv("SLUICE_STORE", store.root)
    held.delete_experiment(held.create_experiment("synced"))
    keep(artifact, server, "synced", "gone")
    keep(artifact, server, "sync-others", "other")
    assert main(["sync", "--recipe", "smoke"]) == InputError.exit_code
    said = capsys.readouterr()
    assert said.out.splitlines()[0] == "1 sent, 0 waiting, 1 refused"
    assert said.out.splitlines()[1].startswith("refused: synced: gone @1: ")
    assert "MLflow refuses 1 runs. Restore what was deleted in MLflow and run again, or forget them" in said.err
    keep(artifact, NOWHERE, "synced", "late")
    assert main(["sync", "--recipe", "smoke", "--forget"]) == TransientError.exit_code
    said = capsys.readouterr()
    assert said.out.splitlines() == ["0 sent, 1 waiting, 0 refused, 1 forgotten"]
    assert f"MLflow at {NOWHERE} does not respond" in said.err


def answered(status: int) -> HTTPError:
    response = Response()
    response.status_code = status
    return HTTPError("refused", response=response)


STAYS = ("INVALID_PARAMETER_VALUE", "INVALID_STATE", "RESOURCE_DOES_NOT_EXIST")
PASSES = ("TEMPORARILY_UNAVAILABLE", "UNAUTHENTICATED", "INTERNAL_ERROR")


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        *((MlflowException("", error_code=ErrorCode.Value(code)), code in STAYS) for code in STAYS + PASSES),
        (MlflowException("API request failed with timeout exception"), False),
        *((answered(status), status in (400, 413)) for status in (400, 401, 403, 404, 413, 429, 502, 503)),
        (NoConnection("refused"), False),
        (TimeoutError(), False),
        (StoreError("full"), False),
        (TransientError("away"), False),
        (ImportError("mlflow"), False),
        (InputError("the artifact is gone"), True),
        (FileNotFoundError("the files of the model were removed"), True),
        (KeyError("metrics"), True),
        (JSONDecodeError("a page of a proxy", "<html>", 0), False),
        (type("ClientError", (Exception,), {})("the object store behind MLflow is away"), False),
    ],
)
def test_only_what_stays_is_a_refusal(error: Exception, refused: bool) -> None:
    assert is_refusal(error) is refused


def test_a_fault_of_sluice_is_not_blamed_on_mlflow_and_keeps_its_traceback(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def faulty(*_: object) -> None:
        raise TypeError("unsupported operand")

    monkeypatch.setattr("tasks.run.tracking.send.open_run", faulty)
    run = StageRun(artifact.store, Message(TrackingContext(NOWHERE, "faulty"), "one", "one"))
    run.open()
    keep(artifact, NOWHERE, "faulty", "two")
    assert len(send_messages(artifact.store).refused) == 1
    assert "refuses" not in caplog.text
    assert "does not respond" not in caplog.text
    assert caplog.text.count("Traceback") == caplog.text.count("by a fault of Sluice") == 2
