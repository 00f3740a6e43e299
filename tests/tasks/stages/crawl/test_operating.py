"""Operating a running crawl: its status from outside, and effects of the hosts file on active hosts."""

import asyncio
import json
import threading
from collections import Counter
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web

from tasks.core.errors import InputError
from tasks.run import shell
from tasks.run.recipe import Recipe
from tasks.run.runner import open_store, run_stage
from tasks.run.tracking import TrackingContext
from tasks.stages.crawl import policy as policies
from tasks.stages.crawl.status import LIVE_FILE, SILENT_S, render, status
from tasks.stages.crawl.visit import Visitor
from tests.tasks.stages.crawl.site import Site
from tests.waiting import until

pytestmark = pytest.mark.real_time

RECIPE = """
name = "run"
[crawl]
seeds = {seeds}
allow_loopback = true
delay_s = 0.0
latency_factor = 0.0
partitions = 1
recrawl = true
max_backoff_s = 3600.0
time_box_s = 7200.0
hosts_file = "{folder}/hosts.toml"
{more}
[canary]
seeds = [0, 1]
[place]
store = "{store}"
"""
FILES = ("/robots.txt", "/.well-known/tdmrep.json")


class CrawlRun:
    """Runs stages of a recipe, with the fetch in a thread."""

    def __init__(self, folder, seeds, store="", more=""):
        self.hosts_file = folder / "hosts.toml"
        self.hosts_file.write_text("")
        self.path = folder / "run.toml"
        store = store or f"{folder}/store"
        self.path.write_text(RECIPE.format(seeds=json.dumps(seeds), folder=folder, store=store, more=more))
        self.recipe = Recipe.load(self.path)
        self.store = open_store(self.recipe)
        self.failed = None

    def stages(self, version, *names):
        for name in names:
            member = "p0" if name in ("generate", "fetch", "render", "update") else ""
            run_stage(self.recipe, name, version=version, member=member, tracking=TrackingContext("", "run"))

    def cycle(self, version):
        self.stages(version, "inject", "rank", "generate", "fetch", "render", "update", "publish")

    @contextmanager
    def fetch(self):
        self.stages("c1", "inject", "rank", "generate")

        def work():
            try:
                self.stages("c1", "fetch")
            except BaseException as error:
                self.failed = error

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            self.edit("drop_before = 2999-01-01T00:00:00Z")
            thread.join(120)
            assert not thread.is_alive()
        assert self.failed is None

    def edit(self, settings, host="*.localhost", more=""):
        """Writes a hosts file with settings for one host; by default for all hosts of the tests."""
        self.hosts_file.write_text(f'{more}\n[hosts."{host}"]\n{settings}\n')

    def is_finished(self, site, name="a.localhost"):
        """Returns whether a host has no more URLs, or the fetch is done."""
        return self.host(site, name).get("state") == "through" or status(self.store, "run")["partitions"][0]["done"]

    def now(self):
        return status(self.store, "run")["partitions"][0]["live"]

    def wait_updates(self, times):
        """Waits until the running fetch has written its state, and thus read the hosts file, a number of times."""
        for _ in range(times):
            last = self.now()["at"]
            until(lambda last=last: self.now()["at"] > last)

    def host(self, site, name="a.localhost"):
        """Returns the state of a host of the running fetch, or {}."""
        rows = (self.now() or {"hosts": []})["hosts"]
        return next((row for row in rows if row["host"] == f"{name}:{site.port}"), {})


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch):
    monkeypatch.setattr(policies, "EVERY_S", 0.1)
    monkeypatch.setattr("tasks.stages.crawl.status.EVERY_S", 0.1)


def pages_of(site):
    return [path for path in site.paths() if path not in FILES]


def site_in_order(count, gate=None, at=3):
    """Returns the pages of a site that are tried in order; page number `at` responds when `gate` is set."""
    links = "".join(f"<a href=/{number:03}>x</a>" for number in range(count))

    async def delayed(_):
        await asyncio.to_thread(gate.wait, 100)
        return web.Response(text="held", content_type="text/html")

    pages = {"/": links, **{f"/{number:03}": f"page {number}" for number in range(count)}}
    return {**pages, f"/{at:03}": delayed} if gate else pages


