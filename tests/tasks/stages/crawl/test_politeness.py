import asyncio
import contextlib
import itertools
import time
from datetime import UTC, datetime, timedelta

import pytest

from tasks.core.artifact import ArtifactId
from tasks.core.errors import StoreError, TransientError
from tasks.core.stage import Output, scratch_of
from tasks.core.store import Store
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.hosts.clocks import Cooldown, CooldownStore
from tasks.stages.crawl.hosts.politeness import (
    HOST_FAILURES,
    AddressClocks,
    HostClock,
    Politeness,
    crawl_delay,
    retry_after,
)

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
def test_crawl_delay_is_capped_at_a_day(value, seconds):
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


def test_back_off_doubles_up_to_a_cap_and_resets_on_success():
    clocks = politeness(delay_s=2.0, max_backoff_s=10.0)
    host = clocks.host("example.com")
    assert [clocks.failed(host, None) for _ in range(5)] == [2.0, 4.0, 8.0, 10.0, 10.0]
    assert clocks.failed(host, 30.0) == 30.0
    assert host.next_at > time.monotonic() + 29
    clocks.succeeded(host)
    assert clocks.failed(host, None) == 2.0


def test_requests_to_a_host_never_overlap():
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


# --- by IP address


def test_an_ip_address_is_requested_at_its_pace_across_hosts():
    clocks = AddressClocks(0.05)
    begun = [clocks.begin("192.0.2.1") for _ in range(4)]
    assert begun == pytest.approx([0.0, 0.05, 0.1, 0.15], abs=0.02)
    assert clocks.begin("192.0.2.2") == 0.0
    now = time.monotonic()
    slots = [clocks.reserve("192.0.2.3") - now for _ in range(3)]
    assert slots == pytest.approx([0.0, 0.05, 0.1], abs=0.02)


def test_loopback_has_no_pace_unless_configured():
    assert [AddressClocks(None).delay(one) for one in ("127.0.0.1", "::1", "93.184.216.34", "")] == [0, 0, 0.25, 0]
    assert [AddressClocks(2.0).delay(one) for one in ("127.0.0.1", "93.184.216.34", "")] == [2, 2, 0]


def test_hosts_of_one_ip_address_take_turns_and_release_their_slot_while_waiting():
    clocks = politeness(ip_delay_s=10.0)
    hosts = [clocks.host(f"h{number}.example") for number in range(4)]
    other = clocks.host("other.example")
    assert [clocks.ready(host, "192.0.2.1") for host in hosts] == [True, False, False, False]
    assert [round(remaining_s(host)) for host in hosts[1:]] == [10, 20, 30]
    # A repeated lookup keeps its turn; a host at another address gets the first turn there.
    assert not clocks.ready(hosts[1], "192.0.2.1")
    assert round(remaining_s(hosts[1])) == 10
    assert clocks.ready(other, "192.0.2.2")
    assert clocks.begin("192.0.2.1") == 0.0


@pytest.mark.real_time
def test_waiting_for_an_ip_address_does_not_count_as_response_time():
    clocks = politeness(ip_delay_s=0.3)
    first, second = clocks.host("a.example"), clocks.host("b.example")

    async def ask(host):
        async with clocks.turn(host):
            await asyncio.sleep(clocks.begin("192.0.2.1"))

    async def run():
        await asyncio.gather(ask(first), ask(second))

    asyncio.run(run())
    assert second.latency_s < 0.1


def test_memory_for_clocks_of_ip_addresses_is_bounded(monkeypatch):
    monkeypatch.setattr("tasks.stages.crawl.hosts.politeness._MIN_CLOCKS", 100)
    clocks = AddressClocks(0.001)
    for number in range(2000):
        clocks.begin(f"192.0.2.{number}")
        if number % 50 == 0:
            time.sleep(0.002)
    assert len(clocks._requests) < 300


# --- across kills and cycles


class FailingStore(Store):
    """A store whose writes fail while `error` is set; counts them."""

    error = None
    writes = 0

    @contextlib.contextmanager
    def write(self, path):
        if self.error:
            raise self.error
        with super().write(path) as file:
            yield file
        self.writes += 1


@pytest.fixture
def attempt(tmp_path, monkeypatch):
    """Starts an attempt of one task; the previous one counts as killed."""
    monkeypatch.setattr("tasks.stages.crawl.hosts.clocks._FIRST_PAUSE_S", 0.01)
    store = FailingStore(str(tmp_path))
    begun = []

    def begin(elsewhere=False, seeds=(), **settings):
        output = Output(store, ArtifactId("test/clocks", "dev"), "f" * 64)
        if elsewhere:
            store.forget_scratch(scratch_of(output.address, output.fingerprint))
        cooldowns = CooldownStore(output)
        begun.append(cooldowns)
        base = {"contact": "mailto:a@b.example", "delay_s": 1.0, "latency_factor": 2.0, "max_backoff_s": 60.0}
        politeness = Politeness(CrawlConfig(**{**base, **settings}), cooldowns)
        politeness.load(seeds)
        politeness.cooldowns, politeness.store = cooldowns, store
        return politeness

    yield begin
    store.error = None
    for cooldowns in begun:
        cooldowns.close()


