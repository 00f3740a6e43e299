import asyncio
import contextlib
import gzip
import os
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web

from tasks.formats.web.url import authority
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.hosts import rules
from tasks.stages.crawl.hosts.politeness import Politeness
from tasks.stages.crawl.hosts.rules import HostRobots, HostRules
from tasks.stages.crawl.http.client import Client
from tests.tasks.stages.crawl.site import Site


@contextlib.asynccontextmanager
async def rules_of(config, optouts=(), **options):
    politeness = Politeness(config)
    async with Client(config) as client:
        yield HostRules(client, politeness, config, optouts, **options), politeness


def config_of(**settings):
    return CrawlConfig(**{"allow_loopback": True, "delay_s": 0.0, "latency_factor": 0.0, "timeout_s": 10.0, **settings})


async def denial(rules, url):
    """Why `url` must not be fetched, as soon as the rules are available, or None."""
    while (ruling := await rules.ruling(url)) is None:
        if rules.allows(url) is None:
            await rules._politeness.wait_pause(rules._politeness.host(authority(url)))
    return ruling.denied or None


def verdict(url, path="/page", ai_optout=False, **settings):
    """The decision for `path` on the host of `url`, and the hosts' clocks after the lookup."""

    async def run():
        async with rules_of(config_of(**settings), ["robots"] if ai_optout else ()) as (rules, politeness):
            return await denial(rules, url + path), politeness

    return asyncio.run(run())


def status(code, **headers):
    return lambda _: web.Response(status=code, headers=headers)


@pytest.mark.parametrize("code", [400, 401, 403, 404, 410])
def test_no_robots_file_means_no_rules(code):
    with Site({}, status(code)) as site:
        assert verdict(site.url(""))[0] is None
        assert len(site.requests) == 1


@pytest.mark.parametrize("code", [429, 500, 502, 503])
def test_an_unavailable_robots_file_skips_the_host_after_three_tries(code):
    with Site({}, status(code)) as site:
        assert verdict(site.url(""))[0] == "robots_unavailable"
        assert len(site.requests) == 3


def test_a_robots_file_fetched_at_the_third_try_applies():
    answers = [status(503), status(429), lambda _: web.Response(text="User-agent: *\nDisallow: /page")]
    with Site({}, lambda request: answers.pop(0)(request)) as site:
        assert verdict(site.url(""))[0] == "robots_denied"


def test_an_unanswered_robots_request_is_no_permission():
    async def never(request):
        await asyncio.sleep(20)

    with Site({}, never) as site:
        assert verdict(site.url(""), timeout_s=0.2)[0] == "robots_unavailable"


def test_a_host_with_a_long_retry_after_is_not_requested_again():
    with Site({}, status(503, **{"Retry-After": "3600"})) as site:
        assert verdict(site.url(""))[0] == "robots_unavailable"
        assert len(site.requests) == 1


def test_robots_redirects_are_followed_up_to_five_times_even_to_other_hosts():
    def chain(length):
        pages = {f"/r{n}": status(301, Location=f"/r{n + 1}") for n in range(1, length)}
        pages[f"/r{length}"] = lambda _: web.Response(text="User-agent: sluice\nDisallow: /page")
        return pages

    with Site(chain(5), status(301, Location="/r1")) as site:
        assert verdict(site.url(""))[0] == "robots_denied"
    with Site(chain(6), status(301, Location="/r1")) as site:
        assert verdict(site.url(""))[0] == "robots_unavailable"
    page = {"/r": lambda _: web.Response(text="User-agent: *\nDisallow: /page")}
    with Site(page) as other, Site({}, status(302, Location=other.url("/r"))) as site:
        assert verdict(site.url(""))[0] == "robots_denied"


@pytest.mark.parametrize(
    "location", ["http://169.254.169.254/robots.txt", "file:///etc/passwd", "data:text/plain,x", "/robots.txt"]
)
def test_an_invalid_robots_redirect_skips_the_host(location):
    with Site({}, status(302, Location=location)) as site:
        assert verdict(site.url(""))[0] == "robots_unavailable"


