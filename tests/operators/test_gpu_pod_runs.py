"""GpuPodOperator against a Kubernetes API: a stage runs in a pod that really runs, and the task follows it."""

import json
import sys
import time
from types import SimpleNamespace

import pytest

from tasks.artifact import Address, Artifact
from tasks.store import Store
from tests.operators.cluster import Cluster

POD = """
[place.train]
where = "kubernetes"
[place.kubernetes]
namespace = "training"
image = "trainer:1"
gpus = 0
"""
DAG_FILE = """
import pendulum
from airflow.sdk import DAG
from operators.assets import asset
from operators.gpu_pod import GpuPodOperator

PARAMS = {{"version": None, "overrides": {{}}}}
with DAG("{dag}", schedule=None, start_date=pendulum.datetime(2026, 1, 1), params=PARAMS):
    GpuPodOperator(
        task_id="tokenizer", recipe="{dag}", stage="tokenizer", retries=2, poll_interval=0.5,
        startup_check_interval_seconds=1, outlets=[asset("{dag}", "tokens")], {more}
    )
"""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    one = Cluster(tmp_path)
    extra = {"kube_config_path": str(one.kube_config), "namespace": "training", "in_cluster": False}
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    yield one
    one.close()


@pytest.fixture
def run_pod(tmp_path, monkeypatch, recipes, airflow_db):
    """Runs one stage of a fresh recipe in a pod, inside a DAG run; returns the run."""

    def run(name, conf=None, more=""):
        from airflow import settings
        from airflow.dag_processing.dagbag import DagBag

        recipes(name, POD)
        folder = tmp_path / "dags"
        folder.mkdir(exist_ok=True)
        (folder / "pod.py").write_text(DAG_FILE.format(dag=name, more=more))
        monkeypatch.setattr(settings, "DAGS_FOLDER", str(folder))
        bag = DagBag(str(folder), bundle_name="dags-folder")
        assert not bag.import_errors, bag.import_errors
        return bag.dags[name].test(run_conf=conf or {})

    return run


def task_of(run):
    [instance] = run.get_task_instances()
    return instance


def test_a_stage_runs_in_a_pod_and_its_artifact_is_announced(run_pod, cluster, documents, tmp_path):
    documents("podrun", "v1")
    run = run_pod("podrun", {"version": "v1"})
    assert str(run.state) == "success", cluster.log(cluster.created[-1]).read_text()
    made = Artifact.open_at(Store(str(tmp_path / "store")), Address("podrun/tokenizer", "v1"))
    result = task_of(run).xcom_pull(task_ids="tokenizer")
    assert result["address"] == "podrun/tokenizer@v1"
    assert result["content"] == made.record.content
    assert cluster.created == cluster.deleted
    assert not cluster.pods


def test_an_error_that_no_retry_can_mend_fails_the_task_at_once_in_one_line(run_pod, cluster, caplog, capsys):
    run = run_pod("podempty")
    assert str(run.state) == "failed"
    assert task_of(run).try_number == 1
    assert len(cluster.created) == 1
    said = caplog.text + capsys.readouterr().out
    assert "AirflowFailException: stage tokenizer needs podempty/documents@dev, which is not in" in said


def test_a_pod_that_an_earlier_process_started_is_found_again(cluster, recipes):
    # The worker dies between creating the pod and deferring: its successor must not start a second one.
    from operators.gpu_pod import GpuPodOperator

    recipes("podfound", POD)
    first = GpuPodOperator(task_id="tokenizer", recipe="podfound", stage="tokenizer", cmds=["sleep"])
    at = _context("podfound")
    first.arguments = ["60"]
    pod = first.get_or_create_pod(first.build_pod_request_obj(at), at)
    second = GpuPodOperator(task_id="tokenizer", recipe="podfound", stage="tokenizer")
    second.arguments = second.command(at)
    again = second.get_or_create_pod(second.build_pod_request_obj(at), at)
    assert again.metadata.name == pod.metadata.name
    assert cluster.created == [pod.metadata.name]


def test_a_task_that_is_killed_deletes_its_pod(cluster, recipes):
    from operators.gpu_pod import GpuPodOperator

    recipes("podkill", POD)
    task = GpuPodOperator(task_id="tokenizer", recipe="podkill", stage="tokenizer", cmds=["sleep"])
    at = _context("podkill")
    task.arguments = ["60"]
    task.pod = task.get_or_create_pod(task.build_pod_request_obj(at), at)
    task.on_kill()
    assert cluster.deleted == cluster.created
    time.sleep(0.2)
    assert cluster.processes[cluster.created[0]].poll() is not None


class _StateStore(dict):
    """Airflow's task state store: what one try wrote, the next one reads."""

    def set(self, key, value):
        self[key] = value


def _context(dag):
    return {
        "params": {"version": None, "source_version": None, "overrides": {}},
        "triggering_asset_events": {},
        "logical_date": None,
        "run_id": "manual__2026",
        "dag": SimpleNamespace(),
        "dag_run": SimpleNamespace(run_type="manual"),
        "task_state_store": _StateStore(),
        "ti": SimpleNamespace(dag_id=dag, task_id="tokenizer", map_index=-1, try_number=1),
    }
