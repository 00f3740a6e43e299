"""Why a URL is crawled or not: after real cycles over a real site, through the shell and the API."""

import itertools
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp import web

from tasks.core.errors import InputError
from tasks.formats.web.robots import Robots, ai_optout_rule, deciding_rule
from tasks.run import shell
from tasks.run.recipe import Recipe
from tasks.run.runner import open_store, run_stage
from tasks.run.tracking import TrackingContext
from tasks.stages.crawl.why import render, why
from tests.tasks.formats.web.test_robots import real_files
from tests.tasks.stages.crawl.site import Site, linked

RECIPE = """
name = "asked"
[crawl]
seeds = ["{seed}"]
seed_files = ["{folder}/seeds.txt"]
include_hosts = ["127.0.0.1:{port}", "denied.localhost", "far.localhost"]
exclude_pattern = '\\.zip$'
allow_loopback = true
delay_s = 0.0
latency_factor = 0.0
partitions = 1
recrawl = true
hosts_file = "{folder}/hosts.toml"
[canary]
seeds = [0, 1]
[place]
store = "{folder}/store"
"""
HOSTS = """
deny = ["denied.localhost"]
[hosts."127.0.0.1:{port}"]
max_pages = 40
accept_language = "de"
headers = {{ X-Key = "file:{folder}/key" }}
over_http = true
"""
ROBOTS = """# ours
User-agent: *
Disallow: /private
Allow: /private/open$

User-agent: GPTBot
Disallow: /noai
License: /l.xml
"""
RSL = '<rsl><content url="/paper/*.html$"><license><permits type="usage">search</permits></license></content></rsl>'


def pages():
    links = "<a href=/private/a>x</a><a href=/noai/b>x</a><a href=/gone>x</a><a href=/paid>x</a><a href=/sick>x</a>"
    by_path = {
        "/": links + "".join(f"<a href=/p/{n}>x</a>" for n in range(5)),
        "/p/1": '<link rel=license href="/cc">one',
    }
    by_path |= {f"/p/{n}": f"page {n}" for n in (0, 2, 3, 4)}
    by_path["/paid"] = lambda _: web.Response(status=402)
    by_path["/l.xml"] = RSL
    by_path["/sick"] = lambda _: web.Response(status=500)
    return by_path


def run(recipe, version, stages=("inject", "rank", "generate", "fetch", "render", "update", "publish")):
    for stage in stages:
        member = "p0" if stage in ("generate", "fetch", "render", "update") else ""
        run_stage(recipe, stage, version=version, member=member, tracking=TrackingContext("", recipe.name))


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """A recipe after a whole cycle; its settings have the `site` and `folder`."""
    folder = tmp_path_factory.mktemp("why")
    with Site(pages(), ROBOTS) as site:
        text = RECIPE.format(seed=site.url(), folder=folder, port=site.port)
        (folder / "asked.toml").write_text(text)
        (folder / "seeds.txt").write_text(
            "nonsense\n" + site.url("/seeded") + "\nhttp://10.0.0.1/\n" + site.url("/p/0")
        )
        (folder / "key").write_text("s3cret")
        (folder / "hosts.toml").write_text(HOSTS.format(port=site.port, folder=folder))
        recipe = Recipe.load(folder / "asked.toml")
        run(recipe, "c1")
        yield recipe, site


@pytest.fixture
def ask(asked):
    recipe, _ = asked
    return lambda url, now=None, version="": why(open_store(recipe), recipe.name, recipe.crawl, url, version, now)


def test_a_captured_page_has_its_next_due_time_and_capture_location(ask, asked):
    facts = ask(asked[1].url("/p/1"))
    assert facts["verdict"].startswith("not now: not due: it was fetched")
    assert facts["known"]["status"] == "db_fetched"
    assert facts["known"]["warc_path"].startswith("asked/segment/p0/c1/warc/")
    assert facts["tried"]["http_status"] == 200
    assert facts["found_on"] == [asked[1].url("/")]
    assert facts["pace"]["cap"] == 40
    assert facts["pace"]["reasons"]["captured"] == 6
    assert facts["policy"]["headers"] == ["Accept-Language", "X-Key"]
    assert facts["artifacts"] == {kind: f"asked/{name}@c1" for kind, name in KINDS.items()}
    text = render(facts)
    assert "page.license" in text
    assert "at byte" in text
    assert "s3cret" not in text + json.dumps(facts, default=str)
    later = ask(asked[1].url("/p/1"), now=datetime.now(UTC) + timedelta(days=8))
    assert later["verdict"].startswith("due since")


