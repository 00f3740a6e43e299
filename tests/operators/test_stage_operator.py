"""StageOperator inside a real DAG run: real stages on real files, Airflow's own task runner and database."""

import json
import subprocess
import sys
import time
from unittest.mock import Mock

import psutil
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowRuntimeError
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow.sdk.execution_time.context import AssetStateStoreAccessor

from operators.stage import StageOperator, member_lists
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import NothingNewError
from tasks.core.store import Store
from tests.airflow_home import events_of, state_of, states
from tests.kafka import Broker


def returned(run, task):
    return next(ti for ti in run.get_task_instances() if ti.task_id == task).xcom_pull(task_ids=task)


def tries(run, task):
    return next(ti for ti in run.get_task_instances() if ti.task_id == task).try_number


def test_a_dag_run_writes_artifacts_and_emits_an_event_with_version_and_figures(recipes, dag_bag, documents, tmp_path):
    recipes("flow")
    documents("flow", "v1")
    run = dag_bag().dags["flow.tokens"].test(run_conf={"version": "v1"})
    assert states(run) == {"tokenizer": "success", "encode": "success", "pack": "success"}
    plan = Artifact.open_at(Store(str(tmp_path / "store")), ArtifactId("flow/plan", "v1"))
    assert events_of("flow/tokens") == [
        {
            "version": "v1",
            "source_version": None,
            "overrides": {},
            "address": "flow/plan@v1",
            "outcome": "made",
            "tokens": plan.record.metrics["tokens"],
            "sequences": plan.record.metrics["sequences"],
            "fingerprint": plan.record.fingerprint,
            "content": plan.record.content,
        }
    ]
    result = returned(run, "encode")
    assert result["address"] == "flow/shards@v1"
    assert result["rows"]["in"] == 40
    assert json.loads(json.dumps(result)) == result


def test_a_repeated_run_skips_existing_artifacts_and_emits_their_events_again(recipes, dag_bag, documents):
    recipes("again")
    documents("again")
    dag = dag_bag().dags["again.tokens"]
    first, second = dag.test(), dag.test()
    assert [returned(run, "pack")["skipped"] for run in (first, second)] == [False, True]
    assert len(events_of("again/tokens")) == 2


def test_an_override_reaches_the_stage_and_the_event(recipes, dag_bag, documents):
    recipes("over")
    documents("over")
    overrides = {"pack.seq_len": 32}
    run = dag_bag().dags["over.tokens"].test(run_conf={"overrides": overrides})
    assert str(run.state) == "success"
    assert events_of("over/tokens")[-1]["overrides"] == overrides


def test_a_source_version_names_inputs_of_another_version(recipes, dag_bag, documents):
    recipes("branch")
    documents("branch", "dev")
    run = dag_bag().dags["branch.tokens"].test(run_conf={"version": "exp", "source_version": "dev"})
    assert str(run.state) == "success"
    assert returned(run, "encode")["address"] == "branch/shards@exp"
    assert (
        str(dag_bag().dags["branch.tokens"].test(run_conf={"version": "next", "source_version": "exp"}).state)
        == "success"
    )
    event = events_of("branch/tokens")[-1]
    assert [event[name] for name in ("version", "source_version", "outcome")] == [
        "next",
        "exp",
        "adopted from branch/plan@exp",
    ]


def test_a_permanent_error_ends_the_task_at_its_first_try_with_one_line(recipes, dag_bag, caplog, capsys):
    recipes("empty")
    run = dag_bag().dags["empty.tokens"].test()
    assert states(run) == {"tokenizer": "failed", "encode": "upstream_failed", "pack": "upstream_failed"}
    assert tries(run, "tokenizer") == 1
    said = caplog.text + capsys.readouterr().out
    assert "stage tokenizer needs empty/documents@dev, which is not in" in said
    assert "Run the stage consolidate first" in said
    assert events_of("empty/tokens") == []


def test_a_version_with_nothing_new_skips_the_task_and_emits_no_event(recipes, dag_bag, documents, monkeypatch):
    def nothing_new(*_):
        raise NothingNewError("none of 3 captures and files is left (revisit 3)")

    monkeypatch.setattr("tasks.stages.tokens.encode.run", nothing_new)
    recipes("calm")
    documents("calm")
    run = dag_bag().dags["calm.tokens"].test()
    assert states(run) == {"tokenizer": "success", "encode": "skipped", "pack": "skipped"}
    assert events_of("calm/tokens") == []


def test_drift_is_reported_and_no_event_is_emitted(recipes, dag_bag, documents):
    recipes("drift")
    documents("drift")
    assert str(dag_bag().dags["drift.tokens"].test().state) == "success"
    run = dag_bag().dags["drift.tokens"].test(run_conf={"overrides": {"pack.seq_len": 32}})
    assert states(run)["pack"] == "failed"
    assert len(events_of("drift/tokens")) == 1


