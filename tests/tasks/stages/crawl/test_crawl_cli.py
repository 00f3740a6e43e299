"""From the shell, after real cycles: queries of the crawl DB, many URLs for `why`, and old generations."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from aiohttp import web

from tasks.core.ledger import Ledger
from tasks.run import shell
from tasks.run.place import Retention
from tasks.run.recipe import Recipe
from tasks.run.retention import collect, survey
from tasks.run.runner import open_store, run_stage
from tasks.run.tracking import TrackingContext
from tests.tasks.stages.crawl.site import Site

RECIPE = """
name = "asked"
[crawl]
seeds = ["{one}", "{other}"]
allow_loopback = true
delay_s = 0.0
latency_factor = 0.0
partitions = 2
recrawl = true
[canary]
seeds = [0, 1]
[place]
store = "{folder}/store"
"""


def cycle(recipe, version, last="publish"):
    for stage in ("inject", "rank", "generate", "fetch", "render", "update", "publish"):
        mapped = stage in ("generate", "fetch", "render", "update")
        for member in ("p0", "p1") if mapped else ("",):
            run_stage(recipe, stage, version=version, member=member, tracking=TrackingContext("", recipe.name))
        if stage == last:
            return


@pytest.fixture(scope="module")
def crawled(tmp_path_factory):
    """The recipe's file after one cycle over two hosts, of two partitions, with the hosts' port."""
    folder = tmp_path_factory.mktemp("asked")
    pages = {"/": "".join(f"<a href=/{n}>x</a>" for n in range(6)), **{f"/{n}": f"page {n}" for n in range(5)}}
    pages["/4"] = lambda _: web.Response(status=500)
    with Site(pages) as site:
        file = folder / "asked.toml"
        hosts = ("a.localhost", "b.localhost")
        one, other = (site.url(host=host) for host in hosts)
        file.write_text(RECIPE.format(one=one, other=other, folder=folder))
        cycle(Recipe.load(file), "c1")
        yield file, site.port


@pytest.fixture
def ask(crawled, capsys):
    def run(command, *arguments):
        assert shell.main([command, "--recipe", str(crawled[0]), *arguments]) == 0
        out = capsys.readouterr().out
        return json.loads(out) if "--json" in arguments else out

    return run


def test_a_process_that_used_duckdb_says_nothing_at_its_end(crawled):
    # DuckDB's bindings list on stderr every object that the interpreter has not freed when it exits.
    command = [sys.executable, "-m", "tasks", "why", "--recipe", str(crawled[0]), f"http://a.localhost:{crawled[1]}/"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert (found.returncode, found.stderr) == (0, "")
    assert "db_fetched" in found.stdout


def test_the_crawl_db_is_counted_by_status_over_all_partitions(ask):
    result = ask("crawldb", "--json")
    assert result["artifacts"] == ["asked/crawldb/p0@c1", "asked/crawldb/p1@c1"]
    assert result["urls"] == 14
    counts = {row["status"]: (row["urls"], row["failing"]) for row in result["rows"]}
    assert counts == {"db_fetched": (10, 0), "db_gone": (2, 0), "db_unfetched": (2, 2)}
    text = ask("crawldb")
    assert text.startswith("14 URLs in asked/crawldb/p0@c1, ")
    assert [line.split()[:2] for line in text.splitlines()[2:4]] == [["status", "urls"], ["db_fetched", "10"]]


def test_urls_are_listed_by_status_reason_host_and_pattern(ask, crawled):
    port = crawled[1]
    rows = ask("crawldb", "--status", "db_gone", "--host", "a.localhost", "--json")["rows"]
    assert [(row["url"], row["reason"]) for row in rows] == [(f"http://a.localhost:{port}/5", "http_404")]
    assert ask("crawldb", "--reason", "http_404", "--reason", "http_500", "--json")["urls"] == 4
    assert ask("crawldb", "--host", "*.localhost", "--limit", "3", "--json")["urls"] == 14
    assert len(ask("crawldb", "--host", "*.localhost", "--limit", "3", "--json")["rows"]) == 3
    assert ask("crawldb", "--url", f"http://b.*:{port}/?", "--json")["urls"] == 6
    assert ask("crawldb", "--host", "c.localhost", "--json") == {**ask("crawldb", "--due", "--json"), "urls": 0}
    assert shell.main(["crawldb", "--recipe", str(crawled[0]), "--host", "https://a"]) == 2
    assert shell.main(["crawldb", "--recipe", str(crawled[0]), "--version", "c9"]) == 2


@pytest.mark.parametrize(
    ("top", "column", "first"),
    [
        ("hosts", "host", "a.localhost:PORT"),
        ("domains", "domain", "a.localhost"),
        ("reasons", "reason", ""),
        ("kinds", "kind", "page"),
        ("depths", "depth", 1),
    ],
)
def test_urls_are_counted_by_the_requested_filter(ask, crawled, top, column, first):
    rows = ask("crawldb", "--top", top, "--json")["rows"]
    assert str(rows[0][column]) == str(first).replace("PORT", str(crawled[1]))
    assert sum(row["urls"] for row in rows) == 14
    if top == "hosts":
        assert [(row["requests"], row["errors"], row["gone"]) for row in rows] == [(7, 2, 1), (7, 2, 1)]


def test_why_prints_one_line_per_url_for_many_urls(ask, crawled, tmp_path, monkeypatch):
    start = f"http://a.localhost:{crawled[1]}"
    (tmp_path / "urls").write_text(f"{start}/5\n\n  {start}/never\n")
    lines = ask("why", f"{start}/1", f"@{tmp_path}/urls", "mailto:a@b.example").splitlines()
    urls, verdicts = zip(*(line.split("\t") for line in lines), strict=True)
    assert urls == (f"{start}/1", f"{start}/5", f"{start}/never", "mailto:a@b.example")
    begins = ("not now: not due", "not now: http_404", "unknown: ", "never: ")
    assert all(said.startswith(begin) for said, begin in zip(verdicts, begins, strict=True))
    result = ask("why", "--json", f"{start}/1", f"{start}/5")
    assert [one["known"]["status"] for one in result] == ["db_fetched", "db_gone"]
    assert shell.main(["why", "--recipe", str(crawled[0]), f"@{tmp_path}/none"]) == 2


def test_status_from_the_shell(ask):
    assert ask("status").startswith("asked@c1\n  inject done ")
    result = ask("status", "--json", "--version", "c1")
    assert [one["member"] for one in result["partitions"]] == ["p0", "p1"]
    assert result["stages"]["publish"]


@pytest.fixture
def aged(crawled, tmp_path):
    """A copy of the recipe's store; returns the recipe with it, and the store."""
    file, _ = crawled
    shutil.copytree(file.parent / "store", tmp_path / "store")
    (tmp_path / "asked.toml").write_text(file.read_text().replace(str(file.parent), str(tmp_path)))
    recipe = Recipe.load(tmp_path / "asked.toml")
    return recipe, open_store(recipe)


