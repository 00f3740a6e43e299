"""A fetch that is killed, stopped, duplicated, or without its store for a while ends like an undisturbed one."""

import os
import signal
import threading
import time

import pytest

from tasks.core.errors import TransientError
from tasks.core.store import Store
from tasks.stages.crawl.config import CrawlConfig
from tests.s3_server import Rule
from tests.soak import soak_but
from tests.tasks.stages.crawl import cycle
from tests.tasks.stages.crawl.cycle import logged, pages_of, segment_in
from tests.tasks.stages.crawl.site import Site, linked


def config_for(site, **settings):
    base = {"seeds": (site.url(),), "allow_loopback": True, "delay_s": 0.02, "latency_factor": 0.0, "partitions": 1}
    return CrawlConfig(**{**base, "warc_pages_per_file": 4, **settings})


def uninterrupted(folder, config):
    cycle.cycle(folder, config)
    return cycle.fetch(folder, config)


def wait_until(condition, process=None):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        assert process is None or process.poll() is None, process.communicate()[1].decode()[-2000:]
        time.sleep(0.005)


@pytest.mark.parametrize("after", soak_but([1], [6, 15, 27]))
def test_a_killed_fetch_ends_with_the_same_captures_as_an_undisturbed_one(tmp_path, after):
    folder = tmp_path / "killed"
    with Site(linked(30)) as site:
        config = config_for(site)
        whole = uninterrupted(tmp_path / "whole", config)
        cycle.cycle(folder, config)
        site.requests.clear()
        process = cycle.start(folder, config)
        wait_until(lambda: len(site.requests) >= after, process)
        process.kill()
        assert process.wait(20) == -signal.SIGKILL
        assert segment_in(folder) is None
        before = len(site.requests)
        resumed = cycle.fetch(folder, config)
        again = len(site.requests) - before
    assert pages_of(resumed) == pages_of(whole)
    assert logged(resumed) == logged(whole)
    # At most the open file (4 pages), robots.txt, tdmrep.json and running requests are requested again.
    assert again <= 32 - before + 4 + 3
    hidden = [path for path in resumed.store.list(resumed.address.path, unfinished=True) if "/." in path]
    assert hidden == sorted(f"{resumed.address.path}/{path}" for path in resumed.record_paths)


def test_a_stopped_fetch_commits_its_open_file(tmp_path):
    folder = tmp_path / "stopped"
    with Site(linked(30)) as site:
        config = config_for(site, warc_pages_per_file=1000)
        whole = uninterrupted(tmp_path / "whole", config)
        cycle.cycle(folder, config)
        site.requests.clear()
        process = cycle.start(folder, config)
        wait_until(lambda: len(site.requests) >= 12, process)
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=20)
        assert process.returncode != 0
        assert b"TransientError" in stderr
        before = len(site.requests)
        resumed = cycle.fetch(folder, config)
        assert len(site.requests) - before == 32 - before + 2  # robots.txt and tdmrep.json again, no page
    assert pages_of(resumed) == pages_of(whole)
    assert len([part for part in resumed.parts if part.name.startswith("warc-")]) == 2


def test_a_concurrent_second_attempt_loses_nothing(tmp_path):
    folder = tmp_path / "doubled"
    with Site(linked(30)) as site:
        config = config_for(site)
        whole = uninterrupted(tmp_path / "whole", config)
        cycle.cycle(folder, config)
        attempts = [cycle.start(folder, config) for _ in range(2)]
        outputs = [attempt.communicate(timeout=60)[1] for attempt in attempts]
        codes = [attempt.returncode for attempt in attempts]
        assert 0 in codes or segment_in(folder) is None
        for code, text in zip(codes, outputs, strict=True):
            assert not code or "TransientError" in text.decode(), text.decode()
        try:
            cycle.fetch(folder, config)
        except TransientError:
            pytest.fail("nothing else is at work any more")
    final = segment_in(folder)
    assert pages_of(final) == pages_of(whole)
    assert logged(final) == logged(whole)
    assert final.verify() == []


# --- store outages


@pytest.fixture
def alert(monkeypatch):
    """Shortens the times until an outage is reported, and until retries."""
    monkeypatch.setattr("tasks.stages.crawl.storage.spool._SLOW_S", 0.3)
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.01)


def start_outage(s3):
    """Makes the server reject all further uploads."""
    s3.faults.rules = [Rule("503", method="PUT", times=1_000_000)]


