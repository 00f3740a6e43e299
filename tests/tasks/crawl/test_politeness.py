import asyncio
import itertools
import time
from datetime import UTC, datetime

import pytest

from tasks.crawl.config import CrawlConfig
from tasks.crawl.politeness import Politeness, crawl_delay, retry_after

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)


def politeness(**settings):
    return Politeness(CrawlConfig(**{"contact": "mailto:a@b.example", **settings}))


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("0", 0.0),
        (" 120 ", 120.0),
        ("Sat, 21 Nov 2026 12:01:30 GMT", 90.0),
        ("Saturday, 21-Nov-26 12:01:30 GMT", 90.0),
        ("Sat Nov 21 12:01:30 2026", 90.0),
        ("Sat, 21 Nov 2026 11:00:00 GMT", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 86400.0),
        ("1000000000000000000", 86400.0),
        ("9" * 5000, 86400.0),
        ("-5", None),
        ("1e18", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
    ],
)
def test_retry_after_is_read_in_both_forms_and_capped(value, seconds):
    assert retry_after(value, lambda: NOW) == seconds


@pytest.mark.parametrize(
    ("value", "seconds"), [(None, 0.0), (3.5, 3.5), (-1.0, 0.0), (float("nan"), 0.0), (1e9, 86400.0)]
)
def test_crawl_delay_is_taken_within_a_day(value, seconds):
    assert crawl_delay(value) == seconds


def test_the_delay_is_the_largest_of_three():
    host = politeness(delay_s=1.0).host("example.com")
    assert host.delay(2.0) == 1.0
    host.latency_s = 0.7
    assert host.delay(2.0) == 1.4
    host.crawl_delay_s = 5.0
    assert host.delay(2.0) == 5.0


def test_a_delay_below_a_second_is_for_loopback_alone():
    clocks = politeness(delay_s=0.01, allow_loopback=True)
    assert clocks.host("docs.localhost:8000").floor_s == 0.01
    assert clocks.host("127.0.0.1:8000").floor_s == 0.01
    assert clocks.host("[::1]:8000").floor_s == 0.01
    assert clocks.host("[::1]").floor_s == 0.01
    assert clocks.host("example.com").floor_s == 1.0
    assert clocks.host("localhost.example.com").floor_s == 1.0


def test_back_off_doubles_is_capped_and_ends_with_a_success():
    clocks = politeness(delay_s=2.0, max_backoff_s=10.0)
    host = clocks.host("example.com")
    assert [clocks.failed(host, None) for _ in range(5)] == [2.0, 4.0, 8.0, 10.0, 10.0]
    assert clocks.failed(host, 30.0) == 30.0
    assert host.next_at > time.monotonic() + 29
    clocks.succeeded(host)
    assert clocks.failed(host, None) == 2.0


def test_turns_of_one_host_never_overlap():
    clocks = politeness(delay_s=0.02, allow_loopback=True)
    host = clocks.host("127.0.0.1")
    spans = []

    async def ask():
        async with clocks.turn(host):
            begin = time.monotonic()
            await asyncio.sleep(0.01)
            spans.append((begin, time.monotonic()))

    async def run():
        await asyncio.gather(*(ask() for _ in range(5)))

    asyncio.run(run())
    spans.sort()
    assert all(later[0] - earlier[1] >= 0.02 for earlier, later in itertools.pairwise(spans))
