"""The Sluice page in the real API server: it requires Airflow's login and escapes crawled content."""

import json
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tasks.core.artifact import ArtifactId
from tasks.core.commit import adopt, commit
from tasks.core.config import Config
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.run.recipe import Recipe
from tasks.run.runner import run_stage
from tasks.run.tracking import TrackingContext
from tasks.stages.spans import SpansConfig
from tests.conftest import run_stage_in
from tests.corpora import kept_document, tokens_in
from tests.plugins.conftest import HOSTILE

OWN_SCRIPT = re.compile(r'<script src="/sluice/static/[a-z]+\.js"( defer)?></script>')
PAGES = (
    "/sluice/",
    "/sluice/recipe/shown?version=v1",
    "/sluice/artifact/shown/documents@v1",
    "/sluice/corpus?recipe=shown&version=v1",
    "/sluice/corpus?recipe=shown&version=v1&fate=rejected",
    "/sluice/recipe/shown",
    "/sluice/explain?recipe=shown&version=v1",
    "/sluice/canaries?recipe=shown&version=v1",
    "/sluice/crawl?recipe=shown",
    "/sluice/training?recipe=shown&version=v1",
    "/sluice/trace?recipe=shown&version=v1&what=http://site.localhost/0",
    "/sluice/why?recipe=shown&version=v1&url=http://site.localhost/0",
)


@pytest.fixture
def crawled(recipes):
    """A recipe `shown` whose cycle c1 has a fetch list of one URL."""
    recipe = Recipe.load(recipes("shown"))
    for stage, member in (("inject", ""), ("rank", ""), ("generate", "p0"), ("generate", "p1")):
        run_stage(recipe, stage, version="c1", member=member, tracking=TrackingContext("", "shown"))


@pytest.mark.parametrize("path", [*PAGES, "/sluice/static/links.js", "/sluice/static/plotly.js"])
def test_pages_require_the_airflow_login(path, client, corpus):
    client.cookies.clear()
    assert client.get(path).status_code == 401
    assert client.get(path, headers={"Authorization": "Bearer forged"}).status_code in (401, 403)
    assert client.get(path, headers={"Cookie": "_token=forged"}).status_code in (401, 403)


@pytest.mark.parametrize("path", ["/sluice/openapi.json", "/sluice/docs", "/sluice/redoc", "/sluice/nothing"])
def test_all_routes_require_authentication(path, client):
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("path", PAGES[:7])
def test_crawled_text_is_escaped(path, get, corpus):
    answer = get(path)
    assert answer.status_code == 200, answer.text
    assert "<script" not in OWN_SCRIPT.sub("", answer.text)
    assert "<img" not in answer.text
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


def test_the_page_of_a_version_shows_funnel_and_artifacts(get, corpus):
    text = get(PAGES[1]).text
    assert "shown/documents@v1" in text
    assert "75.0%" in text
    assert '<a href="/sluice/corpus?recipe=shown&amp;version=v1&amp;language=ja">Japanese (ja)</a>' in text
    assert "&lt;script&gt;" in text


def test_all_recipes_and_all_versions_of_one_are_listed_with_their_figures(get, corpus):
    assert '<a href="/sluice/recipe/shown?version=v1">v1</a>' in get("/sluice/").text
    adopt(corpus, ArtifactId("shown/documents", "v2"), corpus.record.inputs)
    text = get("/sluice/recipe/shown").text
    assert "2 versions, those begun last first" in text
    assert text.index(">v2</a></td>") < text.index(">v1</a></td>")
    assert get("/sluice/recipe/shown?page=99").status_code == 200


def test_pages_about_versions_do_not_list_the_store(get, versions, monkeypatch):
    get("/sluice/recipe/test")  # enters the versions in the index, once
    listed = []
    monkeypatch.setattr(Store, "list", lambda _, folder, **__: listed.append(folder) or [])
    v2 = "recipe=test&version=v2"
    for path in ("", "recipe/test", "recipe/test?version=v2", "artifact/test/documents@v2", "costs?recipe=test",
                 f"lineage?{v2}", f"compare?{v2}&with=v1"):  # fmt: skip
        assert get(f"/sluice/{path}").status_code == 200
        assert listed == [], path


def test_the_tab_of_a_dag_or_a_run_without_artifacts_leads_to_its_recipe(get, corpus):
    for query in ("", "&run=manual__1", "&run=manual__1&task=consolidate&map_index={MAP_INDEX}"):
        answer = get(f"/sluice/airflow?dag=shown.corpus{query}")
        assert str(answer.url).endswith("/sluice/recipe/shown"), answer.text
    assert get("/sluice/airflow?dag=foreign_dag").status_code == 404


