"""Links to other sites work in the frame in which Airflow shows the Sluice page, with a real browser."""

import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.system.browser import CHROMIUM, FLAGS, needs_chromium

SCRIPT = Path(__file__).parents[2] / "plugins" / "sluice_ui" / "static" / "links.js"
MLFLOW = '<a href="http://mlflow.localhost/run" target="_blank" rel="noopener noreferrer">run</a>'


def sandbox_of_plugin_pages() -> str:
    """The sandbox of the frame of a plugin's page, from the installed Airflow."""
    package = find_spec("airflow").submodule_search_locations[0]
    for file in Path(package, "ui", "dist", "assets").glob("*.js"):
        if found := re.search(r"externalView:\w+,sandbox:`([a-z -]+)`", file.read_text()):
            return found[1]
    pytest.fail("Airflow's UI has no frame for the pages of plugins")


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A site with the frame of Airflow around a page with a link and the script."""
    (tmp_path / "links.js").write_text(SCRIPT.read_text())
    (tmp_path / "page.html").write_text(f'<!doctype html><script src="links.js" defer></script>{MLFLOW}')
    frame = f'<!doctype html><iframe src="page.html" sandbox="{sandbox_of_plugin_pages()}"></iframe>'
    (tmp_path / "index.html").write_text(frame)
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/index.html"
        server.shutdown()


@needs_chromium
def test_a_link_to_mlflow_opens_from_the_sandboxed_frame(address: str) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        context = browser.new_context()
        context.route("http://mlflow.localhost/**", lambda route: route.fulfill(body="the run"))
        page = context.new_page()
        page.goto(address)
        with context.expect_page(timeout=20_000) as opened:
            page.frame_locator("iframe").get_by_text("run").click()
        opened.value.wait_for_load_state()
        assert opened.value.url == "http://mlflow.localhost/run"
        assert page.url == address
        browser.close()
