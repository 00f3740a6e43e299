"""The crawl tests' small site, a private network to be kept out of, and Chromium where there is one."""

import importlib.util
import sys
from pathlib import Path

import pytest

from tasks.errors import InputError

_CRAWL = Path(__file__).parents[1] / "crawl"


def _load(name: str, path: Path) -> None:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])


# importlib mode puts no test folder on sys.path; the site is shared with the crawl's own tests.
_load("crawl_site", _CRAWL / "site.py")
_load("render_inside", Path(__file__).with_name("inside.py"))


@pytest.fixture
def chromium() -> str:
    """The browser's program; skips where there is none."""
    pytest.importorskip("playwright.async_api", reason="rendering is not tested: no package playwright")
    from tasks.render.browser import find_chromium

    try:
        return find_chromium()
    except InputError as error:
        pytest.skip(f"rendering is not tested: {error}")


@pytest.fixture
def inside():
    from render_inside import Inside

    server = Inside()
    yield server
    server.close()
