"""A browser for the stack's Airflow: a logged-in page, and a DAG triggered by its form. Not a test module."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
SLOW_MS = 90_000

needs_chromium = pytest.mark.skipif(
    not Path(CHROMIUM).exists(), reason="no chromium on this machine (apt-get install chromium)"
)


@contextmanager
def logged_in(stack: Any) -> Iterator[Any]:
    """Yields a Chromium page (playwright's `Page`) logged in to the stack's Airflow."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as run:
        browser = run.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(SLOW_MS)
        page.goto(f"{stack.home.airflow_url}/")
        page.fill("input[name=username]", "admin")
        page.fill("input[name=password]", stack.home.password())
        page.click("button[type=submit]")
        page.wait_for_url(lambda url: "login" not in url)
        yield page
        browser.close()


def trigger(stack: Any, page: Any, dag_id: str, fields: Mapping[str, str]) -> None:
    """Opens the form of a DAG, fills its fields by their names, and presses Trigger."""
    page.goto(f"{stack.home.airflow_url}/dags/{dag_id}")
    page.get_by_role("button", name="Trigger").first.click()
    form = page.get_by_role("dialog")
    for name, value in fields.items():
        form.locator(f"[name='element_{name}']").fill(value)
    form.get_by_role("button", name="Trigger", exact=True).click()
    form.wait_for(state="hidden")