def test_a_wrong_override_fails_at_once(recipes, dag_bag, documents, caplog, capsys):
    recipes("wrong")
    documents("wrong")
    run = dag_bag().dags["wrong.tokens"].test(run_conf={"overrides": {"pack.seq_length": 32}})
    assert states(run)["tokenizer"] == "failed"
    assert tries(run, "tokenizer") == 1
    assert "seq_len" in caplog.text + capsys.readouterr().out


def test_killing_a_task_kills_its_child_processes(recipes):
    # torchrun with a child rank; the rank ignores SIGTERM.
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    )
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {stubborn!r}])"
    child = subprocess.Popen([sys.executable, "-c", outer], stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"up\n"
    family = [psutil.Process(child.pid), *psutil.Process(child.pid).children(recursive=True)]
    assert len(family) == 2
    recipes("killed")
    before = time.monotonic()
    StageOperator(task_id="train", recipe="killed", stage="train").on_kill()
    # Airflow kills the task process 5 s after SIGTERM; no process may outlive it.
    assert time.monotonic() - before < 5
    child.wait(timeout=2)
    ends = time.monotonic() + 2
    while (alive := [one for one in family if _is_alive(one)]) and time.monotonic() < ends:
        time.sleep(0.05)
    assert not alive


def test_the_links_of_a_task_point_to_its_artifact():
    task = StageOperator(task_id="train", recipe="any", stage="train")
    assert [link.get_link(task, ti_key=None) for link in task.operator_extra_links] == ["", ""]
    task.result = {"address": "any/checkpoint@dev", "mlflow_run_url": "http://mlflow/#/runs/1"}
    links = {link.name: link.get_link(task, ti_key=None) for link in task.operator_extra_links}
    assert links == {"MLflow run": "http://mlflow/#/runs/1", "Artifact": "/sluice/artifact/any/checkpoint@dev"}


def _is_alive(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


STREAM = """
name = "{name}"
[[extract.streams]]
name = "news"
topic = "articles"
[place]
store = "{folder}"
"""


@pytest.fixture
def streaming(recipes, dag_bag, tmp_path, monkeypatch):
    """Runs the task `stream` of a recipe at a version, after a message in a partition of its own; returns its state."""
    broker = Broker()
    monkeypatch.setenv("SLUICE_KAFKA", json.dumps({"bootstrap.servers": broker.address}))

    def run(name: str, version: str, partition: int) -> str:
        recipes(name, text=STREAM.format(name=name, folder=tmp_path / "store"))
        broker.send({"text": "news", "url": "https://news.example/"}, partition=partition)
        dag = dag_bag().dags[f"{name}.corpus"].partial_subset("stream")
        return states(dag.test(run_conf={"version": version}))["stream"]

    return run


def test_airflow_shows_to_which_offset_the_newest_version_has_read_a_stream(streaming, tmp_path):
    for version, partition in (("1", 0), ("2", 3), ("1", 1)):
        assert streaming("wire", version, partition) == "success"
    newest = Artifact.open_at(Store(str(tmp_path / "store")), ArtifactId("wire/messages", "2"))
    shown = {"next_offsets": {"0": 1, "1": 0, "2": 0, "3": 1}, "version": "2"}
    assert state_of("wire/streams") == {"news/articles": {**shown, "finished": newest.record.finished.isoformat()}}


def test_a_state_that_airflow_does_not_take_is_a_warning(streaming, monkeypatch, caplog):
    def refuse(*_):
        raise AirflowRuntimeError(ErrorResponse(detail={"message": "planted"}))

    monkeypatch.setattr(AssetStateStoreAccessor, "set", refuse)
    assert streaming("mute", "1", 0) == "success"
    assert state_of("mute/streams") == {}
    assert "Airflow's state of mute/streams was not written" in caplog.text


def test_the_lists_of_members_have_each_member_once_and_none_more_than_airflow_maps(monkeypatch):
    members = {"address": "many/arms@dev", "members": [f"round-1-arm-{number}-seed-0" for number in range(1025)]}
    monkeypatch.setattr(StageOperator, "run", lambda self, context: members)
    with DAG("many.canary", schedule=None):
        lists = member_lists(1025, task_id="arms", recipe="many", stage="arms")
    batches = [listed.execute({"ti": Mock()}) for listed in lists]
    assert [listed.task_id for listed in lists] == ["arms", "arms_2"]
    assert lists[1].upstream_task_ids == {"arms"}
    assert [len(batch) for batch in batches] == [1024, 1]
    assert [member for batch in batches for member in batch] == members["members"]
    monkeypatch.setenv("AIRFLOW__CORE__MAX_MAP_LENGTH", "512")
    with pytest.raises(AirflowFailException, match=r"has 1,025 members, .* 1,024 tasks: raise \[core\] max_map_length"):
        lists[0].execute({"ti": Mock()})
