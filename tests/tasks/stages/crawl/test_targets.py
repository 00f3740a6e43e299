"""Contract of the targets of a segment: what update needs of all links, in files of their own for each partition."""

import asyncio
import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.stage import Output, Report
from tasks.core.store import Store
from tasks.formats.web.domain import link
from tasks.stages.crawl.config import CrawlConfig
from tasks.stages.crawl.frontier.scheduler import Scheduler
from tasks.stages.crawl.storage import targets
from tasks.stages.crawl.storage.fetchlog import SITEMAP, Outcome
from tasks.stages.crawl.storage.segment import LINK
from tasks.stages.crawl.storage.targets import write_targets
from tests.tasks.stages.crawl import cycle
from tests.tasks.stages.crawl.cycle import links_table
from tests.tasks.stages.crawl.site import Site, linked

BEGIN = datetime(2026, 11, 1, tzinfo=UTC)
PARTITIONS, MOST = 4, 3


def outcome(number: int) -> Outcome:
    """A page or a dated sitemap, with links to eight domains; or a page too deep, with one link to another."""
    deep = number % 8 == 7
    linked = (
        [link(f"https://deep.example/{number}")]
        if deep
        else [link(f"https://d{(number * 3 + step) % 8}.example/{(number + step) % 5}") for step in range(6)]
    )
    dated = tuple((to, BEGIN - timedelta(days=number % 7)) for to in linked) if number % 3 == 0 and not deep else ()
    return Outcome(
        key=hashlib.md5(b"%d" % number).digest(),
        url=f"https://d0.example/from/{number}",
        host="d0.example",
        depth=MOST if deep else number % MOST,
        status="fetch_success",
        kind=SITEMAP if dated else "page",
        outlinks=tuple(linked),
        lastmods=dated,
        fetched_at=BEGIN + timedelta(seconds=number),
    )


def segment(folder: Path, files: int, pages: int = 24) -> Artifact:
    """A segment with the links of the same pages in so many files."""
    output = Output(Store(str(folder)), ArtifactId(f"demo/segment/p{files}", "1"), "1" * 64, member="p0")
    for number in range(files):
        with output.part(f"warc-{number:05d}", conserved=False) as part:
            rows = links_table([outcome(page) for page in range(number, pages, files)], PARTITIONS)
            part.write_table(f"{LINK}{part.name}.parquet", rows)
    write_targets(output, MOST)
    return commit(output, "fetch", 1, Config(), (), Report())


def files(artifact: Artifact) -> dict[str, bytes]:
    """The files of targets, by name without the attempt."""
    return {path.rpartition("-")[0]: artifact.read(path) for path in artifact.files("targets/")}


@pytest.mark.parametrize("batch", [1 << 16, 2])  # in the second case a partition has several files
def test_targets_are_those_of_all_links_in_files_by_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr(targets, "_ROWS", batch)
    monkeypatch.setattr(targets, "_MOST_ROWS", 8 * batch)
    one, many = segment(tmp_path, 1), segment(tmp_path, 12)
    assert len(many.files(LINK)) == 12
    assert len(many.files("targets/")) == (4 if batch == 2 else 3)  # one partition owns none
    assert files(many) == files(one)
    links = [row for path in many.files(LINK) for row in many.table(path).to_pylist() if row["depth"] <= MOST]
    assert any(row["lastmod"] for row in links)
    for number in range(PARTITIONS):
        of_key: dict[bytes, list] = {}
        for row in links:
            if row["partition"] == number:
                of_key.setdefault(row["key"], []).append(row)
        found = [row for path in many.files(targets.targets_of(number)) for row in many.table(path).to_pylist()]
        assert [row["key"] for row in found] == sorted(of_key)
        for row in found:
            rows = of_key[row["key"]]
            assert row["url"] == min(one["url"] for one in rows)
            assert row["depth"] == min(one["depth"] for one in rows)
            assert row["seen"] == min(one["seen"] for one in rows)
            assert row["lastmod"] == max((one["lastmod"] for one in rows if one["lastmod"]), default=None)


@pytest.mark.parametrize("killed_by", ["tests.conftest.commit", "tasks.stages.crawl.fetch.write_targets"])
def test_a_fetch_killed_after_its_end_fetches_no_page_that_is_in_no_targets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_by: str
) -> None:
    def kill(*_: object) -> None:
        raise RuntimeError("killed")

    run = Scheduler.run
    with Site(linked(30)) as site:

        async def run_for_some_pages(self: Scheduler) -> bool:
            running = asyncio.ensure_future(run(self))
            while len(site.requests) < 8 and not running.done():
                await asyncio.sleep(0.005)
            self.stop()
            return await running

        config = CrawlConfig(
            seeds=(site.url(),),
            allow_loopback=True,
            delay_s=0.02,
            latency_factor=0.0,
            partitions=1,
            warc_pages_per_file=3,
        )
        cycle.cycle(tmp_path, config)
        with monkeypatch.context() as patched:
            patched.setattr(Scheduler, "run", run_for_some_pages)
            patched.setattr(killed_by, kill)
            with pytest.raises(RuntimeError, match="killed"):
                cycle.fetch(tmp_path, config)
        before = len(site.requests)
        retried = cycle.fetch(tmp_path, config)
        assert len(site.requests) == before < 30
    rows = {
        folder: [row for path in retried.files(folder) for row in retried.table(path).to_pylist()]
        for folder in (LINK, "targets/")
    }
    assert len(retried.files(LINK)) > 1
    assert {row["key"] for row in rows["targets/"]} == {row["key"] for row in rows[LINK]}
    assert retried.record.metrics["hosts"] == 1
    assert retried.verify() == []


def test_update_adds_no_target_beyond_its_own_depth(tmp_path: Path) -> None:
    with Site(linked(4)) as site:
        config = CrawlConfig(seeds=(site.url(),), allow_loopback=True, delay_s=0.02, partitions=1, max_pages=1)
        run = cycle.cycle(tmp_path, config)
        run.fetch_all()
    known: dict[int, set[int]] = {}
    for most in (0, 1):
        run.config, run.version = config.model_copy(update={"max_depth": most}), f"depth-{most}"
        run.crawldb = [run.update(0)]
        known[most] = {row["depth"] for row in run.urls().values()}
    assert known == {0: {0}, 1: {0, 1}}