KINDS = {"seeds": "seeds", "fetchlist": "fetchlist/p0", "segment": "segment/p0", "crawldb": "crawldb/p0"}


@pytest.mark.parametrize(
    ("path", "verdict"),
    [
        ("/private/a", "no: robots_denied: robots.txt, line 3, for *: Disallow: /private"),
        ("/private/never/seen", "no: robots_denied: robots.txt, line 3, for *: Disallow: /private"),
        ("/noai/b", "no: ai_optout: robots.txt, line 7, for gptbot: Disallow: /noai"),
        ("/paper/x.html", "no: ai_optout: the license that robots.txt names does not permit training"),
        ("/gone", "not now: http_404: that was the result of its last try"),
        ("/paid", "not now: payment_required: that was the result of its last try"),
        ("/sick", "not now: http_500: it failed once"),
        ("/a.zip", "no: scope: it matches exclude_pattern"),
        ("/x/x/x/x", "no: trap_path"),
        ("/private/open", "unknown: no page, sitemap or feed that was read links to it"),
        ("/never/seen?utm_source=x", "unknown: no page"),
    ],
)
def test_the_verdict_is_the_first_obstacle_of_a_cycle(ask, asked, path, verdict):
    facts = ask(asked[1].url(path))
    assert facts["verdict"].startswith(verdict), facts["verdict"]
    assert verdict in render(facts)


@pytest.mark.parametrize(
    ("url", "verdict"),
    [
        ("http://denied.localhost/a", 'no: host_denied: the hosts file denies "denied.localhost"'),
        ("http://elsewhere.localhost/", "no: scope: include_hosts does not name elsewhere.localhost"),
        ("http://10.0.0.1/", "no: scope: "),
        ("http://far.localhost/", "unknown: "),
        ("mailto:a@b.example", "never: it is not an http or https URL"),
        ("nonsense", "no: scope: include_hosts does not name nonsense"),
    ],
)
def test_an_unknown_url_is_checked_against_the_recipe(ask, url, verdict):
    assert ask(url)["verdict"].startswith(verdict)


def test_a_url_without_a_scheme_matches_the_known_one(ask, asked):
    known = asked[1].url("/p/1")
    assert ask(known.removeprefix("http://"))["known"] == ask(known)["known"]
    assert ask("unknown.example/a?u=http://b.example/")["url"] == "https://unknown.example/a?u=http://b.example/"
    assert ask("mailto:a@b.example")["url"] is None


def test_all_obstacles_are_listed_in_the_order_of_a_cycle(ask):
    facts = ask("http://10.0.0.1:8080/a.zip")
    assert [one["by"] for one in facts["obstacles"]] == ["scope", "port"]
    assert "also: port" in render(facts)


def test_quarantined_lines_of_seed_files_are_found(ask, asked):
    facts = ask("http://10.0.0.1/")
    assert (facts["set_aside"]["line"], facts["set_aside"]["reason"]) == (3, "private_address")
    assert "seeds.txt, line 3" in render(facts)
    assert ask(asked[1].url("/seeded"))["seed"]


def test_a_running_cycle_shows_the_position_in_its_list(asked, ask, tmp_path):
    recipe, site = asked
    moved = recipe.override({"name": "moved"})
    run(moved, "c1", ("inject", "rank", "generate"))
    facts = why(open_store(moved), "moved", moved.crawl, site.url("/p/0"))
    assert facts["verdict"].startswith("listed, place ")
    assert facts["listed"]["of"] == 3
    assert why(open_store(moved), "moved", moved.crawl, site.url("/p/3"))["verdict"].startswith("no cycle is complete")
    fresh = recipe.override({"name": "fresh"})
    assert why(open_store(fresh), "fresh", fresh.crawl, site.url("/p/3"))["artifacts"] == {}
    assert ask(site.url("/p/0"), version="c1")["known"]
    with pytest.raises(InputError, match="no cycle asked@c9"):
        ask(site.url("/p/0"), version="c9")


def test_denials_come_from_the_fetch_list_if_the_hosts_file_is_unreadable(asked):
    recipe, _ = asked
    away = recipe.override({"crawl.hosts_file": "/nowhere/hosts.toml"})
    facts = why(open_store(away), away.name, away.crawl, "http://denied.localhost/a")
    assert facts["obstacles"][0]["by"] == "host_denied"
    assert "cannot be read here; the copy in asked/fetchlist/p0@c1" in facts["policy"]["from"]


