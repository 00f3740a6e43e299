"""Runs crawl cycles stage by stage, with the inputs of the catalogue, and single fetches. Not a test module.

Fetches run in this process, or in child processes for tests that kill them.
"""

import os
import subprocess
import sys
from collections import defaultdict
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path

import pyarrow as pa

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.queries import connect
from tasks.core.store import Store
from tasks.formats.warc import archive
from tasks.formats.web.url import key
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.generate import attach_due_times
from tasks.stages.crawl.inject import SEEDS
from tasks.stages.crawl.storage import crawldb, duck
from tasks.stages.crawl.storage.fetchlog import LinkRows
from tests.conftest import run_stage_in


class Cycle:
    """The artifacts of one cycle; those after the fetch are made when they are first read.

    Attributes:
        seeds, ranks, fetchlists, segments, rendered, crawldb, warc: artifacts; lists by partition where mapped.
    """

    segments = None

    def __init__(self, run_stage, config, version="dev", previous=None):
        self._run, self.config, self.version, self.previous = run_stage, config, version, previous
        earlier = {"crawldb": previous.crawldb, "previous": previous.ranks} if previous else {}
        self.seeds = self.stage("inject")
        self.ranks = self.stage("rank", earlier)
        self.members = self.seeds.record.members
        self.fetchlists = [
            self.stage("generate", {"seeds": self.seeds, "ranks": self.ranks, **self._previous(index)}, member)
            for index, member in enumerate(self.members)
        ]
        self.rendered = []

    @cached_property
    def crawldb(self):
        return [self.update(index) for index in range(len(self.members))]

    @cached_property
    def warc(self):
        inputs = {"segments": self.segments, "rendered": self.rendered, "crawldb": self.crawldb}
        return self.stage("publish", inputs)

    def fetch_all(self):
        self.segments = [self.stage("fetch", self.fetch_inputs(i), name) for i, name in enumerate(self.members)]
        return self

    def fetch_inputs(self, index):
        """Returns the inputs of the fetch of one partition."""
        return {
            "seeds": self.seeds,
            "fetchlist": self.fetchlists[index],
            "fetchlists": self.fetchlists,
            **self._previous(index),
        }

    def update(self, index):
        inputs = {
            "seeds": self.seeds,
            "ranks": self.ranks,
            "fetchlist": self.fetchlists[index],
            "segments": self.segments,
            "rendered": self.rendered,
            **self._previous(index),
        }
        return self.stage("update", inputs, self.members[index])

    def stage(self, name, inputs=None, member="", **options):
        return self._run(
            f"tasks.stages.crawl.{name}", self.config, inputs or {}, member=member, version=self.version, **options
        )

    def urls(self):
        """Returns the rows of the crawl DB by URL."""
        return {row["url"]: row for one in self.crawldb for row in one.table("urls.parquet").to_pylist()}

    def log(self):
        """Returns the rows of the fetch logs by URL."""
        rows = [row for one in self.segments for path in one.files("log/") for row in one.table(path).to_pylist()]
        return {row["url"]: row for row in rows}

    def _previous(self, index):
        return {"previous": self.previous.crawldb[index]} if self.previous else {}


ROOT = Path(__file__).parents[4]


def cycle(folder, config):
    """Runs the stages before fetch in the store `folder`, unless they are done."""
    return Cycle(partial(run_stage_in, folder), config)


def fetch(folder, config, member="p0"):
    """Runs one fetch in this process; returns its segment."""
    run = cycle(folder, config)
    return run.stage("fetch", run.fetch_inputs(run.members.index(member)), member)


def crawl_db(folder, config):
    """Updates the crawl DB from finished fetches; returns its rows by URL, without times, WARC paths and record ids."""
    run = cycle(folder, config)
    run.fetch_all()
    varying = {"first_seen", "last_fetch", "next_due", "captured_at", "record_id", "warc_path", "warc_offset"}
    return {url: {name: row[name] for name in row if name not in varying} for url, row in run.urls().items()}


def start(folder, config, member="p0", **environment):
    """Starts one fetch in a child process."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.tasks.stages.crawl.cycle", str(folder), config.model_dump_json(), member],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stderr=subprocess.PIPE,
    )


def segment_in(folder, member="p0"):
    """Returns the segment of a fetch, or None if it is not committed."""
    return Artifact.find(Store(str(folder)), ArtifactId(f"test/tasks-stages-crawl-fetch/{member}", "dev"))


def pages_of(segment):
    """Returns the payload digests of a segment's captures, by URL; fails if a URL was captured twice."""
    digests = {}
    for path in segment.files("warc/"):
        with segment.open(path) as file:
            for capture in archive.captures(file):
                assert capture.url not in digests, "captured twice"
                digests[capture.url] = capture.payload_digest
    return digests


def links_table(outcomes, partitions):
    """Returns the links of outcomes as a table."""
    links = LinkRows()
    for outcome in outcomes:
        links.add(outcome)
    return links.table(outcomes, partitions)


def again_since(policy, *urls):
    """Returns the times since which the hosts file requests known URLs again, or None, as generate computes them."""
    due = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [{**dict.fromkeys(crawldb.URLS.names), "key": key(url), "url": url, "next_due": due} for url in urls]
    with connect(".") as connection:
        connection.register("previous", pa.Table.from_pylist(rows, schema=crawldb.URLS))
        duck.view(connection, "seeds", [], SEEDS)
        attach_due_times(connection, policy, datetime(2030, 1, 1, tzinfo=UTC))
        times = {row["url"]: row["again_since"] for row in duck.rows(connection, "SELECT * FROM timed")}
    return [times[url] for url in urls]


def logged(segment):
    """Returns status, depth and links, by URL; fails if a URL was logged twice."""
    outcomes = {}
    for path in segment.files("log/"):
        rows = segment.table(path).to_pylist()
        links = defaultdict(list)
        for row in segment.table(path.replace("log/", "links/")).to_pylist():
            for number in row["sources"]:
                links[number].append((row["url"], row["redirect"]))
        for number, row in enumerate(rows):
            assert row["url"] not in outcomes, "logged twice"
            outcomes[row["url"]] = (row["status"], row["depth"], sorted(links[number]))
    return outcomes


if __name__ == "__main__":
    fetch(sys.argv[1], CrawlConfig.model_validate_json(sys.argv[2]), sys.argv[3])
