"""Many sites whose robots.txt and tdmrep.json redirect to one host: its pause applies to all requests."""

import asyncio
import itertools

import pytest
from aiohttp import web

from tasks.formats.web.tdmrep import TDMREP
from tasks.stages.crawl.config import CrawlConfig
from tests.tasks.stages.crawl.site import Site, linked

CENTRAL = "central.localhost"
SITES = 8
# The server records the end of a response slightly after its last byte was sent.
NOTED_S = 0.01


class Town(Site):
    """Sites that redirect for both of their files to a central host, one file for each or one for all.

    Attributes:
        central_robots: the central host's own robots.txt, or a handler.
        latency_s: response time of the central host in seconds.
        shared: whether all sites redirect to the same files.
        busy: status codes of the first responses of the central host to redirected requests, each once.
    """

    def __init__(self, robots="User-agent: *\nCrawl-delay: 0.3\n", *, latency_s=0.0, shared=False, busy=()):
        super().__init__({})
        self.central_robots, self.latency_s, self.shared, self.busy = robots, latency_s, shared, list(busy)

    def site(self, number, path="/"):
        return self.url(path, f"site{number}.localhost")

    def central(self, path="/"):
        return self.url(path, CENTRAL)

    def at(self, host):
        return sorted(one for one in self.requests if one[2].startswith(f"{host}:"))

    async def _respond(self, request):
        host = request.host.partition(":")[0]
        if host == CENTRAL:
            await asyncio.sleep(self.latency_s)
            return self._of_central(request)
        file = {"/robots.txt": "robots", TDMREP: "tdm"}.get(request.path)
        if file is None:
            return web.Response(text=f"<p>{host} is a site of its own.", content_type="text/html")
        name = "all" if self.shared else host
        return web.Response(status=301, headers={"Location": self.central(f"/{file}/{name}")})

    def _of_central(self, request):
        if request.path == "/robots.txt":
            robots = self.central_robots
            return robots(request) if callable(robots) else web.Response(text=robots)
        if self.busy and request.path.startswith("/robots/"):
            return web.Response(status=503, headers={"Retry-After": str(self.busy.pop())})
        if request.path.startswith("/robots/"):
            return web.Response(text="User-agent: *\nDisallow: /private\n")
        if request.path.startswith("/tdm/"):
            return web.json_response([{"location": "/reserved", "tdm-reservation": 1}])
        return web.Response(text=f"<p>The central host's {request.path}", content_type="text/html")


def config_for(town, *more, **settings):
    seeds = tuple(itertools.chain.from_iterable((town.site(n), town.site(n, "/private")) for n in range(SITES)))
    base = {"delay_s": 0.05, "latency_factor": 0.0, "concurrency": 64, "partitions": 1, "timeout_s": 5.0}
    return CrawlConfig(**{"seeds": (*seeds, *more), "allow_loopback": True, **base, **settings})


def gaps(requests):
    return [later[0] - earlier[1] for earlier, later in itertools.pairwise(requests)]


def reasons(cycle, town, path):
    return {cycle.log()[town.site(number, path)]["reason"] for number in range(SITES)}


@pytest.mark.parametrize("crawled", [False, True], ids=["only redirected to", "crawled, too"])
def test_a_host_that_many_sites_redirect_to_is_requested_at_its_crawl_delay(crawl, crawled):
    with Town() as town:
        own = [town.central(f"/{number}") for number in range(4)] if crawled else []
        cycle = crawl(config_for(town, *own))
        asked = town.at(CENTRAL)
        assert len(asked) == 1 + 2 * SITES + (len(own) + 1 if crawled else 0)
        assert min(gaps(asked)) >= 0.3 - NOTED_S
        assert asked[0][3] == "/robots.txt"
        assert [path for *_, path in asked].count("/robots.txt") == 1
        assert reasons(cycle, town, "/") == {""}
        assert reasons(cycle, town, "/private") == {"robots_denied"}
        assert {cycle.log()[url]["reason"] for url in own} <= {""}


def test_a_shared_robots_file_is_requested_once(crawl):
    with Town(shared=True) as town:
        cycle = crawl(config_for(town))
        assert [path for *_, path in town.at(CENTRAL)] == ["/robots.txt", "/robots/all", "/tdm/all"]
        assert reasons(cycle, town, "/private") == {"robots_denied"}


def test_an_adaptive_pause_applies_to_redirects_from_other_hosts(crawl):
    with Town("", latency_s=0.15) as town:
        crawl(config_for(town, delay_s=0.02, latency_factor=2.0, ai_optouts=("robots",)))
        asked = town.at(CENTRAL)
        assert len(asked) == 1 + SITES
        assert min(gaps(asked)) >= 0.3 - NOTED_S


def test_a_retry_after_sent_to_one_site_applies_to_all(crawl):
    with Town("", busy=(1,)) as town:
        cycle = crawl(config_for(town, delay_s=0.02, ai_optouts=("robots",)))
        asked = town.at(CENTRAL)
        assert asked[2][0] - asked[1][1] >= 1.0 - NOTED_S
        assert reasons(cycle, town, "/") == {""}
    with Town("", busy=(3600,)) as town, Site(linked(1)) as good:
        cycle = crawl(config_for(town, good.url(), delay_s=0.02, ai_optouts=("robots",)), "long")
        assert len(town.at(CENTRAL)) == 2
        assert reasons(cycle, town, "/") == {"robots_unavailable"}


def test_a_host_without_its_own_robots_txt_gets_no_request_for_others(crawl):
    with Town(lambda _: web.Response(status=500)) as town, Site(linked(1)) as good:
        cycle = crawl(config_for(town, good.url(), max_backoff_s=0.2))
        assert [path for *_, path in town.at(CENTRAL)] == ["/robots.txt"] * 3
        assert reasons(cycle, town, "/") == {"robots_unavailable"}


def test_sites_waiting_for_a_shared_host_delay_no_other(crawl):
    with Town("User-agent: *\nCrawl-delay: 1\n") as town, Site(linked(6)) as good:
        pages = [good.url(path) for path in linked(6)]
        config = config_for(town, *pages, concurrency=2, ai_optouts=("robots",), delay_s=0.02)
        crawl(config)
        assert len(good.requests) == 7
        # Sequential requests to the shared host take SITES seconds.
        shared = town.at(CENTRAL)
        assert max(end for _, end, *_ in good.requests) < shared[SITES // 2][0]


@pytest.mark.parametrize("target", ["/robots.txt", "/other.txt"])
def test_sites_that_redirect_to_each_other_are_abandoned_soon(crawl, target):
    class Ring(Site):
        async def _respond(self, request):
            number = int(request.host[4])
            to = self.url(target, f"site{(number + 1) % 3}.localhost")
            return web.Response(status=302, headers={"Location": to})

    with Ring({}) as ring, Site(linked(1)) as good:
        seeds = (*(ring.url("/", f"site{number}.localhost") for number in range(3)), good.url())
        config = CrawlConfig(seeds=seeds, allow_loopback=True, delay_s=0.02, latency_factor=0.0, partitions=1)
        log = crawl(config).log()
        assert {url: row["reason"] for url, row in log.items()} == {
            **dict.fromkeys(seeds, "robots_unavailable"),
            good.url(): "",
        }
        assert len(ring.requests) <= 12