def wait_stored(clocks, host):
    async def wait():
        async with asyncio.timeout(10):
            await clocks.cooldowns.wait_saved(host.authority)

    asyncio.run(wait())


def remaining_s(host):
    return host.next_at - time.monotonic()


def test_the_first_attempt_starts_at_once_and_later_ones_after_the_short_pauses(attempt):
    assert remaining_s(attempt().host("example.com")) <= 0
    assert 2.5 < remaining_s(attempt(elsewhere=True).host("example.com")) <= 3.0
    assert 29.5 < remaining_s(attempt(delay_s=10.0).host("example.com")) <= 30.0


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_pause_of_an_ip_address_survives_a_kill(attempt, elsewhere):
    first = attempt(ip_delay_s=20.0)
    assert first.begin("192.0.2.1") == 0.0
    again = attempt(elsewhere=elsewhere, ip_delay_s=20.0)
    assert 19 < again.begin("192.0.2.1") <= 20
    assert 19 < again.begin("192.0.2.2") <= 20
    host = again.host("other.example")
    host.next_at, host.requested = 0.0, True  # its own pause is over
    assert not again.ready(host, "192.0.2.3")
    assert 19 < remaining_s(host) <= 20


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_next_attempt_respects_retry_after_even_on_another_machine(attempt, elsewhere):
    first = attempt()
    host = first.host("example.com")
    first.failed(host, 50.0)
    wait_stored(first, host)
    again = attempt(elsewhere=elsewhere).host("example.com")
    assert 49 < remaining_s(again) <= 50
    assert again.failures == 1
    assert again.skip_reason == ""
    assert remaining_s(attempt(elsewhere=elsewhere).host("other.example")) <= 3


def test_a_pause_longer_than_the_cycle_postpones_the_host_even_after_a_kill(attempt):
    first = attempt()
    first.failed(first.host("example.com"), 3600.0)
    for _ in range(HOST_FAILURES):
        first.failed(first.host("down.example"), None)
    for name in ("example.com", "down.example"):
        wait_stored(first, first.host(name))
    second = attempt(elsewhere=True)
    assert second.host("example.com").skip_reason
    assert second.host("down.example").skip_reason
    assert second.ready(second.host("example.com"))


def test_the_next_attempt_waits_for_a_long_crawl_delay_in_full(attempt):
    first = attempt()
    host = first.host("example.com")
    host.crawl_delay_s = 20.0
    first.start_pause(host)
    wait_stored(first, host)
    again = attempt(elsewhere=True).host("example.com")
    assert 19 < remaining_s(again) <= 20
    assert again.skip_reason == ""


def test_a_delay_from_robots_txt_counts_from_the_start_of_the_next_attempt(attempt):
    attempt()
    second = attempt(delay_s=0.02, allow_loopback=True)
    host = second.host("127.0.0.1")
    host.crawl_delay_s = 0.3  # known from the previous cycle, never written by the killed attempt

    async def ask():
        begin = time.monotonic()
        async with second.turn(host):
            return time.monotonic() - begin

    assert asyncio.run(ask()) > 0.25


def test_a_host_gets_no_request_until_its_pause_is_stored(attempt):
    clocks = attempt(delay_s=0.01, latency_factor=0.0, allow_loopback=True)
    host, other = clocks.host("127.0.0.1"), clocks.host("127.0.0.2")
    clocks.store.error = TransientError("away")
    clocks.failed(host, 0.2)

    async def run():
        begin = time.monotonic()

        async def ask():
            async with clocks.turn(host):
                return time.monotonic() - begin

        asked = asyncio.ensure_future(ask())
        await asyncio.sleep(0.4)
        assert not asked.done()
        async with clocks.turn(other):
            pass
        clocks.store.error = None
        async with asyncio.timeout(10):
            assert 0.4 < await asked < 4
        assert clocks.ready(host)

    asyncio.run(run())


def test_a_visit_waiting_for_a_stored_pause_is_postponed_without_delaying_others(attempt):
    clocks = attempt()
    host, other = clocks.host("example.com"), clocks.host("other.example")
    clocks.store.error = TransientError("away")
    clocks.failed(host, 4.0)
    begin = time.monotonic()
    while clocks.cooldowns.recheck_s < 1:
        time.sleep(0.005)
    assert not clocks.ready(host)
    assert remaining_s(host) > 4.5
    assert clocks.ready(other)
    assert time.monotonic() - begin < 1