@pytest.mark.parametrize("kind", ["folder", "s3"])
def test_status_names_hosts_queues_and_back_offs_of_a_fetch_under_way(kind, tmp_path, request):
    store = f"s3://{request.getfixturevalue('s3').buckets[0]}/status" if kind == "s3" else ""
    gate = threading.Event()
    busy = lambda _: web.Response(status=503, headers={"Retry-After": "1800"})  # noqa: E731
    with Site(site_in_order(20, gate)) as good, Site({"/": busy, "/gone": "x"}) as bad:
        run = CrawlRun(tmp_path, [good.url(host="a.localhost"), bad.url(host="b.localhost")], store)
        with pytest.raises(InputError, match="no cycle of run"):
            status(run.store, "run")
        with run.fetch():
            until(lambda: run.host(good).get("requests") == 4 and run.host(bad, "b.localhost").get("failures"))
            found = run.now()
            text = render(status(run.store, "run"), 10)
            later = datetime.now(UTC) + timedelta(seconds=2 * SILENT_S)
            silent = render(status(run.store, "run", now=later), 10)
            one, other = run.host(good), run.host(bad, "b.localhost")
            gate.set()
            until(lambda: run.is_finished(good))
        ended = status(run.store, "run")
    assert (one["state"], one["waiting"], one["cap"]) == ("visited", 17, 500)
    assert (other["state"], other["waiting"]) == ("backed off", 1)
    assert 1700 < other["next_in_s"] <= 1800
    assert (found["pages"], found["requests"], found["budget"]) == (4, 4, 1000)
    assert (found["waiting"], found["hosts_waiting"], found["states"]) == (16, 1, {"backed off": 1, "visited": 1})
    assert found["recent_urls_per_s"] >= 0 < found["urls_per_s"]
    assert "4 of 1,000 requests, 4 pages" in text
    assert "fetch not done" in text
    assert f"b.localhost:{bad.port}  p0  backed off" in text
    assert "SILENT" in silent
    assert "SILENT" not in text
    assert ended["partitions"][0]["live"] is None
    assert ended["partitions"][0]["done"]["pages"] == 21
    assert ended["partitions"][0]["stages"]["fetch"]
    assert "21 pages of 2 hosts" in render(ended, 10)
    assert not [path for path in run.store.list("run/segment") if LIVE_FILE in path]


def test_the_status_of_a_killed_fetch_is_kept_and_updated_by_the_next_attempt(tmp_path):
    gate = threading.Event()
    with Site(site_in_order(20, gate)) as site:
        run = CrawlRun(tmp_path, [site.url(host="a.localhost")])
        run.stages("c1", "inject", "rank", "generate")
        path = f"run/segment/p0/c1/{LIVE_FILE}"
        left = {"at": "2026-01-01T00:00:00+00:00", "by": {"attempt": "dead", "host": "gone", "pid": 1}}
        with run.store.write(path) as file:
            file.write(json.dumps(left).encode())
        with run.fetch():
            until(lambda: run.now()["by"]["attempt"] != "dead")
            gate.set()
            until(lambda: run.is_finished(site))


def test_a_store_that_refuses_the_status_does_not_end_the_fetch(tmp_path, monkeypatch):
    monkeypatch.setattr("tasks.stages.crawl.status.LIVE_FILE", "x" * 300)
    with Site(site_in_order(20)) as site:
        run = CrawlRun(tmp_path, [site.url(host="a.localhost")])
        run.stages("c1", "inject", "rank", "generate", "fetch")
    assert status(run.store, "run")["partitions"][0]["done"]["pages"] == 21


