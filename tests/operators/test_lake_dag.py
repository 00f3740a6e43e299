"""The DAG of a lake: it follows the documents and chunks of its recipe, and a takedown reaches the tables at once."""

import duckdb
import pytest

from tasks.run import lake
from tests.airflow_home import states

BOOKS = """
name = "books"
makes = ["documents"]
[crawl]
enabled = false
[[extract.files]]
name = "books"
kind = "text"
path = "{folder}/books/*.txt"
[annotate]
use = ["gopher_quality", "prose_score", "pii"]
[consolidate]
filters = ["gopher_quality"]
sources = ["books"]
[place.lake]
format = "delta"
root = "{folder}/lake"
"""
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


@pytest.mark.soak
@pytest.mark.oracle("deltalake")
def test_documents_are_in_the_table_after_their_corpus_and_gone_after_their_takedown(recipes, dag_bag, tmp_path):
    (tmp_path / "books").mkdir()
    for number in range(12):
        words = " ".join(f"word{number}x{place}" for place in range(60 + 10 * number))
        (tmp_path / "books" / f"{number}.txt").write_text(f"the and of {words}.\n")
    recipes("books", text=BOOKS.format(folder=tmp_path))
    bag = dag_bag().dags
    for dag in ("corpus", "lake"):
        assert str(bag[f"books.{dag}"].test(run_conf={"version": "1"}).state) == "success"
    query = f"select url from read_parquet('{tmp_path}/lake/books/documents/data/*/*.parquet')"
    before = {url for (url,) in duckdb.sql(query).fetchall()}
    assert len(before) > 3
    gone = sorted(before)[0]
    assert states(bag["books.takedown"].test(run_conf={"takedown.urls": gone})) == {
        "takedown": "success",
        "lake": "success",
    }
    assert {url for (url,) in duckdb.sql(query).fetchall()} == before - {gone}


def test_a_takedown_takes_out_of_the_lake_in_the_same_run(recipes, dag_bag, documents, calls):
    recipes("law", LAKE)
    documents("law")
    run = dag_bag().dags["law.takedown"].test(run_conf={"takedown.urls": "http://site.localhost/3"})
    assert states(run) == {"takedown": "success", "lake": "success"}
    assert calls == [("take_down_in_lake", "law", ())]
