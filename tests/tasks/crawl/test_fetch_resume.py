"""A fetch that is killed, told to stop or doubled ends with the captures of one that was left alone."""

import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest
from crawl_site import Site, linked

from tasks import archive
from tasks.artifact import Address, Artifact
from tasks.crawl.config import CrawlConfig
from tasks.errors import TransientError
from tasks.store import Store

TESTS = Path(__file__).parents[2]
FETCH = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from conftest import run_stage_in
from tasks.artifact import Address, Artifact
from tasks.crawl.config import CrawlConfig
from tasks.store import Store
fetchlist = Artifact.open_at(Store({folder!r}), Address("test/tasks-crawl-generate", "dev"))
config = CrawlConfig.model_validate_json({config!r})
run_stage_in(Path({folder!r}), "tasks.crawl.fetch", config, {{"fetchlist": fetchlist}}, member="p0")
"""


def config_for(site, **settings):
    base = {"seeds": (site.url(),), "allow_loopback": True, "delay_s": 0.02, "latency_factor": 0.0, "partitions": 1}
    return CrawlConfig(**{**base, "warc_pages_per_file": 4, **settings})


def start(folder, config):
    script = FETCH.format(tests=str(TESTS), folder=str(folder), config=config.model_dump_json())
    root = str(TESTS.parent)
    return subprocess.Popen(
        [sys.executable, "-c", script], cwd=root, env={**os.environ, "PYTHONPATH": root}, stderr=subprocess.PIPE
    )


def pages_of(segment):
    found = {}
    for path in segment.files("warc/"):
        with segment.open(path) as file:
            for capture in archive.captures(file):
                assert capture.url not in found, "captured twice"
                found[capture.url] = capture.payload_digest
    return found


def logged(segment):
    rows = [row for path in segment.files("log/") for row in segment.table(path).to_pylist()]
    assert len({row["url"] for row in rows}) == len(rows), "logged twice"
    links = defaultdict(list)
    for path in segment.files("links/"):
        for row in segment.table(path).to_pylist():
            links[row["source"]].append((row["url"], row["depth"], row["redirect"]))
    return {row["url"]: (row["status"], row["depth"], links[row["key"]]) for row in rows}


def segment_in(folder):
    return Artifact.find(Store(str(folder)), Address("test/tasks-crawl-fetch/p0", "dev"))


def undisturbed(run_stage, config):
    fetchlist = run_stage("tasks.crawl.generate", config)
    whole = run_stage("tasks.crawl.fetch", config, {"fetchlist": fetchlist}, member="p0", kind="whole")
    return fetchlist, whole


@pytest.mark.parametrize("after", [6, 15, 27])
def test_a_killed_fetch_ends_with_the_captures_of_an_undisturbed_one(run_stage, tmp_path, after):
    with Site(linked(30)) as site:
        config = config_for(site)
        fetchlist, whole = undisturbed(run_stage, config)
        site.requests.clear()
        process = start(tmp_path, config)
        while len(site.requests) < after and process.poll() is None:
            time.sleep(0.005)
        process.kill()
        assert process.wait(20) == -signal.SIGKILL
        assert segment_in(tmp_path) is None
        before = len(site.requests)
        resumed = run_stage("tasks.crawl.fetch", config, {"fetchlist": fetchlist}, member="p0")
        again = len(site.requests) - before
    assert pages_of(resumed) == pages_of(whole)
    assert logged(resumed) == logged(whole)
    # At most the open file (4 pages) and what was under way is asked for a second time.
    assert again <= 31 - before + 4 + 2
    assert not [path for path in Store(str(tmp_path)).list(resumed.address.path) if "/.parts" in path]


def test_a_fetch_told_to_stop_commits_its_open_file(run_stage, tmp_path):
    with Site(linked(30)) as site:
        config = config_for(site, warc_pages_per_file=1000)
        fetchlist, whole = undisturbed(run_stage, config)
        site.requests.clear()
        process = start(tmp_path, config)
        while len(site.requests) < 12 and process.poll() is None:
            time.sleep(0.005)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=20)
        assert process.returncode != 0
        assert b"TransientError" in said
        before = len(site.requests)
        resumed = run_stage("tasks.crawl.fetch", config, {"fetchlist": fetchlist}, member="p0")
        assert len(site.requests) - before == 31 - before + 1  # robots.txt again, no page
    assert pages_of(resumed) == pages_of(whole)
    assert len(resumed.parts) == 2


def test_a_second_attempt_at_the_same_time_loses_nothing(run_stage, tmp_path):
    with Site(linked(30)) as site:
        config = config_for(site)
        fetchlist, whole = undisturbed(run_stage, config)
        attempts = [start(tmp_path, config) for _ in range(2)]
        codes = [attempt.wait(40) for attempt in attempts]
        assert 0 in codes or segment_in(tmp_path) is None
        try:
            run_stage("tasks.crawl.fetch", config, {"fetchlist": fetchlist}, member="p0")
        except TransientError:
            pytest.fail("nothing else is at work any more")
    final = segment_in(tmp_path)
    assert pages_of(final) == pages_of(whole)
    assert logged(final) == logged(whole)
    assert final.verify() == []