def test_a_longer_delay_applies_from_the_next_request_and_a_shorter_one_at_once(tmp_path):
    gate = threading.Event()
    with Site(site_in_order(20, gate)) as site:
        run = CrawlRun(tmp_path, [site.url(host="a.localhost")])
        with run.fetch():
            until(lambda: run.host(site).get("requests") == 4)
            run.edit("delay_s = 3000.0")
            until(lambda: run.host(site).get("delay_s") == 3000.0)
            gate.set()
            found = until(lambda: (row := run.host(site)).get("state") == "resting" and row)
            assert 2900 < found["next_in_s"] <= 3000
            assert len(pages_of(site)) == 5
            run.edit("delay_s = 0.0")
            until(lambda: run.is_finished(site))
    assert len(pages_of(site)) == 21


def test_a_lower_cap_applies_at_once_and_a_higher_one_in_the_next_cycle(tmp_path):
    gate = threading.Event()
    with Site(site_in_order(20, gate)) as site:
        run = CrawlRun(tmp_path, [site.url(host="a.localhost")])
        with run.fetch():
            until(lambda: run.host(site).get("requests") == 4)
            run.edit("max_pages = 7")
            until(lambda: run.host(site).get("cap") == 7)
            run.edit("max_pages = 30")
            run.wait_updates(5)
            assert run.host(site)["cap"] == 7
            gate.set()
            until(lambda: run.is_finished(site))
        assert len(pages_of(site)) == 7
        run.edit("max_pages = 30")
        run.stages("c1", "render", "update", "publish")
        run.cycle("c2")
        assert len(pages_of(site)) == 21


def rows_of(run, version="c1"):
    from tasks.core.artifact import Artifact, ArtifactId

    segment = Artifact.open_at(run.store, ArtifactId("run/segment/p0", version))
    return [row for path in segment.files("log/") for row in segment.table(path).to_pylist()]


def test_a_paused_host_is_not_visited_until_the_pause_is_lifted(tmp_path):
    gate = threading.Event()
    with Site(site_in_order(20, gate)) as site, Site(site_in_order(5)) as other:
        run = CrawlRun(tmp_path, [site.url(host="a.localhost"), other.url(host="b.localhost")])
        with run.fetch():
            until(lambda: run.host(site).get("requests") == 4)
            run.edit("pause = true", host=f"a.localhost:{site.port}")
            until(lambda: run.host(site).get("state") == "paused")
            gate.set()
            until(lambda: run.host(site).get("requests") == 5)
            run.wait_updates(5)
            assert len(pages_of(site)) == 5
            assert run.is_finished(other, "b.localhost")
            run.edit("pause = false")
            until(lambda: run.is_finished(site))
    assert len(pages_of(site)) == 21


def test_waiting_urls_of_a_dropped_host_are_postponed_without_a_failure(tmp_path):
    gate = threading.Event()
    with Site(site_in_order(20, gate)) as site:
        run = CrawlRun(tmp_path, [site.url(host="a.localhost")])
        with run.fetch():
            until(lambda: run.host(site).get("requests") == 4)
            run.edit("drop_before = 2999-01-01T00:00:00Z")
            until(lambda: run.host(site).get("state") == "host_dropped")
            gate.set()
        assert len(pages_of(site)) == 5
        counts = {reason: sum(row["reason"] == reason for row in rows_of(run)) for reason in ("", "host_dropped")}
        assert counts == {"": 5, "host_dropped": 16}
        run.edit(f"drop_before = {datetime.now(UTC).isoformat()}")
        run.stages("c1", "render", "update", "publish")
        again = f'again = {{ "a.localhost:{site.port}" = {datetime.now(UTC).isoformat()} }}'
        run.edit(f"drop_before = {(datetime.now(UTC) - timedelta(hours=1)).isoformat()}", more=again)
        run.cycle("c2")
        assert len(set(pages_of(site))) == 21
        assert not [row for row in rows_of(run, "c2") if row["reason"]]


