"""Politeness, verified in the access log of a server with fifty hosts, over three concurrent fetch tasks.

One of the tasks is killed during a host's Retry-After, loses its disk, and is retried.
"""

import asyncio
import itertools
import json
import random
import shutil
import signal
import time
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from aiohttp import web

from tasks.core.artifact import ArtifactId
from tasks.formats.web.domain import partition
from tasks.formats.web.tdmrep import TDMREP
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.hosts.clocks import FOLDER
from tests.tasks.stages.crawl import cycle
from tests.tasks.stages.crawl.site import Site

pytestmark = pytest.mark.real_time

HOSTS = 50
PARTITIONS = 3
PAGES = 6
FLOOR_S = 0.1
LATENCY_FACTOR = 2.0
RETRY_AFTER_S = 6


@dataclass
class HostBehavior:
    """Requirements and behavior of one host."""

    crawl_delay_s: float = 0.0
    latency_s: float = 0.0
    busy: str = ""  # 429, 503 or "date": first response of its page /2
    robots_busy: bool = False
    tdm_busy: bool = False

    @property
    def delay_s(self):
        return max(FLOOR_S, self.crawl_delay_s, LATENCY_FACTOR * self.latency_s)


class Town(Site):
    """Fifty hosts on one port.

    Attributes:
        banned: (host, end of its Retry-After, time of that response), on the monotonic clock.
    """

    def __init__(self):
        super().__init__({})
        self.hosts = {}
        self.banned = []
        self._was_busy = set()

    def add(self, name, behavior):
        self.hosts[name] = behavior

    async def _respond(self, request):
        name = request.host.partition(":")[0]
        behavior = self.hosts[name]
        if behavior.latency_s:
            await asyncio.sleep(behavior.latency_s)
        if request.path == "/robots.txt":
            if behavior.robots_busy and self._first_time(name, "robots"):
                return self._busy(name, 503, 1)
            delay = f"Crawl-delay: {behavior.crawl_delay_s:g}\n" if behavior.crawl_delay_s else ""
            return web.Response(text=f"User-agent: *\n{delay}Disallow: /private\n")
        if request.path == TDMREP:
            if behavior.tdm_busy:
                return self._busy(name, 429, 1)
            return web.json_response([{"location": "/private", "tdm-reservation": 1}])
        if behavior.busy and request.path == "/2" and self._first_time(name, "page"):
            return self._busy(name, 503 if behavior.busy == "503" else 429, RETRY_AFTER_S, behavior.busy == "date")
        links = "".join(f'<a href="/{number}">{number}</a>' for number in range(1, PAGES))
        text = f'<html><body><p>{name} {request.path}</p>{links}<a href="/private/x">no</a></body></html>'
        return web.Response(text=text, content_type="text/html")

    def _first_time(self, name, what):
        first = (name, what) not in self._was_busy
        self._was_busy.add((name, what))
        return first

    def _busy(self, name, status, seconds, as_date=False):
        value = str(seconds)
        if as_date:
            # Rounded up to whole seconds, so that the pause is at least `seconds`.
            then = datetime.now(UTC) + timedelta(seconds=seconds + 1)
            value = format_datetime(then.replace(microsecond=0), usegmt=True)
        now = time.monotonic()
        self.banned.append((name, now + seconds, now))
        return web.Response(status=status, headers={"Retry-After": value})


def behavior_of(number):
    """Returns the behavior of host `number`; every kind occurs several times, in all partitions."""
    crawl_delays = {0: 0.3, 1: 0.7, 2: 2.0}
    return HostBehavior(
        crawl_delay_s=crawl_delays.get(number % 8, 0.0),
        latency_s=0.2 if number % 8 == 3 else 0.0,
        busy={4: "429", 5: "503", 6: "date"}.get(number % 8, ""),
        robots_busy=number % 25 == 7,
        tdm_busy=number % 25 == 9,
    )


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def stored_pauses(segment):
    """Returns the hosts whose pauses a fetch has stored, by the folder of its segment."""
    rows = itertools.chain.from_iterable(json.loads(path.read_text()) for path in (segment / FOLDER).glob("*.json"))
    return {authority.partition(":")[0] for authority, *_ in rows}


