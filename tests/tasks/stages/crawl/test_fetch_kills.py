"""A fetch killed at any moment loses no URL, stores none twice, and ends like an undisturbed one.

Twenty kills with SIGKILL at random moments (seeded): after a number of responses of the site, during an upload to
the store, or a time after the start; some tasks are killed again while they resume.
Two rounds, one on S3, always run; the others are soak: run them after a change of fetch, its buffer or the
store.
"""

import io
import random
import signal
import time

import pytest
from warcio.archiveiterator import ArchiveIterator

from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.storage.fetchlog import CAPTURED
from tests.s3_server import Rule
from tests.soak import soak_but
from tests.tasks.stages.crawl import cycle
from tests.tasks.stages.crawl.site import Site, linked

PAGES = 60
PER_FILE = 5


def moments():
    """Returns for every round: on S3?, the kills (event to wait for, its count), seconds from then to the kill."""
    chance = random.Random(20261121)
    rounds = []
    for number in range(15):
        on_s3 = number % 3 == 2
        chained = number % 5 == 0
        what, most = ("uploads", 5 * PAGES // PER_FILE) if on_s3 else ("answers", PAGES)
        kills = [(what, chance.randint(1, most // 4 if chained else most))]
        if chained:
            # Counts that are certainly reached: on S3 responses may be far ahead of uploads.
            kills.append((what, chance.randint(1, 8)))
        if number % 10 == 5:
            kills.append(("seconds", chance.uniform(0.3, 1.2)))
        if number == 10:
            kills.append(("answers", 3))
        rounds.append((on_s3, kills, chance.uniform(0.0, 0.03)))
    assert sum(len(kills) for _, kills, _ in rounds) == 20
    return rounds


@pytest.fixture(scope="module")
def site():
    pages = linked(PAGES)
    pages[f"/{PAGES - 1}"] = None  # a page that is not there
    with Site(pages) as site:
        yield site


@pytest.fixture(scope="module")
def config(site):
    return CrawlConfig(
        seeds=(site.url(),),
        allow_loopback=True,
        delay_s=0.02,
        latency_factor=0.0,
        partitions=1,
        warc_pages_per_file=PER_FILE,
    )


@pytest.fixture(scope="module")
def whole(site, config, tmp_path_factory):
    """The segment of an undisturbed fetch, and its crawl DB."""
    folder = tmp_path_factory.mktemp("whole")
    segment = cycle.fetch(folder, config)
    return segment, cycle.crawl_db(folder, config)


def kill(folder, config, site, uploads, what, how_many, later):
    """Starts a fetch and kills it; returns whether it was still running."""
    base = {"answers": len(site.requests), "uploads": uploads(), "seconds": time.monotonic()}
    count = {"answers": lambda: len(site.requests), "uploads": uploads, "seconds": time.monotonic}[what]
    process = cycle.start(folder, config)
    deadline = time.monotonic() + 60
    while process.poll() is None and count() - base[what] < how_many:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    time.sleep(later)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(("on_s3", "kills", "later"), soak_but([1, 2], moments()))
def test_a_fetch_killed_at_any_moment_ends_like_an_undisturbed_one(
    request, site, config, whole, tmp_path, on_s3, kills, later
):
    folder = tmp_path
    uploads = int
    if on_s3:
        s3 = request.getfixturevalue("s3")
        folder = f"s3://sluice/{tmp_path.name}"
    cycle.cycle(folder, config)
    if on_s3:
        s3.faults.rules = [Rule("slow", method="PUT", times=10_000, delay_s=0.03)]
        uploads = lambda: s3.faults.told["slow"]  # noqa: E731
    for what, how_many in kills:
        assert kill(folder, config, site, uploads, what, how_many, later), "it had ended before"
        assert cycle.segment_in(folder) is None
    if on_s3:
        s3.faults.calm()
    segment = cycle.fetch(folder, config)
    left_alone, crawl_db = whole
    assert cycle.pages_of(segment) == cycle.pages_of(left_alone)
    assert cycle.logged(segment) == cycle.logged(left_alone)
    assert_sound(segment)
    assert cycle.crawl_db(folder, config) == crawl_db


def assert_sound(segment):
    """Checks every file against its record, every WARC file for completeness, and every capture at its offset."""
    assert segment.verify() == []
    rows = [row for path in segment.files("log/") for row in segment.table(path).to_pylist()]
    assert segment.record.rows_in == len(rows) == PAGES
    assert segment.record.rows_out == len([row for row in rows if row["status"] in CAPTURED]) == PAGES - 1
    places = {}
    for path in segment.files("warc/"):
        records = ArchiveIterator(io.BytesIO(segment.read(path)), check_digests="raise")
        for record in records:
            record.content_stream().read()
            if record.rec_type == "response":
                name = record.rec_headers.get_header("WARC-Record-ID")[1:-1]
                places[name] = (path, records.get_record_offset())
    assert places == {row["record_id"]: (row["warc_file"], row["warc_offset"]) for row in rows if row["warc_file"]}
    lines = [line for path in segment.files("index/") for line in segment.read(path).decode().splitlines()]
    assert len(lines) == len(places)
    # The killed attempts leave no files.
    recorded = {f"{segment.address.path}/{path}" for path in segment.files()}
    left = set(segment.store.list(segment.address.path, unfinished=True)) - recorded
    assert left == {f"{segment.address.path}/{path}" for path in segment.record_paths}
