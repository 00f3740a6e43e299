import asyncio

import pytest
from aiohttp import web
from crawl_site import Site

from tasks.crawl.client import Client
from tasks.crawl.config import CrawlConfig
from tasks.crawl.host_rules import HostRules
from tasks.crawl.politeness import Politeness


def verdict(url, path="/page", **settings):
    """What the rules say of `path` on the host of `url`, and the hosts' clocks after the look-up."""
    config = CrawlConfig(
        **{"allow_loopback": True, "delay_s": 0.0, "latency_factor": 0.0, "timeout_s": 1.0, **settings}
    )

    async def run():
        politeness = Politeness(config)
        async with Client(config) as client:
            rules = HostRules(client, politeness, "sluice", config.max_backoff_s)
            await rules.look_up(url + path)
            return rules.verdict(url + path), politeness

    return asyncio.run(run())


def status(code, **headers):
    return lambda _: web.Response(status=code, headers=headers)


@pytest.mark.parametrize("code", [400, 401, 403, 404, 410])
def test_no_robots_file_means_no_rules(code):
    with Site({}, status(code)) as site:
        assert verdict(site.url(""))[0] is None
        assert len(site.requests) == 1


@pytest.mark.parametrize("code", [429, 500, 502, 503])
def test_an_unavailable_robots_file_leaves_the_host_out_after_three_tries(code):
    with Site({}, status(code)) as site:
        assert verdict(site.url(""))[0] == "robots_unavailable"
        assert len(site.requests) == 3


def test_a_robots_file_that_comes_at_the_third_try_counts():
    answers = [status(503), status(429), lambda _: web.Response(text="User-agent: *\nDisallow: /page")]
    with Site({}, lambda request: answers.pop(0)(request)) as site:
        assert verdict(site.url(""))[0] == "robots_denied"


def test_a_robots_file_that_never_comes_is_no_permission():
    async def never(request):
        await asyncio.sleep(20)

    with Site({}, never) as site:
        assert verdict(site.url(""), timeout_s=0.2)[0] == "robots_unavailable"


def test_a_host_that_asks_for_a_long_pause_is_not_asked_again():
    with Site({}, status(503, **{"Retry-After": "3600"})) as site:
        assert verdict(site.url(""))[0] == "robots_unavailable"
        assert len(site.requests) == 1


def test_five_redirects_of_robots_are_followed_also_to_other_hosts_and_six_are_not():
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
def test_a_redirect_of_robots_to_nowhere_good_leaves_the_host_out(location):
    with Site({}, status(302, Location=location)) as site:
        assert verdict(site.url(""))[0] == "robots_unavailable"


def test_a_huge_robots_file_is_cut_and_its_beginning_counts():
    body = b"User-agent: *\nDisallow: /page\n" + b"# padding\n" * 200_000 + b"Allow: /page\n"
    with Site({}, body) as site:
        assert verdict(site.url(""))[0] == "robots_denied"


@pytest.mark.parametrize(
    ("value", "delay"),
    [("7", 7.0), ("0.5", 0.5), ("-1", 0.0), ("nan", 0.0), ("inf", 0.0), ("1e9", 86400.0), ("x", 0.0)],
)
def test_crawl_delay_is_taken_within_reason(value, delay):
    with Site({}, f"User-agent: *\nCrawl-delay: {value}\nDisallow: /x") as site:
        said, politeness = verdict(site.url(""))
        assert said is None
        assert politeness.host(site.url("").split("/")[2]).crawl_delay_s == delay
