"""The DAG of a lake: it follows the documents and chunks of its recipe, and a takedown reaches the tables at once."""

import pytest

from tasks.run import lake
from tests.airflow_home import states

LAKE = '\n[place.lake]\nformat = "delta"\nroot = "/lake"\n'


@pytest.fixture
def calls(monkeypatch):
    """What the operators ask of the lake: (function, recipe, versions)."""
    found = []

    def recorded(name):
        def call(recipe, store, *version):
            found.append((name, recipe.name, version))
            return [lake.TableReport("documents", "/lake", ["v1"], added=3)]

        return call

    for name in ("write_lake", "take_down_in_lake"):
        monkeypatch.setattr(lake, name, recorded(name))
    return found


def test_a_recipe_with_a_lake_writes_the_version_of_its_documents(recipes, dag_bag, calls):
    recipes("kept", LAKE)
    recipes("without")
    bag = dag_bag().dags
    assert "without.lake" not in bag
    dag = bag["kept.lake"]
    assert dag.schedule.uri == "x-sluice://kept/documents"
    assert states(dag.test(run_conf={"version": "v1"})) == {"lake": "success"}
    assert calls == [("write_lake", "kept", ("v1",))]


def test_the_lake_of_a_recipe_with_chunks_follows_them_too(recipes, dag_bag):
    recipes("chunky", f"{LAKE}\n[chunks]\nenabled = true\n")
    dags = dag_bag().dags
    waited = {asset.uri for asset in dags["chunky.lake"].schedule.objects}
    assert waited == {"x-sluice://chunky/documents", "x-sluice://chunky/chunks"}
    made = {outlet.uri for outlet in dags["chunky.tokens"].get_task("chunks").outlets}
    assert made == {"x-sluice://chunky/chunks"}


def test_a_takedown_takes_out_of_the_lake_in_the_same_run(recipes, dag_bag, documents, calls):
    recipes("law", LAKE)
    documents("law")
    run = dag_bag().dags["law.takedown"].test(run_conf={"takedown.urls": "http://site.localhost/3"})
    assert states(run) == {"takedown": "success", "lake": "success"}
    assert calls == [("take_down_in_lake", "law", ())]
