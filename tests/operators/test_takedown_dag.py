"""The takedown's DAG in real DAG runs: the form's lines become an artifact named by the date of the run."""

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.ledger import versions_of
from tasks.core.store import Store
from tasks.formats.tokens.index import DocumentIndex
from tests.airflow_home import states


def test_a_form_becomes_a_takedown_named_by_its_date_and_starts_nothing(recipes, dag_bag, documents, tmp_path):
    recipes("law")
    documents("law")
    bag = dag_bag().dags
    form = {"takedown.urls": "http://site.localhost/3\nhttps://site.localhost/5\n", "takedown.reason": "asked"}
    run = bag["law.takedown"].test(run_conf=form)
    assert states(run) == {"takedown": "success"}
    (made,) = versions_of(Store(str(tmp_path / "store")), "law/takedown")
    moment = run.logical_date or run.run_after
    assert made.address.version == moment.strftime("%Y.%m.%d-%H%M%S")
    assert made.record.config["date"] == moment.isoformat(timespec="seconds")
    assert made.record.metrics["documents"] == 2
    assert not any(task.outlets for task in bag["law.takedown"].tasks)
    assert str(bag["law.tokens"].test(run_conf={"version": "v2", "source_version": "dev"}).state) == "success"
    plan = Artifact.open_at(Store(str(tmp_path / "store")), ArtifactId("law/plan", "v2"))
    index = DocumentIndex(Artifact.open_at(plan.store, ArtifactId("law/shards", "v2")))
    named = [index.by_uid(bytes.fromhex(f"{number:032x}")) for number in (3, 5)]
    assert plan.record.rejected.get("takedown", 0) == sum("-train-" in entry.shard for entry in named)
    assert "takedowns" in {ref.role for ref in plan.record.inputs}


def test_an_invalid_line_fails_at_once_with_its_number(recipes, dag_bag, caplog, capsys):
    recipes("lawless")
    run = dag_bag().dags["lawless.takedown"].test(run_conf={"takedown.domains": "example.org\nco.uk"})
    assert states(run) == {"takedown": "failed"}
    assert 'takedown.domains, line 2: "co.uk" is a public suffix' in caplog.text + capsys.readouterr().out
