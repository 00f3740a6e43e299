"""The page of a recipe's crawl, on two real cycles over a small site that changes."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sluice_ui.crawl import crawl
from sluice_ui.frame import Address

from tasks.core.artifact import ArtifactId
from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.run.recipe import Recipe
from tasks.run.runner import run_stage
from tasks.run.tracking import TrackingContext
from tasks.stages.crawl.status import LIVE_FILE
from tests.plugins.conftest import HOSTILE
from tests.tasks.stages.crawl.site import Site

RECIPE = """
name = "crawls"
[crawl]
seeds = ["{url}"]
allow_loopback = true
recrawl = true
partitions = 1
delay_s = 0.01
hosts_file = "{hosts}"
[place]
store = "{store}"
"""
STAGES = ("inject", "rank", "generate", "fetch", "render", "update", "publish")


class Crawl:
    """Two cycles of a site of which one page changes, one stays, and one is new in the second cycle."""

    def __init__(self, folder: Path) -> None:
        pages: dict[str, object] = {
            "/": '<p>index</p><a href="/same">s</a><a href="/lost">l</a><a href="/secret/x">x</a>',
            "/same": "<p>This page stays as it is.</p>",
        }
        hosts, file = folder / "hosts.toml", folder / "crawls.toml"
        hosts.write_text("")
        with Site(pages, "User-agent: *\nDisallow: /secret/\n") as site:
            store = folder / "store"
            file.write_text(RECIPE.format(url=site.url(), hosts=hosts, store=store))
            self.recipe, self.host = Recipe.load(file), f"127.0.0.1:{site.port}"
            self.cycle("c1")
            pages["/"] = '<p>index</p><a href="/same">s</a><a href="/new">n</a>'
            pages["/new"] = "<p>A page that the first cycle did not find.</p>"
            hosts.write_text(f'[again]\n"{self.host}" = {datetime.now(UTC).isoformat()}\n')
            self.recipe = Recipe.load(file)
            self.cycle("c2")
        self.store = Store(str(store))

    def cycle(self, version: str) -> None:
        for stage in STAGES:
            member = "" if stage in ("inject", "rank", "publish") else "p0"
            run_stage(self.recipe, stage, version=version, member=member, tracking=TrackingContext("", "crawls"))

    def page(self, version: str = "", **query: str) -> str:
        return crawl(self.recipe, version, Address("/crawl", {"recipe": "crawls", **query}))


@pytest.fixture(scope="module")
def crawled(tmp_path_factory: pytest.TempPathFactory) -> Crawl:
    return Crawl(tmp_path_factory.mktemp("crawled"))


def cells(text: str, version: str) -> dict[str, str]:
    """Returns the row of a cycle by title."""
    table = text.partition('aria-label="cycles"')[2].partition("</table>")[0]
    titles = [re.sub("<.*?>", "", title) for title in re.findall(r"<th.*?</th>", table)]
    row = next(row for row in table.split("<tr>") if f">{version}</a>" in row)
    return dict(zip(titles, [re.sub("<.*?>", "", cell) for cell in re.findall(r"<td.*?</td>", row)], strict=True))


def test_a_cycle_counts_new_changed_and_unchanged_pages(crawled: Crawl) -> None:
    text = crawled.page()
    first, second = cells(text, "c1"), cells(text, "c2")
    assert (first["new"], first["changed"], first["unchanged"]) == ("2", "0", "0")
    assert (second["new"], second["changed"], second["unchanged"]) == ("1", "1", "1")
    assert (first["errors"], first["refused by robots.txt"]) == ("1", "1")


def test_the_reasons_why_urls_have_no_page_are_counted(crawled: Crawl) -> None:
    text = crawled.page("c1")
    assert '<td>http_404</td><td class="number">1</td>' in text
    assert '<td>robots_denied</td><td class="number">1</td>' in text


def test_hosts_are_listed_and_filtered_by_a_part_of_their_name(crawled: Crawl) -> None:
    assert f"<td>{crawled.host}</td>" in crawled.page()
    assert f"<td>{crawled.host}</td>" in crawled.page(host="127.0")
    assert f"<td>{crawled.host}</td>" not in crawled.page(host="elsewhere")


def test_what_is_due_is_counted(crawled: Crawl) -> None:
    assert "<dt>Due now</dt>" in crawled.page()
    assert "<dt>Next due</dt>" in crawled.page()


def test_a_running_fetch_shows_its_queue_and_its_hosts(crawled: Crawl) -> None:
    run_stage(crawled.recipe, "inject", version="c3", tracking=TrackingContext("", "crawls"))
    host = {"host": f"slow.localhost{HOSTILE}", "state": "backed off", "waiting": 12, "requests": 3, "cap": 50,
            "delay_s": 1.0, "latency_s": None, "failures": 2, "next_in_s": 8.0}  # fmt: skip
    state = {"requests": 1234, "budget": 5000, "pages": 900, "tried": 950, "recent_urls_per_s": 4.5, "waiting": 77,
             "hosts_waiting": 5, "visits": 1, "without_a_page": {"http_404": 50}, "at": datetime.now(UTC).isoformat(),
             "hosts": [host]}  # fmt: skip
    path = f"{ArtifactId('crawls/segment/p0', 'c3').path}/{LIVE_FILE}"
    crawled.store.publish(path, json.dumps(state).encode())
    try:
        text = crawled.page()
    finally:
        for left in crawled.store.list("crawls/seeds/c3"):
            crawled.store.remove(left)
    assert "Cycle c3: running" in text
    assert "URLs on 5 hosts" in text
    assert "backed off" in text
    assert "<img" not in text


def test_a_recipe_without_a_crawl_and_a_cycle_that_does_not_exist_are_said_in_words(crawled: Crawl) -> None:
    with pytest.raises(InputError, match="crawls has no cycle c9"):
        crawled.page("c9")
    without = crawled.recipe.override({"crawl.enabled": False, "makes": ["documents"],
                                       "extract.files": [{"name": "a", "kind": "text", "path": "/n/*"}]})  # fmt: skip
    with pytest.raises(InputError, match="crawls does not crawl"):
        crawl(without, "", Address("/crawl", {"recipe": "crawls"}))