def test_a_huge_robots_file_is_truncated_and_its_beginning_applies():
    body = b"User-agent: *\nDisallow: /page\n" + b"# padding\n" * 200_000 + b"Allow: /page\n"
    with Site({}, body) as site:
        assert verdict(site.url(""))[0] == "robots_denied"


@pytest.mark.parametrize(
    ("value", "delay"),
    [("7", 7.0), ("0.5", 0.5), ("-1", 0.0), ("nan", 0.0), ("inf", 0.0), ("1e9", 86400.0), ("x", 0.0)],
)
def test_crawl_delay_is_bounded(value, delay):
    with Site({}, f"User-agent: *\nCrawl-delay: {value}\nDisallow: /x") as site:
        reason, politeness = verdict(site.url(""))
        assert reason is None
        assert politeness.host(site.url("").split("/")[2]).crawl_delay_s == delay


def test_a_training_opt_out_applies_if_the_crawl_respects_it():
    with Site({}, "User-agent: GPTBot\nDisallow: /page") as site:
        assert verdict(site.url(""), ai_optout=True)[0] == "ai_optout"
        assert verdict(site.url(""), ai_optout=False)[0] is None
        assert verdict(site.url(""), path="/other", ai_optout=True)[0] is None
    with Site({}, "User-agent: *\nContent-Signal: ai-train=no\nDisallow: /page") as site:
        assert verdict(site.url(""), ai_optout=True)[0] == "robots_denied"
        assert verdict(site.url(""), path="/other", ai_optout=True)[0] == "ai_optout"


def test_an_undecodable_robots_file_is_no_permission():
    def broken(_):
        return web.Response(body=b"\x00broken", headers={"Content-Encoding": "br"})

    with Site({}, broken) as site:
        assert verdict(site.url(""))[0] == "robots_unavailable"
        assert len(site.requests) == 3


def test_a_compression_bomb_is_read_up_to_the_limit():
    body = gzip.compress(b"User-agent: *\nDisallow: /page\n" + b"#" * (50 << 20))
    with Site({}, lambda _: web.Response(body=body, headers={"Content-Encoding": "gzip"})) as site:
        assert verdict(site.url(""))[0] == "robots_denied"


@pytest.mark.parametrize(
    ("value", "tries"),
    [
        *(("-5", 3), ("x", 3), ("Wed, 21 Oct 2015 07:28:00 GMT", 3), ("", 3), ("0", 3), ("1.5", 3), ("1e18", 3)),
        *(("1" * 18, 1), ("9" * 5000, 1), ("Fri, 31 Dec 9999 23:59:59 GMT", 1)),
    ],
    ids=lambda one: str(one)[:20],
)
def test_any_retry_after_skips_the_host_cleanly(value, tries):
    with Site({}, status(503, **{"Retry-After": value})) as site:
        assert verdict(site.url(""))[0] == "robots_unavailable"
        assert len(site.requests) == tries


def test_a_redirect_with_extra_slashes_is_followed_like_in_a_browser():
    page = {"/r": lambda _: web.Response(text="User-agent: *\nDisallow: /page")}
    with Site(page) as other, Site({}, status(302, Location=f"http:////127.0.0.1:{other.port}/r")) as site:
        assert verdict(site.url(""))[0] == "robots_denied"


@pytest.mark.parametrize("location", ["https:////h:99999/", "http://", "//", "http://[::", "x" * 20_000])
def test_an_invalid_redirect_url_skips_the_host(location):
    with Site({}, status(302, Location=location)) as site:
        assert verdict(site.url(""))[0] == "robots_unavailable"


def test_a_private_address_has_its_own_reason():
    assert verdict("http://10.0.0.1")[0] == "private_address"