def test_refetch_requests_apply_to_the_next_cycle_only(tmp_path):
    with Site(site_in_order(12)) as site:
        run = CrawlRun(tmp_path, [site.url(host="a.localhost")])
        run.cycle("c1")
        now = datetime.now(UTC).isoformat()
        start = f"http://a.localhost:{site.port}"
        run.hosts_file.write_text(f'[again]\n"{start}/00*" = {now}\n"{start}/011" = {now}\n"{start}/new" = {now}\n')
        said = run.path, f"{start}/005", f"{start}/010"
        verdicts = why_of(*said)
        site.requests.clear()
        run.cycle("c2")
        assert sorted(pages_of(site)) == [f"/{number:03}" for number in (*range(10), 11)]
        site.requests.clear()
        run.cycle("c3")
        assert pages_of(site) == []
    assert verdicts[0].partition("\t")[2].startswith("due, because the hosts file requests it again as of ")
    assert verdicts[1].partition("\t")[2].startswith("not now: not due")


def why_of(recipe, *urls):
    import contextlib
    import io

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert shell.main(["why", "--recipe", str(recipe), *urls]) == 0
    return out.getvalue().splitlines()


def test_links_redirects_and_sitemaps_are_rewritten_by_the_rules_of_their_host(tmp_path):
    moved = lambda _: web.Response(status=302, headers={"Location": "/to?sid=7&q=1"})  # noqa: E731
    insists = lambda _: web.Response(status=302, headers={"Location": "/kept?sid=8"})  # noqa: E731
    pages = {
        "/": "".join(f"<a href={to}>x</a>" for to in ("/a?sid=1", "/a?sid=2", "/print/b", "/moved", "/kept")),
        "/a": "<link rel=canonical href=/a?sid=3>a",
        "/b": "b",
        "/moved": moved,
        "/to?q=1": "to",
        "/kept": insists,
        "/kept?sid=8": "kept",
        "/c": "c",
    }
    with Site(pages) as site:
        site.robots = f"Sitemap: {site.url('/sitemap.xml', 'a.localhost')}"
        listed = f"<url><loc>{site.url('/c?sid=5', 'a.localhost')}</loc></url>"
        site.pages["/sitemap.xml"] = lambda _: web.Response(
            text=f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{listed}</urlset>',
            content_type="application/xml",
        )
        run = CrawlRun(tmp_path, [site.url(host="a.localhost")])
        rules = 'drop_parameters = ["sid"]\nrewrite = [{ match = "^(http://[^/]+)/print/", to = \'\\1/\' }]'
        run.edit(rules, host="a.localhost")
        run.cycle("c1")
        asked = sorted(pages_of(site))
        (said,) = why_of(run.path, site.url("/a?sid=9", "a.localhost"), "mailto:a@b.example")[:1]
    assert asked == sorted(["/", "/a", "/b", "/moved", "/to?q=1", "/kept", "/kept?sid=8", "/c", "/sitemap.xml"])
    assert said.endswith(f"no: rewritten: the hosts file rewrites it to http://a.localhost:{site.port}/a")
    rows = {row["url"].partition(str(site.port))[2]: row for row in rows_of(run)}
    assert set(rows) == set(asked)
    assert rows["/a"]["canonical"].endswith("/a")


def test_an_interrupted_fetch_resumes_with_a_lowered_cap(tmp_path, monkeypatch):
    visits, visit = [], Visitor.visit

    async def breaking(self, host, candidate):
        visits.append(candidate.url)
        if len(visits) > 20:
            raise ZeroDivisionError
        return await visit(self, host, candidate)

    with Site(site_in_order(30)) as site:
        run = CrawlRun(tmp_path, [site.url(host="a.localhost")], more="warc_pages_per_file = 4")
        run.stages("c1", "inject", "rank", "generate")
        with monkeypatch.context() as patch:
            patch.setattr(Visitor, "visit", breaking)
            with pytest.raises(ZeroDivisionError):
                run.stages("c1", "fetch")
        done = sum(one.startswith("run/segment/p0/c1/.parts/") for one in run.store.list("run/segment"))
        assert 3 <= done <= 4
        run.edit("max_pages = 18")
        run.stages("c1", "fetch")
    captured = [row["url"] for row in rows_of(run) if row["requested"]]
    assert len(captured) == len(set(captured)) == 18
    counts = Counter(pages_of(site))
    assert {counts[path] for path in pages_of(site)[: 4 * done]} == {1}