def test_documents_are_filtered_by_column_and_text(get, corpus):
    path = "/sluice/corpus?recipe=shown&version=v1"
    assert "documents 1 to 1 of those that match" in get(f"{path}&host=site.localhost&text=ALERT").text
    assert "no kept document matches" in get(f"{path}&host=elsewhere").text
    assert "no kept document matches" in get(f"{path}&text=nowhere").text
    assert "documents 1 to 1 of those that match" in get(f"{path}&fate=rejected&source=web").text
    assert "no rejected document matches" in get(f"{path}&fate=rejected&language=en").text  # a column it lacks
    assert get(f"{path}&after=x").status_code == 200


def test_the_documents_of_an_explanation_lead_to_their_traces(post, get, indexed):
    answer = post(text="page 2\r\n" + HOSTILE).text
    assert "<mark>" in answer
    found = re.search(r'href="(/sluice/trace\?recipe=test&amp;version=dev&amp;what=[0-9a-f]{32})"', answer)
    assert found
    assert "<h2>Documents</h2>" in get(found[1].replace("&amp;", "&")).text


def test_the_page_of_an_artifact_lists_its_missing_inputs(get, corpus):
    text = get(PAGES[2]).text
    assert corpus.record.fingerprint in text
    assert "shown/extracted@v1 is gone" in text


def test_the_pages_of_an_adopted_artifact_and_its_source_link_to_each_other(get, corpus):
    adopt(corpus, ArtifactId("shown/documents", "v2"), corpus.record.inputs)
    adopted = get("/sluice/artifact/shown/documents@v2").text
    row = adopted.partition("<td>adopted from</td>")[2].partition("</tr>")[0]
    assert ">shown/documents@v1</a>" in row, adopted
    assert "<td>times of shown/documents@v1</td>" in adopted
    assert "<td>made</td>" not in adopted
    assert "<td>made</td>" in get(PAGES[2]).text
    assert ">shown/documents@v2</a>" in get(PAGES[2]).text
    assert "75.0%" in get("/sluice/recipe/shown?version=v2").text
    assert "&lt;script&gt;" in get("/sluice/corpus?recipe=shown&version=v2").text
    row = get("/sluice/recipe/shown?version=v2").text.partition(">shown/documents@v2</a></td>")[2].partition("</tr>")[0]
    assert re.search(r'>adopted</span> from <a href="/sluice/artifact/shown/documents%40v1">v1</a>', row), row
    assert " there</span>" in row, "the time is that of the other one"
    assert "adopted as a whole" in get("/sluice/").text


def test_a_figure_that_the_newest_version_lacks_is_that_of_an_earlier_one_with_its_name(get, corpus, tmp_path):
    output = Output(Store(str(tmp_path / "store")), ArtifactId("shown/shards", "v2"), "0" * 64)
    with output.part("made", conserved=False) as part, part.file("made.txt") as file:
        file.write(b"made")
    commit(output, "encode", 1, Config(), [], Report(metrics={"tokens": 1200.0}))
    output = Output(Store(str(tmp_path / "store")), ArtifactId("shown/documents", "v1.2"), "0" * 64)
    with output.part("made", conserved=False) as part, part.file("made.txt") as file:
        file.write(b"made")
    commit(output, "consolidate", 1, Config(), [], Report(metrics={"kept": 3.0, "kept_share": 0.75}))
    row = get("/sluice/").text.partition('<a href="/sluice/recipe/shown">shown</a></td>')[2].partition("</tr>")[0]
    assert '<td class="number">3</td>' in row
    assert '<td class="number">75.0%</td>' in row
    assert '<td class="number">1,200 <span class="quiet">v2</span></td>' in row


@pytest.mark.parametrize(
    ("asked", "page", "field"),
    [
        ("step:3", "trace", "what"),
        ("domain:example.org", "trace", "what"),
        ("http://site.localhost/0", "trace", "what"),
        ("0" * 32, "trace", "what"),
        ("os.path is a module", "explain", "text"),
        (f"see http://site.localhost/ {HOSTILE}", "explain", "text"),
    ],
)
def test_one_field_leads_to_the_trace_or_the_explanation_of_what_is_asked(browse, corpus, asked, page, field):
    query = urlencode({"recipe": "shown", "version": "v1", "q": asked})
    answer = browse("viewer", "GET", f"/sluice/ask?{query}", follow_redirects=False)
    expected = urlencode({"recipe": "shown", "version": "v1", field: asked})
    assert answer.headers["location"] == f"/sluice/{page}?{expected}"


