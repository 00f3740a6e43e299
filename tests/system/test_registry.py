"""The records of a run in MLflow: the registered model with its lineage, figures, and input datasets."""

import json

import pytest

from tasks.core.ledger import newest


@pytest.fixture
def client(stack):
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=stack.home.mlflow_url, registry_uri=stack.home.mlflow_url)


def test_the_model_is_registered_with_its_lineage_and_can_be_loaded(stack, smoke, client) -> None:
    import mlflow

    (version, *_) = client.search_model_versions("name='smoke'", order_by=["version_number ASC"])
    for role, kind in (("checkpoint", "checkpoint"), ("mixture", "mixture"), ("tokenizer", "tokenizer")):
        made_from = stack.artifact(f"smoke/{kind}").record
        assert version.tags[f"sluice.{role}"] == f"smoke/{kind}@dev {made_from.fingerprint[:16]}"
    mlflow.set_tracking_uri(stack.home.mlflow_url)
    model = mlflow.pyfunc.load_model(f"models:/smoke/{version.version}")
    (said,) = model.predict(["def "])
    assert isinstance(said, str)
    assert said


def test_the_first_model_became_champion_and_the_aliases_are_those_of_the_newest_decision(stack, smoke, client) -> None:
    first = stack.artifact("smoke/champion")
    assert "it is the first" in first.record.note
    # Other tests of this stack train further models, in any order.
    for kind, alias in (("champion", "champion"), ("comparison", "challenger")):
        decided = newest(first.store, f"smoke/{kind}")
        model = json.loads(decided.read(f"{kind}.json"))[alias]["artifact"]
        assert client.get_model_version_by_alias("smoke", alias).tags["sluice.artifact"] == model


def test_every_stage_run_is_nested_under_its_dag_run_and_names_its_inputs(stack, smoke, client) -> None:
    experiment = client.get_experiment_by_name("smoke")
    runs = client.search_runs([experiment.experiment_id], max_results=500)
    parents = {run.info.run_id: run for run in runs if "mlflow.parentRunId" not in run.data.tags}
    children = [run for run in runs if "mlflow.parentRunId" in run.data.tags]
    dags = {parents[run.data.tags["mlflow.parentRunId"]].info.run_name.partition(" @")[0] for run in children}
    assert dags >= {f"smoke.{dag}" for dag in ("crawl", "corpus", "tokens", "canary", "pretrain")}
    pretrain = f"{smoke.dag_runs[-1].dag_id}/{smoke.dag_runs[-1].run_id}"
    (train,) = [
        run
        for run in children
        if run.info.run_name == "train @dev"
        and parents[run.data.tags["mlflow.parentRunId"]].data.tags["sluice.dag_run"] == pretrain
    ]
    assert {held.dataset.name for held in train.inputs.dataset_inputs} >= {"smoke/shards@dev", "smoke/mixture@dev"}
    assert len(client.get_metric_history(train.info.run_id, "loss/train")) >= 10
    pictures = {entry.path for entry in client.list_artifacts(train.info.run_id) if entry.path.endswith(".png")}
    assert pictures