@pytest.mark.usefixtures("alert")
def test_a_fetch_continues_during_a_store_outage(s3, tmp_path, caplog):
    caplog.set_level("INFO", logger="sluice")
    folder = f"s3://sluice/{tmp_path.name}"
    with Site(linked(60)) as site:
        config = config_for(site)
        whole = uninterrupted(tmp_path / "whole", config)
        cycle.cycle(folder, config)
        site.requests.clear()

        def outage():
            wait_until(lambda: len(site.requests) >= 8)
            start_outage(s3)
            wait_until(lambda: len(site.requests) >= 50 and "does not accept captures" in caplog.text)
            s3.faults.calm()

        thread = threading.Thread(target=outage)
        thread.start()
        segment = cycle.fetch(folder, config)
        thread.join()
    assert pages_of(segment) == pages_of(whole)
    assert logged(segment) == logged(whole)
    assert segment.verify() == []
    alerts = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert any(
        "does not accept captures" in one and f"the store {folder}" in one and "space for" in one for one in alerts
    )
    assert any("has accepted all buffered captures" in one for one in alerts)
    assert segment.record.metrics["store_outages"] >= 1
    assert segment.record.metrics["buffered_bytes"] > 0


@pytest.mark.usefixtures("alert")
def test_a_fetch_pauses_at_a_full_buffer_and_continues_when_the_store_is_back(s3, tmp_path, caplog):
    folder = f"s3://sluice/{tmp_path.name}"
    pages = linked(40)
    pages |= {path: f"{page}<!--{os.urandom(40_000).hex()}-->" for path, page in pages.items()}
    with Site(pages) as site:
        config = config_for(site, buffer_bytes=1 << 20, warc_pages_per_file=3)
        whole = uninterrupted(tmp_path / "whole", config)
        cycle.cycle(folder, config)
        caplog.clear()  # on a slow disk the undisturbed run may also have paused
        site.requests.clear()
        stalled = []

        def outage():
            wait_until(lambda: site.requests)
            start_outage(s3)
            wait_until(lambda: "fetching pauses, the buffer is full" in caplog.text)
            time.sleep(0.2)
            stalled.append(len(site.requests))
            time.sleep(1.0)
            stalled.append(len(site.requests))
            s3.faults.calm()

        thread = threading.Thread(target=outage)
        thread.start()
        segment = cycle.fetch(folder, config)
        thread.join()
    assert stalled[0] == stalled[1] < 42
    assert pages_of(segment) == pages_of(whole)
    # The limit, the open file and the one running response.
    assert segment.record.metrics["buffered_bytes"] < (1 << 20) + 4 * 50_000


def test_a_kill_while_captures_wait_for_the_store_repeats_no_request(s3, tmp_path):
    folder = f"s3://sluice/{tmp_path.name}"
    with Site(linked(30)) as site:
        config = config_for(site)
        whole = uninterrupted(tmp_path / "whole", config)
        cycle.cycle(folder, config)
        site.requests.clear()
        process = cycle.start(folder, config)
        wait_until(lambda: site.requests, process)
        start_outage(s3)
        wait_until(lambda: len(site.requests) >= 29, process)
        process.kill()
        process.communicate()
        before = len(site.requests)
        stored = [path for path in Store(folder).list("test/tasks-stages-crawl-fetch/p0/dev/.parts")]
        assert len(stored) <= 2
        s3.faults.calm()
        resumed = cycle.fetch(folder, config)
        again = len(site.requests) - before
    assert pages_of(resumed) == pages_of(whole)
    assert logged(resumed) == logged(whole)
    assert again <= 32 - before + 4 + 3


@pytest.mark.soak
def test_a_fetch_stopped_during_a_store_outage_leaves_its_captures_to_the_next_attempt(s3, tmp_path):
    folder = f"s3://sluice/{tmp_path.name}"
    with Site(linked(30)) as site:
        config = config_for(site)
        whole = uninterrupted(tmp_path / "whole", config)
        cycle.cycle(folder, config)
        site.requests.clear()
        process = cycle.start(folder, config)
        wait_until(lambda: site.requests, process)
        start_outage(s3)
        wait_until(lambda: len(site.requests) >= 16, process)
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=40)
        assert process.returncode != 0
        assert b"has not accepted the last captures" in stderr
        before = len(site.requests)
        s3.faults.calm()
        resumed = cycle.fetch(folder, config)
        assert len(site.requests) - before == 32 - before + 2  # robots.txt and tdmrep.json again, no page
    assert pages_of(resumed) == pages_of(whole)
