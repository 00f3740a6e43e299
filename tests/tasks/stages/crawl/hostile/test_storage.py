"""Group 11: a full disk, and a stale attempt. Kills: test_fetch_resume."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.soak import soak_but
from tests.tasks.stages.crawl.cycle import pages_of, segment_in
from tests.tasks.stages.crawl.site import Site, linked

pytestmark = pytest.mark.real_time

PROGRAM = Path(__file__).with_name("run_crawl.py")
ROOT = Path(__file__).parents[5]


def start(folder, site, largest_file=None, **settings):
    """Starts a crawl; `largest_file` is the size in bytes at which the disk is full."""
    config = {"seeds": [site.url()], "allow_loopback": True, "delay_s": 0.02, "latency_factor": 0.0, "partitions": 1}
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=(lambda: _full_at(largest_file)) if largest_file else None,
    )
    json.dump({**config, "warc_pages_per_file": 4, **settings}, process.stdin)
    process.stdin.close()
    process.stdin = None
    return process


def _full_at(size):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_a_full_disk_is_an_error_and_loses_no_page(tmp_path):
    (tmp_path / "full").mkdir()
    pages = linked(30)
    with Site(pages) as site:
        # Space for the fetch list and the first file, not for one of 25 long pages.
        site.pages = {path: text + "<!--" + os.urandom(6000).hex() + "-->" for path, text in pages.items()}
        full = start(tmp_path / "full", site, largest_file=60_000, warc_pages_per_file=25)
        _, stderr = full.communicate(timeout=60)
        assert full.returncode != 0
        assert segment_in(tmp_path / "full") is None, "a crawl that could not be stored is no crawl"
        assert "File too large" in stderr or "space" in stderr, stderr[-2000:]
        again = start(tmp_path / "full", site, warc_pages_per_file=25)
        _, stderr = again.communicate(timeout=60)
        assert again.returncode == 0, stderr[-2000:]
    segment = segment_in(tmp_path / "full")
    assert set(pages_of(segment)) == {site.url(path) for path in pages}
    assert segment.verify() == []


@pytest.mark.parametrize("asleep_after", soak_but({0}, [3, 15]))
def test_a_resumed_stale_attempt_changes_nothing(tmp_path, asleep_after):
    with Site(linked(30)) as site:
        late = start(tmp_path, site)
        while len(site.requests) < asleep_after and late.poll() is None:
            time.sleep(0.005)
        late.send_signal(signal.SIGSTOP)
        try:
            after = start(tmp_path, site)
            _, stderr = after.communicate(timeout=60)
        finally:
            late.send_signal(signal.SIGCONT)
        late.communicate(timeout=60)
        if after.returncode != 0:
            assert "TransientError" in stderr, stderr[-2000:]
            assert start(tmp_path, site).wait(60) == 0
    segment = segment_in(tmp_path)
    assert len(pages_of(segment)) == 30
    assert segment.verify() == []
    rows = [row["url"] for path in segment.files("log/") for row in segment.table(path).to_pylist()]
    assert len(rows) == len(set(rows))
