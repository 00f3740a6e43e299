"""Times of requests: hosts keep their pace independently of others. In virtual time, so that seconds are exact."""

import asyncio
import selectors
from types import SimpleNamespace

import pytest

from tasks.formats.web.domain import link
from tasks.formats.web.scope import Scope
from tasks.formats.web.url import authority, key
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.frontier.order import UrlOrder
from tasks.stages.crawl.frontier.scheduler import WAITING, Scheduler, VisitResult
from tasks.stages.crawl.hosts.politeness import Politeness
from tasks.stages.crawl.storage.fetchlist import Candidate
from tasks.stages.crawl.storage.fetchlog import RETRY, SUCCESS, Outcome

GOOD = [f"good{number}.test" for number in range(4)]
PAGES = 50
TIMEOUT_S = 30.0


class Jump(selectors.DefaultSelector):
    """Lets time pass in an instant."""

    passed = 0.0

    def select(self, timeout=None):
        # A microsecond more: timers fire a little early, and sums of seconds are not exact.
        self.passed += timeout + 1e-6 if timeout else 0.0
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock stops while callbacks are ready, and otherwise jumps to the next timer."""

    def __init__(self):
        self._jump = Jump()
        super().__init__(self._jump)

    def time(self):
        return 1000.0 + self._jump.passed


class Web:
    """Hosts by response time in seconds; None never responds. Every page links to the next ones of its host.

    Attributes:
        times: response times of each host.
        under_way: maximum number of concurrent visits.
    """

    def __init__(self, latency, pages=PAGES):
        self.latency = latency
        self.pages = pages
        self.times = {host: [] for host in latency}
        self.under_way = self.now_under_way = 0

    def links(self, url):
        host, number = authority(url), int(url.rpartition("/")[2])
        last = min(self.pages, 3 * number + 4)
        return tuple(link(f"http://{host}/{one}") for one in range(3 * number + 1, last))

    async def crawl(self, loop, concurrency=16, deadline_s=100_000.0, **settings):
        config = CrawlConfig(delay_s=1.0, partitions=1, max_pages=100_000, **settings)
        start = [Candidate(link(f"http://{host}/0"), 0, seed=True) for host in self.latency]
        order = UrlOrder(config, 0, config.max_pages, Scope(list(self.latency)), start)
        politeness = Politeness(config)
        tries = {}

        async def visit(host, candidate):
            seconds = self.latency[host.authority]
            self.now_under_way += 1
            self.under_way = max(self.under_way, self.now_under_way)
            try:
                async with politeness.turn(host):
                    await asyncio.sleep(TIMEOUT_S if seconds is None else seconds)
            finally:
                self.now_under_way -= 1
            url = candidate.url
            outcome = Outcome(key(url), url, host.authority, 0, SUCCESS, requested=True, outlinks=self.links(url))
            if seconds is None:
                politeness.failed(host, None)
                tries[url] = tries.get(url, 0) + 1
                if tries[url] < 3:
                    return VisitResult.AGAIN
                outcome = outcome._replace(status=RETRY, outlinks=())
            else:
                politeness.succeeded(host)
                self.times[host.authority].append(loop.time())
            order.note(candidate, outcome)
            return VisitResult.DONE

        scheduler = Scheduler(
            order,
            politeness,
            visit,
            concurrency=concurrency,
            max_visits=concurrency + WAITING,
            deadline=loop.time() + deadline_s,
        )
        return await scheduler.run()


@pytest.fixture
def loop(monkeypatch):
    loop = VirtualLoop()
    clock = SimpleNamespace(monotonic=loop.time, time=loop.time)
    monkeypatch.setattr("tasks.stages.crawl.frontier.scheduler.time", clock)
    monkeypatch.setattr("tasks.stages.crawl.hosts.politeness.time", clock)
    yield loop
    loop.close()


def crawled(loop, others, **settings):
    """Crawls the good hosts together with others; returns the web."""
    web = Web({**dict.fromkeys(GOOD, 0.05), **others})
    assert loop.run_until_complete(web.crawl(loop, **settings))
    return web


def last(web):
    """Seconds from the begin to the last page of the good hosts."""
    return max(web.times[host][-1] for host in GOOD)


OTHERS = {
    "one that takes four seconds": {"slow.test": 4.0},
    "a hundred that are silent": {f"silent{number}.test": None for number in range(100)},
    "a thousand that are silent": {f"silent{number}.test": None for number in range(1000)},
    "two hundred that take three seconds": {f"slow{number}.test": 3.0 for number in range(200)},
    "hosts of the same domain that are slow": {f"slow{number}.good0.test": 8.0 for number in range(5)},
}


@pytest.mark.parametrize("others", OTHERS.values(), ids=OTHERS)
def test_a_good_host_keeps_its_pace_regardless_of_others(loop, others):
    begin = loop.time()
    alone = last(crawled(loop, {})) - begin
    begin = loop.time()
    beside = crawled(loop, others)
    assert last(beside) - begin <= 1.05 * alone
    assert all(len(beside.times[host]) == PAGES for host in GOOD)
    slow = [len(times) for host, times in beside.times.items() if others.get(host)]
    assert all(count == PAGES for count in slow)


def test_untried_hosts_leave_half_of_the_slots_to_responsive_ones(loop):
    web = crawled(loop, {f"host{number}.test": 0.5 for number in range(40)}, concurrency=8)
    assert web.under_way <= 8


def test_no_request_starts_after_the_deadline(loop):
    web = Web(dict.fromkeys(GOOD, 0.05))
    begin = loop.time()
    assert not loop.run_until_complete(web.crawl(loop, deadline_s=10.0))
    assert 0 < loop.time() - begin < 12
    assert all(5 < len(times) <= 11 for times in web.times.values())
