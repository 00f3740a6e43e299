"""Endless sites: each is abandoned after a few pages, and its real pages are kept."""

from datetime import UTC, datetime
from itertools import product

import pytest

from tests.tasks.stages.crawl.hostile.web import TDMREP, page

pytestmark = pytest.mark.real_time

PAGES = 30


def html(title, *links, text=""):
    anchors = " ".join(f'<a href="{link}">{link}</a>' for link in links)
    return page(f"<title>{title}</title><p>{title} {text} {anchors}".encode())


def growing(path):
    """Answers every path with a relative link below itself."""
    return html(path, "again/", "/fine.html")


def calendar(path):
    """Serves a page for every month, with a link to the next."""
    if path == "/":
        return html("events", f"/events/{datetime.now(UTC).year}/01/")
    _, _, year, month, _ = path.split("/")
    year, month = int(year) + int(month) // 12, int(month) % 12 + 1
    return html(path, f"/events/{year}/{month:02}/")


def filters(path):
    """Serves combinations of five filters with three values each, and five articles."""
    if path.startswith("/article"):
        return html(path)
    values = [[f"f{number}={value}" for value in "abc"] for number in range(5)]
    return html(
        path, *(f"/article/{number}" for number in range(5)), *("/shop?" + "&".join(one) for one in product(*values))
    )


def one_page(path):
    """Serves the same page at every URL, with absolute links to invalid URLs."""
    return html("Welcome", *(f"/{number}" for number in range(30)))


def says_not_found(path):
    """Returns status 200 for missing pages."""
    if path == "/":
        return html("home", "/real", *(f"/missing/{number}" for number in range(5)))
    return html("Real") if path == "/real" else html("Seite nicht gefunden", text=path)


def test_endless_sites_are_abandoned_after_a_few_pages(web, crawl):
    hosts = [web.host(answer) for answer in (growing, calendar, filters, one_page, says_not_found)]
    result = crawl(*hosts, max_pages_per_host=PAGES, max_queries_per_path=5, max_depth=PAGES)
    grows, months, shop, same, missing = hosts

    assert sorted(grows.paths()) == ["/", TDMREP, "/again/", "/again/again/", "/fine.html", "/robots.txt"]
    pages = [path for path in months.paths() if path.startswith("/events")]
    assert (len(pages), max(pages)) == (24, f"/events/{datetime.now(UTC).year + 1}/12/")
    assert {f"/article/{number}" for number in range(5)} <= set(shop.paths())
    assert 5 < len([path for path in shop.paths() if path.startswith("/shop")]) <= 5 + 15
    captured = [url for url in result.captures if url.startswith(same.url())]
    assert len(captured) == 1
    assert result.reason(missing, "/real") == ""
    assert {result.reason(missing, f"/missing/{number}") for number in range(5)} == {"soft_404"}