def test_a_text_in_the_address_is_explained_and_escaped(get, indexed):
    query = urlencode({"recipe": "test", "version": "dev", "text": f"page 2\n{HOSTILE}"})
    answer = get(f"/sluice/explain?{query}").text
    assert "<mark>" in answer
    assert "<img" not in answer


def test_the_page_of_a_version_explains_why_a_url_is_not_crawled(get, crawled):
    assert '<a href="/sluice/why?recipe=shown&amp;version=c1">Why</a>' in get("/sluice/recipe/shown?version=c1").text
    text = get("/sluice/why?recipe=shown&version=c1").text
    assert '<form action="/sluice/why" method="get">' in text
    assert '<input type="text" name="url"' in text
    answer = get(f"/sluice/why?recipe=shown&version=c1&url=http://elsewhere.localhost/{HOSTILE}")
    assert answer.status_code == 200
    assert "no: scope: no seed is on elsewhere.localhost" in answer.text
    assert "<img" not in answer.text
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    listed = get("/sluice/why?recipe=shown&url=http://site.localhost:18799/").text
    assert "listed, place 1 of 1" in listed
    assert "read from: shown/seeds@c1" in listed
    assert "no cycle shown@v9" in get("/sluice/why?recipe=shown&version=v9&url=http://site.localhost:18799/").text
    assert get("/sluice/why?recipe=unknown&url=http://site.localhost/").status_code == 404


@pytest.fixture
def post(browse):
    fixed = {"recipe": "test", "version": "dev"}
    return lambda **fields: browse("viewer", "POST", "/sluice/explain", data={**fixed, **fields})


@pytest.fixture
def indexed(recipes, tmp_path):
    """A recipe `test` with the tokens of hostile pages and their index."""
    recipes("test")
    store = tmp_path / "store"
    pages = [kept_document(f"http://site.localhost/{at}?{HOSTILE}", f"page {at}\n{HOSTILE * 3}") for at in range(4)]
    shards = tokens_in(store, pages).shards
    run_stage_in(store, "tasks.stages.spans.stage", SpansConfig(enabled=True), {"shards": shards}, kind="spans")


def test_a_text_is_explained_on_the_page_and_escaped(post, get, indexed):
    assert '<form action="/sluice/explain" method="post">' in get("/sluice/explain?recipe=test&version=dev").text
    answer = post(text=f"</textarea></pre>{HOSTILE * 2}\r\n")
    assert answer.status_code == 200, answer.text
    assert "http://site.localhost/" in answer.text
    assert "&lt;script&gt;alert" in answer.text.partition("<pre>")[2]
    assert "<script" not in OWN_SCRIPT.sub("", answer.text)
    assert "<img" not in answer.text
    assert answer.text.count("</textarea>") == 1
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert "page 2\n&lt;script&gt;" in post(text="page 2\r\n" + HOSTILE).text
    assert "no span of 8 tokens or more occurs verbatim" in post(text="Η γάτα κάθεται στο παράθυρο").text


def test_an_error_of_explain_is_shown_as_a_message(post, client, indexed):
    long = post(text="a" * 20_001)
    assert "the text has 20,001 characters. Give at most 20,000." in long.text
    assert "a" * 20_001 not in long.text
    assert "nothing of test@v9" in post(text="a", version="v9").text
    assert post(text="a", recipe="unknown").status_code == 404
    assert post(text="a", version="../../etc").status_code == 422
    client.cookies.clear()
    assert client.post("/sluice/explain", data={"recipe": "test", "version": "dev", "text": "a"}).status_code == 401


@pytest.mark.parametrize(
    "path",
    [
        "/sluice/recipe/unknown?version=v1",
        "/sluice/recipe/shown?version=v9",
        "/sluice/artifact/unknown/documents@v1",
        "/sluice/artifact/shown/documents@v9",
        "/sluice/artifact/shown/../../secrets@v1",
        "/sluice/artifact/shown%2F..%2F..%2Fsecrets@v1",
        "/sluice/corpus?recipe=shown&version=v9",
    ],
)
def test_a_missing_page_is_404_with_navigation(path, get, corpus):
    answer = get(path)
    assert answer.status_code == 404
    assert '<a href="/sluice/">Recipes</a>' in answer.text
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


