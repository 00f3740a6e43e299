"""The browser tests walk every page, and the pictures of the documentation show pages that exist."""

import re

import pytest

from tasks.demo.home import CHECKOUT
from tests.system.pages import MOST_BYTES, PICTURED, WALK

PICTURES = CHECKOUT / "docs" / "pictures"
SHOWN = re.compile(r"!\[([^\]]*)\]\((?:docs/)?pictures/([\w-]+)\.png\)")


@pytest.fixture
def routes(client):
    """A pattern for the addresses of each page; they can be imported once the server has loaded the plugin."""
    from sluice_ui.app import PAGES

    paths = {route.path for module in PAGES for route in module.routes.routes if "GET" in route.methods}
    return {path: re.compile(re.sub(r"\{[^}]*\}", ".+", path)) for path in paths}


def page_of(routes, stop):
    """Returns the route of a stop; None for an address that is no page."""
    path = stop.path.partition("?")[0]
    return next((route for route, pattern in routes.items() if pattern.fullmatch(path)), None)


def test_the_browser_tests_walk_every_page(routes):
    pages = {route for route in routes if not route.endswith(".zip")}
    assert {page_of(routes, stop) for stop in WALK} == pages


@pytest.mark.parametrize("name", PICTURED)
def test_a_pictured_page_is_one_of_the_pages_and_its_picture_is_small(routes, name):
    assert page_of(routes, PICTURED[name][0])
    assert 0 < (PICTURES / f"{name}.png").stat().st_size < MOST_BYTES


def test_the_documentation_shows_exactly_the_pictures_that_are_made_with_their_words():
    shown = [
        (path.name, *found)
        for path in (CHECKOUT / "README.md", *(CHECKOUT / "docs").glob("*.md"))
        for found in SHOWN.findall(path.read_text())
    ]
    assert {name for _, _, name in shown} == set(PICTURED) == {path.stem for path in PICTURES.iterdir()}
    assert len(PICTURED) <= 6
    assert all(len(words) > 20 for _, words, _ in shown)
