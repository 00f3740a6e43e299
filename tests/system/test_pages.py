"""The Sluice pages in a real browser: questions of a newcomer answered by clicks alone, a walk of all pages, pictures.

No question's answer needs an address to be typed: each begins at Airflow's start page. `make pictures` writes the
pictures into the documentation.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any
from urllib.parse import quote

import pytest

from tasks.core.artifact import Artifact
from tasks.run.monthly.report import month_report
from tasks.run.recipe import Recipe, find_recipe
from tasks.run.runner import open_store, run_stage
from tasks.run.tracking import TrackingContext
from tests.system.browser import logged_in, needs_chromium
from tests.system.pages import LOOKS, MOST_BYTES, PICTURED, ROOT, WALK, Stop, Tab, tab_of

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = [needs_chromium, pytest.mark.real_time]

NOTES = ("assignment", "dynamic-features", "import", "naming")
"""Topics of pydoc, which are the corpus of `notes`."""

ASKED_BY, TAKEDOWN = "Ann Example", "first"


@pytest.fixture(scope="module")
def page(stack) -> Iterator["playwright.Page"]:
    """A page logged in to Airflow."""
    with logged_in(stack) as page:
        yield page


@dataclass(frozen=True)
class Notes:
    """The recipe `notes` with its first version, the report on it, and a takedown of one of its documents.

    Attributes:
        url: another document.
        next_version: makes the next version.
    """

    url: str
    next_version: Callable[[], None]


@pytest.fixture(scope="module")
def notes(stack) -> Notes:
    """The corpus of a few files, and nothing else, made in this process."""
    recipe = find_recipe("notes").override({"place.store": str(stack.home.root / "store")})
    folder = Path(os.environ["SLUICE_RECIPES"]) / "notes"
    folder.mkdir(exist_ok=True)
    for topic in NOTES:
        (folder / f"{topic}.txt").write_text(topics[topic])
    corpus(recipe, "v1")
    month_report(open_store(recipe), recipe, "v1")
    first, second, *_ = (row["url"] for row in rows_of(stack.artifact("notes/documents", "v1"), "kept/"))
    asked = recipe.override({"takedown.urls": second, "takedown.reason": "asked for"})
    run_stage(asked, "takedown", version=TAKEDOWN, tracking=TrackingContext("", recipe.name))
    stack.pause("notes.takedown", False)
    return Notes(first, lambda: corpus(recipe, "v2"))


def corpus(recipe: Recipe, version: str) -> None:
    """Makes the documents of a version."""
    for stage in recipe.stages("corpus"):
        run_stage(recipe, stage, version=version, source_version="v1", tracking=TrackingContext("", recipe.name))


def rows_of(documents: Artifact, folder: str) -> list[dict[str, Any]]:
    return [row for path in documents.files(folder) for row in documents.table(path).to_pylist()]


@pytest.fixture
def frame(stack, page) -> Any:
    """The Sluice pages as Airflow frames them, opened by a click in its navigation."""
    page.goto(f"{stack.home.airflow_url}/")
    page.get_by_role("link", name="Sluice", exact=True).first.click()
    frame = page.locator("iframe").element_handle().content_frame()
    frame.get_by_role("heading", name="Recipes", exact=True).wait_for()
    return frame


def click(frame: Any, *labels: str) -> None:
    """Clicks one link after another, and waits for each page."""
    for label in labels:
        with frame.expect_navigation():
            frame.get_by_role("link", name=label, exact=True).first.click()


def press(frame: Any, button: str) -> None:
    """Presses a button of a form, and waits for its answer."""
    with frame.expect_navigation():
        frame.get_by_role("button", name=button).first.click()


def row(frame: Any, table: str, text: str) -> Any:
    """Returns the first row with a text of a table."""
    return frame.get_by_role("region", name=table, exact=True).get_by_role("row").filter(has_text=text).first


def card(frame: Any, label: str) -> str:
    """Returns the value of a figure on a card."""
    found = frame.locator(".cards div").filter(has=frame.get_by_text(label, exact=True))
    return str(found.locator(".value").inner_text())


def number(text: str) -> int:
    return int(text.replace(",", ""))


def rejected(stack: Any) -> dict[str, Any]:
    """Returns a page of the crawl that the limit of duplicate lines rejected."""
    rows = rows_of(stack.artifact("smoke/documents"), "rejected/")
    return next(row for row in rows if row["source"] == "web" and row["reason"].endswith("duplicate_lines"))


def test_why_a_url_is_not_in_the_corpus(stack, smoke, frame) -> None:
    lost = rejected(stack)
    click(frame, "smoke", "dev", "Trace")
    frame.locator("input[name=what]").fill(lost["url"])
    press(frame, "Trace")
    found = row(frame, "documents", lost["url"])
    assert "rejected" in found.inner_text()
    assert lost["reason"] in found.inner_text()
    click(frame, "Documents")
    frame.locator("select[name=fate]").select_option("rejected")
    frame.locator("input[name=text]").fill(lost["url"])
    press(frame, "Show")
    found = frame.locator("article").filter(has_text=lost["url"]).filter(has_text=lost["reason"])
    with frame.expect_navigation():
        found.get_by_role("link", name="document", exact=True).first.click()
    limit = row(frame, "limits", "gopher_repetition.max_duplicate_lines").inner_text()
    assert re.search(r"0\.\d+\s+at most 0\.3\s+drops it", limit)


def test_why_a_url_was_never_fetched(smoke, frame) -> None:
    click(frame, "smoke", "dev", "Why")
    frame.locator("input[name=url]").fill("http://elsewhere.example/page.html")
    press(frame, "Ask")
    frame.locator("main strong").first.wait_for()
    assert frame.get_by_role("region", name="obstacles").get_by_role("row").count() > 1


def test_what_another_limit_would_do(stack, smoke, frame) -> None:
    click(frame, "smoke", "dev", "Filters")
    limit = frame.locator("input[name='limits.gopher_repetition.max_duplicate_ngram.10']")
    limit.fill("0.2")
    assert frame.locator("fieldset", has=limit).get_by_text(re.compile(r"about \d+ beyond 0\.2$")).count() == 1
    limit.press("Tab")
    frame.locator("#effect").wait_for()
    before, after = (
        number(card(frame, name)) for name in ("documents kept by this version", "kept with the changed limits")
    )
    gained, lost = (number(card(frame, name)) for name in ("kept instead of dropped", "dropped instead of kept"))
    assert before == stack.artifact("smoke/documents").record.metrics["kept"]
    assert after == before + gained - lost
    assert frame.locator("#examples tr").count() == min(gained, 5) + min(lost, 5)


def test_which_pages_taught_a_step(stack, smoke, frame) -> None:
    click(frame, "smoke", "dev", "Training")
    frame.locator("input[name=step]").fill("0")
    press(frame, "Show step")
    frame.get_by_role("heading", name="Step 0: what it read").wait_for()
    first = frame.get_by_role("region", name="read").get_by_role("row").nth(1)
    url = first.get_by_role("link").first.inner_text()
    with frame.expect_navigation():
        first.get_by_role("link").first.click()
    found = row(frame, "documents", url)
    assert "kept" in found.inner_text()
    assert re.search(r"\t0\b", found.inner_text())  # the first of its steps


def test_whether_the_new_model_is_better_how_sure_and_what_it_cost(stack, smoke, begun, frame) -> None:
    click(frame, "smoke", "begun", "Canaries")
    champion = frame.get_by_role("heading", name="Champion", exact=True)
    champion.wait_for()
    decision = json.loads(stack.artifact("smoke/comparison", "begun").read("comparison.json"))
    assert frame.get_by_text(f"{decision['reason']}.").count()  # with the interval and how sure it is
    ends = {f"{round(end, 4)}" for end in decision["score"]["interval"] if end is not None}
    assert ends <= set(row(frame, "champion1", "score mean over").inner_text().split())
    click(frame, "Compare")
    frame.locator("select[name=other]").select_option("dev")
    press(frame, "Compare")
    assert re.search(r"\d", row(frame, "figures", "minutes of its stages").inner_text())


def test_who_asked_for_which_takedown_and_whether_it_is_honored(stack, notes, frame) -> None:
    click(frame, "notes", "Takedowns")
    frame.locator("textarea[name=urls]").fill(notes.url)
    frame.locator("input[name=reason]").fill("my letter of May")
    frame.locator("input[name=requested_by]").fill(ASKED_BY)
    press(frame, "Request this takedown")
    frame.get_by_text("Airflow has queued the run").wait_for()
    (run,) = stack.airflow.pages("/dags/notes.takedown/dagRuns", "dag_runs")
    stack.finished("notes.takedown", run["dag_run_id"])
    click(frame, "Back to notes", "Takedowns")
    told = row(frame, "takedowns", ASKED_BY).inner_text()
    assert notes.url in told
    assert "my letter of May" in told
    assert "pending in notes/documents@v1 (1)" in told
    notes.next_version()
    click(frame, "Takedowns")
    row(frame, "takedowns", ASKED_BY).get_by_text("honored").wait_for()


@pytest.fixture
def tab(stack, smoke, begun, notes, page) -> Iterator[Tab]:
    """A tab for the walk, with what its addresses need from the store."""
    documents = stack.artifact("smoke/documents")
    (part, *_) = (path.removeprefix("rejected/").removesuffix(".parquet") for path in documents.files("rejected/"))
    lost = documents.table(f"rejected/{part}.parquet").to_pylist()[0]
    kept = rows_of(documents, "kept/")[0]
    run = smoke.dag_runs[1]
    values = {"kept": kept["id"], "url": kept["url"], "rejected": lost["id"], "part": part, "takedown": TAKEDOWN,
              "dag": run.dag_id, "run": quote(run.run_id)}  # fmt: skip
    with tab_of(page, f"{stack.home.airflow_url}{ROOT}", values) as tab:
        yield tab


def test_every_page_is_accessible_in_both_themes_and_widths_and_loads_nothing_from_elsewhere(tab) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    for stop in WALK:
        tab.open(stop)
        for theme, width in LOOKS:
            tab.look(theme, width)
            assert not tab.overflows(), (stop, width)
            violations = axe.run(tab.tab).response["violations"]
            assert [(one["id"], one["nodes"][0]["html"]) for one in violations] == [], (stop, theme)
        tab.look(*LOOKS[0])
    assert tab.said == []
    assert tab.outside == []


def test_a_trace_is_reached_by_the_keyboard_alone(stack, smoke, tab) -> None:
    tab.open(Stop("/"))
    for target in ("smoke", "dev", "Trace"):
        tab.tab_to("a", target)
        with tab.tab.expect_navigation():
            tab.tab.keyboard.press("Enter")
    tab.tab_to("input", "Trace")
    tab.tab.keyboard.type(tab.values["url"])
    tab.tab.keyboard.press("Enter")
    tab.tab.get_by_role("heading", name="Documents").wait_for()
    assert "kept" in row(tab.tab, "documents", tab.values["kept"]).inner_text()


def test_the_pictures_of_the_documentation_can_be_made(tab, tmp_path) -> None:
    folder = Path(os.environ.get("SLUICE_PICTURES", tmp_path))
    for name, (stop, height) in PICTURED.items():
        tab.open(stop)
        picture = tab.picture(height)
        assert len(picture) < MOST_BYTES, name
        (folder / f"{name}.png").write_bytes(picture)