def test_an_unknown_version_is_reported_with_the_known_ones(get, corpus):
    assert "shown has no artifacts of version v9. Versions: v1." in get("/sluice/recipe/shown?version=v9").text


def test_a_recipe_without_a_crawl_has_no_questions_about_one(get, recipes, corpus):
    assert ">Why</a>" in get("/sluice/recipe/shown?version=v1").text
    source = '[[extract.files]]\nname = "notes"\nkind = "text"\npath = "/notes/*.txt"'
    recipes("shown", text=f'name = "shown"\n{source}\n[place]\nstore = "${{SLUICE_STORE}}"\n')
    assert ">Why</a>" not in get("/sluice/recipe/shown?version=v1").text


def test_a_store_that_cannot_be_used_is_reported(get, recipes, tmp_path):
    recipes("shown")
    (tmp_path / "store").write_text("")
    answer = get("/sluice/recipe/shown?version=v1")
    assert answer.status_code == 503
    assert "store is a file. Set [place] store to another folder." in answer.text


def test_a_recipe_whose_store_cannot_be_used_does_not_hide_the_others(get, recipes, corpus, tmp_path):
    (tmp_path / "file").write_text("")
    recipes("broken", f'\n[place]\nstore = "{tmp_path}/file"\n')
    text = get("/sluice/").text
    assert "store not readable" in text
    assert re.search(rf"broken: .*{tmp_path}/file is a file", text)
    assert '<td><a href="/sluice/recipe/shown?version=v1">v1</a> <span' in text


def test_an_invalid_version_is_refused(get, corpus):
    answer = get("/sluice/recipe/shown?version=../../etc")
    assert answer.status_code == 422
    assert "The address has a missing or invalid version." in answer.text


def test_airflow_registers_the_page_once_by_the_entry_point_of_the_package(client):
    from airflow import plugins_manager

    loaded, errors = plugins_manager._get_plugins()
    assert not errors
    [ours] = [plugin for plugin in loaded if plugin.name == "sluice"]
    assert str(ours.source).startswith("sluice=="), "run `make install`: the installed package has no entry point"
    assert [view["destination"] for view in ours.external_views] == ["nav", "dag", "dag_run", "task_instance"]
    assert ours.external_views[0]["href"] == "/sluice/"
    assert "app" not in sys.modules
    assert "pages" not in sys.modules


def test_a_package_that_hides_the_users_own_is_reported_with_its_path(client, tmp_path, monkeypatch, caplog):
    import sluice_plugin

    monkeypatch.setattr(sluice_plugin.settings, "DAGS_FOLDER", str(tmp_path))
    sluice_plugin.SluicePlugin.on_load()
    assert not caplog.records
    (tmp_path / "operators").mkdir()
    sluice_plugin.SluicePlugin.on_load()
    [record] = caplog.records
    assert f"{tmp_path}/operators is hidden by the package operators of Sluice: rename" in record.getMessage()


def test_a_task_does_not_import_the_page():
    code = (
        "import sluice_plugin, sys; print([m for m in sys.modules if m.startswith(('sluice_ui', 'pyarrow', 'tasks'))])"
    )
    folder = Path(__file__).parents[2] / "plugins"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=folder)
    assert ran.stdout.strip().splitlines()[-1] == "[]"


def test_the_pages_import_no_parsers_and_little_of_scipy_and_leave_what_they_read_to_malloc(airflow_db):
    code = (
        "import sluice_ui.app, pyarrow, sys; from tasks.trainer.evaluation.paired import of_items; "
        "of_items([1.0, 2.0]).interval(0.95); "
        "unused = {'duckdb', 'lxml', 'mlflow', 'resiliparse', 'scipy.stats', 'selectolax', 'torch'}; "
        "print(sorted(unused & set(sys.modules)), "
        "pyarrow.default_memory_pool().backend_name)"
    )
    folder = Path(__file__).parents[2] / "plugins"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=folder)
    assert ran.stdout.strip().splitlines()[-1] == "[] system"


def test_the_champion_of_a_recipe_is_the_version_that_stays_champion(get, corpus, tmp_path):
    output = Output(Store(str(tmp_path / "store")), ArtifactId("shown/champion", "v1"), "0" * 64)
    with output.part("champion.json", conserved=False) as part, part.file("champion.json") as file:
        file.write(json.dumps({"champion": {"artifact": "shown/model@v0"}, "promoted": False}).encode())
    commit(output, "promote", 1, Config(), [], Report())
    assert '<a href="/sluice/recipe/shown?version=v0">v0</a>' in get("/sluice/").text
