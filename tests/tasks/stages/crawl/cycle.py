"""One crawl cycle, stage by stage, as the catalogue binds them, and single fetches. Not a test module.

Fetches run in this process, or as processes of their own for tests that kill them.
"""

import os
import subprocess
import sys
from collections import defaultdict
from functools import partial
from pathlib import Path

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.store import Store
from tasks.formats.warc import archive
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.storage.fetchlog import LinkRows
from tests.conftest import run_stage_in


class Cycle:
    """The artifacts of one cycle.

    Attributes:
        seeds, ranks, fetchlists, segments, rendered, crawldb, warc: artifacts; lists by partition where mapped.
    """

    def __init__(self, run_stage, config, version="dev", previous=None):
        self._run, self.config, self.version, self.previous = run_stage, config, version, previous
        earlier = {"crawldb": previous.crawldb, "previous": previous.ranks} if previous else {}
        self.seeds = self.stage("inject")
        self.ranks = self.stage("rank", earlier)
        self.members = self.seeds.record.members
        self.fetchlists = [
            self.stage("generate", {"seeds": self.seeds, "ranks": self.ranks, **self._before(index)}, member)
            for index, member in enumerate(self.members)
        ]
        self.segments = self.rendered = self.crawldb = self.warc = None

    def finish(self):
        self.fetch_all()
        self.rendered = []
        self.crawldb = [self.update(index) for index in range(len(self.members))]
        inputs = {"segments": self.segments, "rendered": self.rendered, "crawldb": self.crawldb}
        self.warc = self.stage("publish", inputs)
        return self

    def fetch_all(self):
        self.segments = [self.stage("fetch", self.fetch_inputs(i), name) for i, name in enumerate(self.members)]

    def fetch_inputs(self, index):
        """What the fetch of one partition reads."""
        return {
            "seeds": self.seeds,
            "fetchlist": self.fetchlists[index],
            "fetchlists": self.fetchlists,
            **self._before(index),
        }

    def update(self, index):
        inputs = {
            "seeds": self.seeds,
            "ranks": self.ranks,
            "fetchlist": self.fetchlists[index],
            "segments": self.segments,
            "rendered": self.rendered,
            **self._before(index),
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

    def _before(self, index):
        return {"previous": self.previous.crawldb[index]} if self.previous else {}


ROOT = Path(__file__).parents[4]


def cycle(folder, config):
    """Runs the stages before fetch into the store `folder`, unless they are done."""
    return Cycle(partial(run_stage_in, folder), config)


def fetch(folder, config, member="p0"):
    """Runs one fetch in this process; returns its segment."""
    at = cycle(folder, config)
    return at.stage("fetch", at.fetch_inputs(at.members.index(member)), member)


def crawl_db(folder, config):
    """Updates the crawl DB from fetches that are done; returns its rows by URL without times, places and random ids."""
    at = cycle(folder, config)
    at.fetch_all()
    at.rendered = []
    at.crawldb = [at.update(index) for index in range(len(at.members))]
    varying = {"first_seen", "last_fetch", "next_due", "captured_at", "record_id", "warc_path", "warc_offset"}
    return {url: {name: row[name] for name in row if name not in varying} for url, row in at.urls().items()}


def start(folder, config, member="p0", **environment):
    """Starts one fetch as a process."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.tasks.stages.crawl.cycle", str(folder), config.model_dump_json(), member],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stderr=subprocess.PIPE,
    )


def segment_in(folder, member="p0"):
    """Returns the segment of a fetch, or None while it is not committed."""
    return Artifact.find(Store(str(folder)), ArtifactId(f"test/tasks-stages-crawl-fetch/{member}", "dev"))


def pages_of(segment):
    """Returns the payload digests of a segment's captures by URL; none may be there twice."""
    found = {}
    for path in segment.files("warc/"):
        with segment.open(path) as file:
            for capture in archive.captures(file):
                assert capture.url not in found, "captured twice"
                found[capture.url] = capture.payload_digest
    return found


def links_table(outcomes, partitions):
    """Returns the links of outcomes as a table."""
    links = LinkRows()
    for outcome in outcomes:
        links.add(outcome)
    return links.table(outcomes, partitions)


def logged(segment):
    """Returns status, depth and links by URL; none may be logged twice."""
    told = {}
    for path in segment.files("log/"):
        rows = segment.table(path).to_pylist()
        links = defaultdict(list)
        for row in segment.table(path.replace("log/", "links/")).to_pylist():
            for number in row["sources"]:
                links[number].append((row["url"], row["redirect"]))
        for number, row in enumerate(rows):
            assert row["url"] not in told, "logged twice"
            told[row["url"]] = (row["status"], row["depth"], sorted(links[number]))
    return told


if __name__ == "__main__":
    fetch(sys.argv[1], CrawlConfig.model_validate_json(sys.argv[2]), sys.argv[3])
