"""Both UIs in a real browser: log in, trigger DAGs with their forms, wait for success, read a run in MLflow."""

import re
from collections.abc import Iterator

import pytest

from tasks.core.ledger import versions_of
from tasks.core.store import Store
from tests.system.browser import logged_in, needs_chromium, trigger

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = needs_chromium


@pytest.fixture(scope="module")
def page(stack) -> Iterator["playwright.Page"]:
    """A page logged in to Airflow."""
    with logged_in(stack) as page:
        yield page


def test_a_number_in_the_form_reaches_the_stages(stack, smoke, page) -> None:
    trigger(stack, page, "smoke.crawl", {"version": "from-the-form", "crawl.max_pages": "12"})
    (run,) = [
        run
        for run in stack.airflow.pages("/dags/smoke.crawl/dagRuns", "dag_runs")
        if run["conf"].get("version") == "from-the-form"
    ]
    made = stack.done("smoke.crawl", run["dag_run_id"], "generate")
    stack.stop("smoke.crawl", run["dag_run_id"])  # the pages themselves are fetched in other tests
    lists = [stack.artifact(f"smoke/fetchlist/p{task['map_index']}", "from-the-form") for task in made]
    assert [one.record.config["max_pages"] for one in lists] == [12, 12]


def test_a_takedown_form_takes_one_entry_per_line_and_its_run_turns_green(stack, page) -> None:
    # A recipe of this test only: the takedown would make artifacts of other recipes be refused.
    stack.pause("web.takedown", False)
    lines = "https://a.example/<b>x</b>\nhttps://b.example/\n"
    trigger(stack, page, "web.takedown", {"takedown.urls": lines, "takedown.reason": "asked for"})
    (run,) = stack.airflow.pages("/dags/web.takedown/dagRuns", "dag_runs")
    page.goto(f"{stack.home.airflow_url}/dags/web.takedown/runs/{run['dag_run_id']}")
    page.get_by_text("Success", exact=True).first.wait_for()
    assert stack.finished("web.takedown", run["dag_run_id"])["state"] == "success"
    (made,) = versions_of(Store(str(stack.home.root / "store")), "web/takedown")
    urls = [row["value"] for row in made.table("tombstones.parquet").to_pylist()]
    assert urls == ["https://a.example/%3Cb%3Ex%3C/b%3E", "https://b.example/"]


def test_a_task_leads_to_its_mlflow_run(stack, smoke, page) -> None:
    crawl = smoke.dag_runs[0]
    page.goto(f"{stack.home.airflow_url}/dags/{crawl.dag_id}/runs/{crawl.run_id}/tasks/publish/details")
    link = page.get_by_role("link", name="MLflow run")
    link.first.wait_for()
    address = str(link.first.get_attribute("href"))
    assert address.startswith(stack.home.mlflow_url)
    page.goto(address)
    page.get_by_text("publish @dev", exact=True).first.wait_for()  # the run's name on its page in MLflow
    page.get_by_text(re.compile("completes a crawl cycle with one artifact")).first.wait_for()  # and what it is
    assert page.url.startswith(address.partition("?")[0])
    assert not page.get_by_text("Evaluations", exact=True).count()


def test_the_audit_page_and_the_funnel_can_be_read_in_mlflow(stack, smoke, page) -> None:
    (made,) = [result for result in smoke.dag_runs[1].results if result["address"] == "smoke/documents@dev"]
    page.goto(made["mlflow_run_url"].replace("?", "/artifacts/audit.html?"))
    audit = page.frame_locator("iframe")
    kept, gone = made["rows"].pop("out"), made["rows"].keys() - {"in"}
    audit.get_by_text(re.compile(rf"^{kept:,} of [\d,]+ captures and files are kept")).wait_for()
    for shown in ("By reason", "By language", re.compile("largest hosts$")):
        audit.get_by_role("heading", name=shown).wait_for()
    assert audit.locator("html").evaluate("page => page.scrollWidth <= page.clientWidth")
    for verdict in ("kept", *gone):
        audit.get_by_text(re.compile(rf"^{verdict}: \d+ of \d+$")).click()
        audit.locator("details[open] article").first.wait_for()
        audit.get_by_text(re.compile(rf"^{verdict}: \d+ of \d+$")).click()  # shut again
    page.get_by_text("funnel.png", exact=True).first.click()
    page.wait_for_function("[...document.images].some(picture => picture.naturalHeight > 400)")


def test_an_artifact_has_a_page_behind_airflows_login(stack, smoke, page) -> None:
    page.goto(f"{stack.home.airflow_url}/sluice/artifact/smoke/documents@dev")
    page.get_by_text("smoke/documents@dev").first.wait_for()
    page.goto(f"{stack.home.airflow_url}/plugin/sluice")
    frame = page.frame_locator("iframe")
    frame.get_by_role("row", name=re.compile("^smoke")).get_by_role("link", name="dev", exact=True).first.click()
    with page.context.expect_page() as opened:
        frame.get_by_role("link", name="run", exact=True).first.click()
    assert opened.value.url.startswith(stack.home.mlflow_url)


def test_dags_runs_and_tasks_have_a_tab_with_their_page(stack, smoke, page) -> None:
    corpus = smoke.dag_runs[1]
    run = f"{stack.home.airflow_url}/dags/{corpus.dag_id}/runs/{corpus.run_id}"
    for address, heading in (
        (f"{stack.home.airflow_url}/dags/{corpus.dag_id}", "smoke"),
        (run, "smoke dev"),
        (f"{run}/tasks/consolidate", "smoke/documents@dev"),
    ):
        page.goto(address)
        # The first link is in the navigation; the tab appears later.
        page.get_by_role("link", name="Sluice", exact=True).nth(1).click()
        page.frame_locator("iframe").get_by_role("heading", name=heading, exact=True, level=1).wait_for()


def test_mlflow_shows_one_experiment_per_recipe(stack, smoke, page) -> None:
    page.goto(f"{stack.home.mlflow_url}/#/experiments")
    page.get_by_text("smoke", exact=True).first.wait_for()