def test_old_crawl_dbs_are_removed_except_those_a_later_cycle_reads(aged, crawled, capsys):
    recipe, store = aged
    cycle(recipe, "slow", last="generate")
    for version in ("c2", "c3"):
        cycle(recipe, version)
    policy = Retention(versions=1, grace_days=0)
    needed = {one.artifact: one.needed for one in survey(store, "asked", policy).holdings}
    databases = {version: needed[f"asked/crawldb/p0@{version}"] for version in ("c1", "c2", "c3")}
    assert databases == {"c1": "slow began from it", "c2": "c3 began from it", "c3": "one of the newest 1 versions"}
    cycle(recipe, "c4")
    removed = collect(store, "asked", policy).removed
    assert {one.partition("@")[2] for one in removed if "crawldb" in one} == {"c2"}
    assert not [one for one in removed if "segment" in one]  # captures are kept
    left = [path for path in store.list("asked/crawldb") if "/c2/" in path]
    beside = {path.partition("/c2/")[2].partition("/")[0] for path in left}
    assert beside == {".artifact.json", ".manifests", ".removal", ".removed.json"}
    # Lineage is complete, no stage of that cycle runs again, and cycles that started from others continue.
    assert not Ledger(store).drift("asked/warc@c2")
    assert run_stage(recipe, "fetch", version="c2", member="p0", tracking=TrackingContext("", "asked")).skipped
    run_stage(recipe, "fetch", version="slow", member="p0", tracking=TrackingContext("", "asked"))
    cycle(recipe, "c5")
    file = str(store.root.removesuffix("store")) + "asked.toml"
    capsys.readouterr()
    assert shell.main(["crawldb", "--recipe", file, "--version", "c2"]) == 2
    assert "files of asked/crawldb/p0@c2 were removed on" in capsys.readouterr().err
    assert shell.main(["why", "--recipe", file, "--version", "c2", f"http://a.localhost:{crawled[1]}/1"]) == 2