def test_a_pause_not_yet_in_the_store_is_read_from_local_disk(attempt):
    first = attempt()
    first.store.error = TransientError("away")
    first.failed(first.host("example.com"), 50.0)
    first.cooldowns.close()
    first.store.error = None
    assert remaining_s(attempt().host("example.com")) > 49


def test_a_truncated_journal_is_read_up_to_its_end(attempt, tmp_path):
    first = attempt()
    first.failed(first.host("example.com"), 50.0)
    first.failed(first.host("other.example"), 50.0)
    wait_stored(first, first.host("other.example"))
    (journal,) = tmp_path.rglob("*.jsonl")
    journal.write_bytes(journal.read_bytes()[:-9])
    for path in tmp_path.rglob(".clocks/*.json"):
        path.unlink()
    second = attempt()
    assert remaining_s(second.host("example.com")) > 49
    assert remaining_s(second.host("other.example")) <= 3


def test_a_store_that_refuses_pauses_ends_the_task(attempt):
    clocks = attempt()
    clocks.store.error = StoreError("no right to write", "grant it")
    host = clocks.host("example.com")
    clocks.failed(host, 50.0)
    with pytest.raises(StoreError, match="no right"):
        wait_stored(clocks, host)
    with pytest.raises(StoreError, match="no right"):
        clocks.ready(host)


def test_short_pauses_are_not_stored_and_a_growing_delay_is_stored_a_few_times(attempt):
    clocks = attempt()
    host = clocks.host("example.com")
    before = clocks.store.writes
    for _ in range(50):
        clocks.start_pause(host)
    clocks.failed(host, 2.0)
    assert not clocks.cooldowns.is_unsaved("example.com")
    for number in range(300):
        host.latency_s = 1.0 + number / 100
        clocks.start_pause(host)
        wait_stored(clocks, host)
    assert clocks.store.writes - before == 4


@pytest.mark.parametrize(
    ("now", "seconds"),
    [
        (1000.0, 50.0),
        (1030.0, 20.0),
        (1060.0, 0.0),
        (10.0, 50.0),  # the clock was set back since
        (9e9, 0.0),  # or forward
    ],
)
def test_a_clock_change_makes_no_pause_longer(now, seconds):
    assert Cooldown("h", 0.0, until=1050.0, pause_s=50.0).remaining_s(now) == seconds
    assert Cooldown("h", 5.0, until=1050.0, pause_s=50.0).remaining_s(now) == max(5.0, seconds)


def test_retry_after_of_the_last_cycle_applies_in_the_next(attempt):
    later = datetime.now(UTC) + timedelta(seconds=40)
    seeds = [
        HostClock("busy.example", 0.0, 0.5, 4, later),
        HostClock("long.example", 0.0, None, 1, later + timedelta(hours=1)),
        HostClock("slow.example", 100.0, None, 0, later + timedelta(seconds=55)),
        HostClock("far.example", 0.0, None, 0, later + timedelta(days=400)),
        HostClock("free.example", 0.0, 3.0, 0, datetime.now(UTC) - timedelta(days=1)),
    ]
    clocks = attempt(seeds=seeds)
    busy = clocks.host("busy.example")
    assert 39 < remaining_s(busy) <= 40
    assert (busy.latency_s, busy.failures, busy.skip_reason) == (0.5, 2, "")
    assert clocks.host("long.example").skip_reason
    assert clocks.host("slow.example").skip_reason == ""
    assert 86_000 < remaining_s(clocks.host("far.example")) <= 86_400
    assert remaining_s(clocks.host("free.example")) <= 0
    assert clocks.host("free.example").delay(2.0) == 6.0


def test_the_host_table_has_running_pauses_including_those_of_killed_attempts(attempt):
    first = attempt()
    first.failed(first.host("gone.example"), 3600.0)
    wait_stored(first, first.host("gone.example"))
    second = attempt(elsewhere=True, seeds=[HostClock("unasked.example", crawl_delay_s=7.0)])
    asked = second.host("asked.example")
    asked.crawl_delay_s, asked.latency_s, asked.next_at = 5.0, 0.25, 0.0
    second.host("unasked.example")
    rows = {row.authority: row for row in second.rows()}
    assert list(rows) == ["asked.example", "gone.example", "unasked.example"]
    assert rows["asked.example"] == HostClock("asked.example", 5.0, 0.25, 0, None)
    assert 3590 < (rows["gone.example"].backoff_until - datetime.now(UTC)).total_seconds() <= 3600
    assert rows["unasked.example"].crawl_delay_s == 7.0
