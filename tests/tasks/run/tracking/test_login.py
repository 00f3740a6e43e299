"""User and password in the URI of MLflow: its client sends them, and nothing else has them."""

import base64
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tasks.core.artifact import Artifact
from tasks.core.errors import TransientError
from tasks.run.place import Place
from tasks.run.tracking import Message, TrackingContext, server_of
from tasks.run.tracking.outbox import keep_message, send_messages
from tasks.run.tracking.send import StageRun, delete_runs, traceback_of
from tests.tasks.run.tracking.test_outbox import artifact

__all__ = ["artifact"]


class Refusing(HTTPServer):
    """Answers every request with an error of the server, and keeps the credentials that it was sent."""

    def __init__(self) -> None:
        self.credentials: set[str] = set()
        super().__init__(("127.0.0.1", 0), Answer)


class Answer(BaseHTTPRequestHandler):
    server: Refusing

    def do_GET(self) -> None:
        scheme, _, value = self.headers["Authorization"].partition(" ")
        self.server.credentials.add(f"{scheme} {base64.b64decode(value).decode()}")
        self.send_error(500)

    do_POST = do_GET

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def refusing() -> Iterator[Refusing]:
    with Refusing() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_the_client_sends_the_password_and_no_log_error_or_file_has_it(
    refusing: Refusing, artifact: Artifact, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = f"127.0.0.1:{refusing.server_port}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:se%40cret@{host}")
    uri = server_of(Place())
    assert uri == f"http://{host}"
    run = StageRun(artifact.store, Message(TrackingContext(uri, "login"), "one", "one", status="FINISHED"))
    assert run.open() == ""
    keep_message(artifact.store, run.message)
    delivery = send_messages(artifact.store)
    assert refusing.credentials == {"Basic me:se@cret"}
    with pytest.raises(TransientError) as error:
        delete_runs(uri, "login", [str(artifact.address)])
    [path] = artifact.store.list(".outbox")
    texts = [caplog.text, str(delivery), str(error.value), artifact.store.read(path).decode()]
    assert all(host in text and "cret" not in text for text in texts), texts


def test_the_link_to_a_run_has_no_password(server: str, artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.replace("://", "://me:secret@"))
    run = StageRun(artifact.store, Message(TrackingContext(server_of(Place()), "linked"), "one", "one"))
    assert run.open().startswith(f"{server}/#/experiments/")


def test_the_traceback_of_a_fault_names_the_server_without_the_password() -> None:
    uri = "http://me:secret@mlflow:5000".replace("secret", "hunter2")
    try:
        raise TypeError("a number is needed") from ConnectionError(uri)
    except TypeError as error:
        text = traceback_of(error)
    assert "Traceback" in text
    assert "ConnectionError: http://mlflow:5000" in text
    assert "hunter2" not in text