@pytest.fixture(scope="module")
def town(tmp_path_factory):
    """The server after three fetch tasks, one of which was killed and retried."""
    folder = tmp_path_factory.mktemp("proof")
    with Town() as town:
        names = [f"h{number}.localhost" for number in range(HOSTS)]
        for number, name in enumerate(names):
            town.add(name, behavior_of(number))
        config = CrawlConfig(
            seeds=tuple(town.url("/", name) for name in names),
            partitions=PARTITIONS,
            allow_loopback=True,
            delay_s=FLOOR_S,
            latency_factor=LATENCY_FACTOR,
            warc_pages_per_file=5,
        )
        cycle.cycle(folder, config)
        members = [f"p{number}" for number in range(PARTITIONS)]
        running = {member: cycle.start(folder, config, member) for member in members}
        owner = {name: f"p{partition(town.url('/', name), PARTITIONS)}" for name in names}
        victim = "p2"
        segment = folder / ArtifactId(f"test/tasks-stages-crawl-fetch/{victim}", "dev").path

        def busy():
            return {name for name, _, _ in town.banned if owner[name] == victim}

        wait_for(lambda: len(busy() & stored_pauses(segment)) >= 3)
        time.sleep(random.Random(7).uniform(0.05, 0.3))
        running[victim].send_signal(signal.SIGKILL)
        running[victim].wait()
        town.killed_at = time.monotonic()
        # An answer that the process had not stored when it was killed is known to nobody.
        town.unknown = busy() - stored_pauses(segment)
        # The retry runs on another machine.
        shutil.rmtree(segment / ".scratch")
        running[victim] = cycle.start(folder, config, victim)
        for process in running.values():
            _, stderr = process.communicate(timeout=120)
            assert process.returncode == 0, stderr.decode()[-2000:]
        town.owner, town.victim = owner, victim
        town.segments = [cycle.segment_in(folder, member) for member in members]
        yield town


def by_host(town):
    found = defaultdict(list)
    for begin, end, host, path in sorted(town.requests):
        found[host.partition(":")[0]].append((begin, end, path))
    return found


def test_every_page_of_every_host_was_fetched(town):
    pages = {}
    for segment in town.segments:
        pages |= cycle.pages_of(segment)
        assert segment.verify() == []
    assert len(pages) == HOSTS * PAGES


def test_the_retry_ran_during_pauses_of_the_killed_attempt(town):
    running = {name for name, until, at in town.banned if at < town.killed_at < until - 2}
    assert {name for name in running if town.owner[name] == town.victim}
    assert any(begin > town.killed_at and town.owner[name] == town.victim
               for name, requests in by_host(town).items() for begin, _, _ in requests)  # fmt: skip


def test_no_host_got_two_requests_within_its_delay(town):
    closest = {}
    for name, requests in by_host(town).items():
        gaps = [later[0] - earlier[1] for earlier, later in itertools.pairwise(requests)]
        closest[name] = min(gaps) - town.hosts[name].delay_s
    assert len(closest) == HOSTS
    assert min(closest.values()) >= -0.005, sorted(closest.items(), key=lambda one: one[1])[:5]


def test_no_host_got_a_request_before_its_retry_after_expired(town):
    assert len(town.banned) >= 18
    for name, until, asked_at in town.banned:
        if name in town.unknown and asked_at < town.killed_at:
            continue
        early = [begin for begin, _, _ in by_host(town)[name] if asked_at < begin < until - 0.005]
        assert not early, (name, until - early[0])


def test_every_tdm_file_was_requested_after_robots_txt_and_at_most_once_per_attempt(town):
    for name, requests in by_host(town).items():
        paths = [path for _, _, path in requests]
        assert paths[paths.index(TDMREP) - 1] == "/robots.txt", name
        assert paths.count(TDMREP) <= (2 if town.owner[name] == town.victim else 1), name


def test_robots_txt_was_fetched_first_and_no_forbidden_url_was_requested(town):
    for name, requests in by_host(town).items():
        assert requests[0][2] == "/robots.txt", name
        assert not [path for _, _, path in requests if path.startswith("/private")], name
