"""Tracking against a real MLflow server on loopback."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tasks.artifact import Artifact
from tasks.store import Store
from tasks.tracking import TrackingContext, outbox
from tasks.tracking.run import StageRun
from tests.conftest import run_stage_in
from tests.tasks.toy_stage import ToyConfig

if TYPE_CHECKING:
    from mlflow import MlflowClient


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def mlflow_server(folder: Path, port: int) -> Iterator[str]:
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db",
               "--artifacts-destination", str(folder / "artifacts"), "--host", "127.0.0.1", "--port", str(port),
               "--workers", "1"]  # fmt: skip
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
    server = subprocess.Popen(command, cwd=folder, start_new_session=True, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, env=environment)  # fmt: skip
    try:
        uri = f"http://127.0.0.1:{port}"
        for _ in range(240):
            try:
                urllib.request.urlopen(f"{uri}/health", timeout=2)
                break
            except OSError:
                time.sleep(0.5)
        yield uri
    finally:
        os.killpg(server.pid, 9)
        server.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with mlflow_server(tmp_path_factory.mktemp("mlflow"), free_port()) as uri:
        yield uri


def client(uri: str) -> "MlflowClient":
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def runs_of(uri: str, experiment: str) -> dict[str, object]:
    held = client(uri)
    found = held.get_experiment_by_name(experiment)
    return {run.info.run_name: run for run in held.search_runs([found.experiment_id])} if found else {}


def tracked(uri: str, experiment: str, artifact: Artifact, parent: str = "") -> StageRun:
    context = TrackingContext(uri, experiment, parent, {"dag_id": "demo.corpus"})
    run = StageRun(context, f"{parent}|{artifact.address}|{artifact.record.fingerprint[:16]}", "toy")
    run.open()
    run.metrics(1, {"loss": 2.0})
    run.metrics(2, {"loss": 1.0})
    run.file("loss.png", b"\x89PNG")
    run.file("cards/toy.md", b"# Toy")
    return run


def test_a_stage_run_hangs_under_its_dag_run_with_inputs_numbers_and_picture(server: str, tmp_path: Path) -> None:
    source = run_stage_in(tmp_path, "tests.tasks.toy_stage", ToyConfig(), kind="source")
    artifact = run_stage_in(tmp_path, "tests.tasks.toy_stage", ToyConfig(rows=5), {"numbers": source}, kind="toy")
    run = tracked(server, "nested", artifact, "demo.corpus/manual-1")
    assert run.close("FINISHED", artifact)
    runs = runs_of(server, "nested")
    child, parent = runs["toy"], runs["demo.corpus/manual-1"]
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert child.data.tags["sluice.fingerprint"] == artifact.record.fingerprint
    assert child.data.tags["dag_id"] == "demo.corpus"
    assert child.data.metrics["rows_in"] == artifact.record.rows_in
    assert child.data.metrics["rejected.toy_round"] == artifact.record.rejected["toy_round"]
    assert child.data.params["rows"] == "5"
    (dataset,) = child.inputs.dataset_inputs
    assert dataset.dataset.name == str(source.address)
    assert dataset.tags[0].value == "numbers"
    history = client(server).get_metric_history(child.info.run_id, "loss")
    assert [(point.step, point.value) for point in history] == [(1, 2.0), (2, 1.0)]
    names = {entry.path for entry in client(server).list_artifacts(child.info.run_id)}
    assert {"loss.png", "artifact.json"} <= names
    assert [entry.path for entry in client(server).list_artifacts(child.info.run_id, "cards")] == ["cards/toy.md"]
    assert child.info.run_id in run.url


def test_a_retry_goes_on_in_the_run_of_the_first_try(server: str, tmp_path: Path) -> None:
    artifact = run_stage_in(tmp_path, "tests.tasks.toy_stage", ToyConfig())
    first = tracked(server, "retried", artifact, "dag/run")
    first.close("FAILED", None, "worker was killed")
    second = tracked(server, "retried", artifact, "dag/run")
    second.close("FINISHED", artifact)
    assert first.url == second.url
    assert {run.info.status for run in runs_of(server, "retried").values()} == {"FINISHED"}


def test_what_mlflow_missed_is_kept_and_sent_once_it_is_back(tmp_path: Path) -> None:
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    store = Store(str(tmp_path / "store"))
    artifact = run_stage_in(tmp_path / "store", "tests.tasks.toy_stage", ToyConfig())
    begin = time.monotonic()
    run = tracked(uri, "late", artifact, "dag/run")
    assert not run.close("FINISHED", artifact)
    assert time.monotonic() - begin < 60
    outbox.keep(store, run.message)
    assert outbox.waiting(store) == 1
    with mlflow_server(tmp_path / "mlflow", port):
        assert outbox.send(store) == 1
        assert outbox.waiting(store) == 0
        (late,) = [one for name, one in runs_of(uri, "late").items() if name == "toy"]
        assert late.data.metrics["rows_out"] == artifact.record.rows_out
        assert late.data.metrics["loss"] == 1.0
        assert "loss.png" in {entry.path for entry in client(uri).list_artifacts(late.info.run_id)}
