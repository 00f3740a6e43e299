"""A page in the frame in which Airflow shows it, with a real browser: links to other sites, theme, width."""

import re
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.system.browser import CHROMIUM, FLAGS, needs_chromium

STATIC = Path(__file__).parents[2] / "plugins" / "sluice_ui" / "static"
LIGHT, DARK = "rgb(255, 255, 255)", "rgb(17, 17, 17)"
MLFLOW = '<a href="http://mlflow.localhost/run" target="_blank" rel="noopener noreferrer">the MLflow run</a>'


def sandbox_of_plugin_pages() -> str:
    """The sandbox of the frame of a plugin's page, from the installed Airflow."""
    package = find_spec("airflow").submodule_search_locations[0]
    for file in Path(package, "ui", "dist", "assets").glob("*.js"):
        if found := re.search(r"externalView:\w+,sandbox:`([a-z -]+)`", file.read_text()):
            return found[1]
    pytest.fail("Airflow's UI has no frame for the pages of plugins")


@pytest.fixture
def address(tmp_path: Path, get, corpus) -> Iterator[str]:  # type: ignore[no-untyped-def]
    """A site with the frame of Airflow, whose theme is dark, around the page of a version and a link."""
    site = tmp_path / "site"
    shutil.copytree(STATIC, site / "sluice" / "static")
    page = get("/sluice/recipe/shown?version=v1").text
    (site / "page.html").write_text(page.replace("</main>", f"{MLFLOW}</main>"))
    frame = f'<iframe src="page.html" sandbox="{sandbox_of_plugin_pages()}" width="420" height="800"></iframe>'
    (site / "index.html").write_text(f'<!doctype html><html class="dark"><body>{frame}')
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/index.html"
        server.shutdown()


@pytest.fixture
def opened(address: str) -> Iterator[Any]:
    """A tab with the frame of Airflow."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_context().new_page()
        page.goto(address)
        yield page
        browser.close()


@needs_chromium
def test_a_link_to_mlflow_opens_from_the_sandboxed_frame(opened: Any, address: str) -> None:
    opened.context.route("http://mlflow.localhost/**", lambda route: route.fulfill(body="the run"))
    with opened.context.expect_page(timeout=20_000) as other:
        opened.frame_locator("iframe").get_by_text("the MLflow run").click()
    other.value.wait_for_load_state()
    assert other.value.url == "http://mlflow.localhost/run"
    assert opened.url == address


@needs_chromium
def test_a_page_has_the_theme_of_airflow_and_fits_into_a_narrow_frame(opened: Any) -> None:
    inside = opened.frames[1]
    color = "getComputedStyle(document.body).backgroundColor"
    assert inside.evaluate(color) == DARK
    opened.evaluate("document.documentElement.className = 'light'")
    inside.wait_for_function(f"{color} === '{LIGHT}'")
    wide = inside.evaluate("Math.max(...Array.from(document.querySelectorAll('table'), one => one.scrollWidth))")
    assert wide > 420, "the page has a table that is wider than the frame"
    assert inside.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