def test_sitemaps_are_listed_by_canonical_url():
    async def run(site):
        async with rules_of(config_of()) as (rules, _):
            assert rules.sitemaps(site.url("/page")) == ()
            await denial(rules, site.url("/page"))
            return rules.sitemaps(site.url("/page"))

    lines = ["/map.xml", "HTTP://Example.org/a#b", "http://example.org/a", "ftp://example.org/", "javascript:x", ""]
    with Site({}, "\n".join(f"Sitemap: {line}" for line in lines)) as site:
        expected = (site.url("/map.xml"), "http://example.org/a", site.url("/robots.txt"))
        assert asyncio.run(run(site)) == expected
    with Site({}, "".join(f"Sitemap: /{number}\n" for number in range(5000))) as site:
        assert len(asyncio.run(run(site))) == 1000


NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_robots_files_are_reused_by_later_cycles_for_a_day():
    async def first(site, gone, away):
        async with rules_of(config_of(max_backoff_s=0.1), now=lambda: NOW) as (rules, _):
            for one in (site, gone, away):
                await denial(rules, one.url("/page"))
            return rules.rows()

    async def later(rows, site, gone, away, hours):
        async with rules_of(config_of(), now=lambda: NOW + timedelta(hours=hours)) as (rules, politeness):
            rules.load(rows)
            known = [rules.allows(one.url("/page")) is not None for one in (site, gone, away)]
            reason = await denial(rules, site.url("/page")) if known[0] else None
            return known, reason, politeness.host(f"127.0.0.1:{site.port}").crawl_delay_s

    robots = "User-agent: *\nCrawl-delay: 7\nDisallow: /page"
    with Site({}, robots) as site, Site({}, status(404)) as gone, Site({}, status(503)) as away:
        rows = asyncio.run(first(site, gone, away))
        requests = len(site.requests)
        stored = {row.origin: row for row in rows}
        assert stored[site.url("")] == HostRobots(site.url(""), "ok", robots.encode(), NOW, 7.0)
        assert stored[gone.url("")] == HostRobots(gone.url(""), "missing", b"", NOW, 0.0)
        assert stored[away.url("")].status == "unavailable"
        # An unavailable file is requested again; it is never cached as permission.
        assert asyncio.run(later(rows, site, gone, away, 23)) == ([True, True, False], "robots_denied", 7.0)
        assert asyncio.run(later(rows, site, gone, away, 24))[0] == [False, False, False]
        assert len(site.requests) == requests


def test_robots_rules_expire_within_a_long_cycle():
    clock = [NOW]

    async def run(site):
        async with rules_of(config_of(), now=lambda: clock[0]) as (rules, _):
            assert await denial(rules, site.url("/page")) is None
            site.robots = "User-agent: *\nDisallow: /"
            assert await denial(rules, site.url("/page")) is None
            clock[0] += timedelta(hours=25)
            return await denial(rules, site.url("/page"))

    with Site({}, "") as site:
        assert asyncio.run(run(site)) == "robots_denied"


def test_memory_for_files_and_rules_is_bounded(monkeypatch):
    monkeypatch.setattr(rules, "_MAX_CACHED", 100_000)
    monkeypatch.setattr(rules, "_MAX_PARSED", 30_000)

    async def run():
        async with rules_of(config_of(), now=lambda: NOW) as (rules, _):
            for number in range(100):
                body = b"User-agent: *\nDisallow: /page\n#" + os.urandom(4000).hex().encode()
                rules.load([HostRobots(f"http://h{number}", "ok", body, NOW, 0.0)])
            cached = [number for number in range(100) if rules.allows(f"http://h{number}/") is not None]
            assert {await denial(rules, f"http://h{number}/page") for number in cached} == {"robots_denied"}
            parsed = sum(entry.parsed is not None for _, entry in rules._cache.sorted())
            return cached, parsed

    cached, parsed = asyncio.run(run())
    assert 15 <= len(cached) <= 30
    assert cached[-1] == 99
    assert parsed == 3
