"""A recipe with its store on S3 and credentials from an Airflow connection, in a real DAG run."""

import io
import json
import logging
import os
from contextlib import redirect_stderr, redirect_stdout

import pytest

from operators.connections import use_store
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.errors import RecipeError
from tasks.core.store import Store
from tasks.run.recipe import find_recipe
from tests.s3_server import SECRET, S3Server

NAMES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL_S3")
ON_S3 = """
[place]
store = "s3://sluice/airflow"
store_conn_id = "lake"
"""


@pytest.fixture
def connection(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The S3 server, configured only in Airflow's connection "lake"."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    extra = {"endpoint_url": s3.url, "region_name": "us-east-1"}
    held = {"conn_type": "aws", "login": "sluice", "password": SECRET, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(held))
    return s3


def copied_to_s3(artifact: Artifact, s3: S3Server, prefix: str) -> None:
    for path in artifact.store.list(""):
        s3.client().put_object(Bucket="sluice", Key=f"{prefix}/{path}", Body=artifact.store.read(path))


def test_a_dag_uses_s3_through_its_connection_without_leaking_the_secret(
    recipes, dag_bag, documents, connection, tmp_path, caplog
):
    recipes("s3flow")
    local = documents("s3flow")
    here = dag_bag().dags["s3flow.tokens"].test()
    assert str(here.state) == "success"
    copied_to_s3(local, connection, "airflow")
    for kind in ("tokenizer", "shards", "plan"):
        connection.client().delete_object(Bucket="sluice", Key=f"airflow/s3flow/{kind}/dev/.artifact.json")
    recipes("s3flow", ON_S3)
    caplog.set_level(logging.DEBUG)
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        run = dag_bag().dags["s3flow.tokens"].test()
    assert str(run.state) == "success"
    plan = ArtifactId("s3flow/plan", "dev")
    there = Artifact.open_at(Store("s3://sluice/airflow"), plan)
    assert there.record.content == Artifact.open_at(Store(str(tmp_path / "store")), plan).record.content
    shown = [said.getvalue(), caplog.text]
    shown += [json.dumps(one.xcom_pull(task_ids=one.task_id)) for one in run.get_task_instances()]
    shown += [there.store.read(path).decode("latin-1") for path in there.store.list("")]
    assert any("s3flow/plan" in text for text in shown)
    assert not [text for text in shown if SECRET in text]


def test_a_missing_connection_is_reported_at_once(recipes, connection):
    recipes("lost", ON_S3.replace("lake", "sea"))
    with pytest.raises(RecipeError, match=r'connection "sea" of lost cannot be used.*Admin > Connections'):
        use_store(find_recipe("lost"))


def test_the_identity_of_the_connection_replaces_an_inherited_one(recipes, connection, monkeypatch):
    recipes("other", ON_S3)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-somebody-else")
    use_store(find_recipe("other"))
    assert os.environ["AWS_ACCESS_KEY_ID"] == "sluice"
    assert "AWS_SESSION_TOKEN" not in os.environ
    assert os.environ["AWS_ENDPOINT_URL_S3"] == connection.url