def test_hosts_in_back_off_and_at_their_cap_are_reported(run_stage, tmp_path):
    limited = {"/": "".join(f"<a href=/{n}>x</a>" for n in range(30)), **linked(30)}
    limited["/"] = "".join(f"<a href=/{n}>x</a>" for n in range(30))
    busy = lambda _: web.Response(status=503, headers={"Retry-After": "3600"})  # noqa: E731
    with Site(limited) as site, Site({"/": "x<a href=/b>b</a>", "/b": busy}) as away:
        text = RECIPE.format(seed=site.url(), folder=tmp_path, port=site.port)
        text = text.replace('"denied.localhost"', f'"127.0.0.1:{away.port}"').replace(
            "[canary]", "max_pages_per_host = 5\n[canary]"
        )
        (tmp_path / "asked.toml").write_text(text)
        (tmp_path / "seeds.txt").write_text(away.url())
        (tmp_path / "hosts.toml").write_text("")
        recipe = Recipe.load(tmp_path / "asked.toml")
        run(recipe, "c1")
        ask = lambda url: why(open_store(recipe), recipe.name, recipe.crawl, url)  # noqa: E731
        full = ask(site.url("/29"))
        assert full["verdict"] == "not now: cap: its host has used all 5 requests of a cycle"
        backed_off = ask(away.url("/b"))
        assert [one["by"] for one in backed_off["obstacles"]] == ["http_503", "host_backoff"]
        assert "backed off until" in render(backed_off)


def test_the_shell_prints_text_and_json(asked, capsys):
    recipe, site = asked
    file = str(Path(recipe.crawl.hosts_file).with_name("asked.toml"))
    assert shell.main(["why", "--recipe", file, site.url("/private/a")]) == 0
    assert "  verdict     no: robots_denied: robots.txt, line 3" in capsys.readouterr().out
    assert shell.main(["why", "--recipe", file, "--version", "c1", "--json", site.url("/p/1")]) == 0
    assert json.loads(capsys.readouterr().out)["known"]["status"] == "db_fetched"
    assert shell.main(["why", "--recipe", file, "--version", "c9", site.url("/p/1")]) == 2


def test_a_recipe_without_a_crawl_is_reported(asked):
    recipe, _ = asked
    off = recipe.crawl.model_copy(update={"enabled": False})
    with pytest.raises(InputError, match="does not crawl"):
        why(open_store(recipe), recipe.name, off, "http://a.localhost/")


def test_a_lifted_url_is_due(tmp_path):
    with Site({"/": "<a href=/a>a</a>", "/a": "a"}) as site:
        text = f'name = "back"\n[crawl]\nseeds = ["{site.url()}"]\nallow_loopback = true\ndelay_s = 0.0\n'
        text += f'latency_factor = 0.0\npartitions = 1\nrecrawl = true\n[place]\nstore = "{tmp_path}/store"\n'
        (tmp_path / "back.toml").write_text(text)
        recipe = Recipe.load(tmp_path / "back.toml")
        run(recipe, "c1")
        run(recipe.override({"takedown.urls": site.url("/a")}), "t1", ("takedown",))
        run(recipe, "c2", ("inject", "rank", "generate", "fetch", "render", "update"))
        said = [why(open_store(recipe), recipe.name, recipe.crawl, site.url("/a"))["verdict"]]
        run(recipe.override({"takedown.lift": site.url("/a")}), "t2", ("takedown",))
        said.append(why(open_store(recipe), recipe.name, recipe.crawl, site.url("/a"))["verdict"])
    assert said[0].startswith("no: takedown: ")
    assert said[1].startswith("due since its takedown was lifted: the next cycle lists it")


def test_the_reported_rule_agrees_with_the_crawler(shared_data):
    """On real robots.txt files the reported rule agrees with the decision."""
    paths = (
        "/",
        "/a",
        "/search?q=x",
        "/wp-admin/x.php",
        "/private/",
        "/index.html",
        "/%7Ea/b",
        "/a.pdf",
        "/en/x/y?z=1&p=2",
    )
    decided = 0
    for row, body in itertools.islice(real_files(shared_data), 0, None, 8):
        for agent in ("sluice", "Googlebot"):
            robots = Robots(body, agent)
            for path in paths:
                url = f"http://h{path}"
                rule = deciding_rule(body, agent, url)
                assert rule.allowed == robots.allows(url), (row["host"], agent, path)
                assert bool(rule.line) == bool(rule.rule)
                if rule.line:
                    decided += 1
                    line = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")[rule.line - 1]
                    assert rule.rule.split(": ", 1)[1].encode() in line, (row["host"], rule)
                if not ai_optout_rule(body, url).allowed:
                    assert robots.ai_optout(url)
                    assert ai_optout_rule(body, url).group
    assert decided > 200
