"""Hostile hosts, and one crawl of them in a separate process together with a good host that must not be affected."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.tasks.stages.crawl.hostile.web import Host, Web, page

ROOT = Path(__file__).parents[5]
GOOD_PAGES = 8
DELAY_S = 0.3
# One try of a silent host takes longer than any pause of the good host, even on a busy machine.
TIMEOUT_S = 6.0
MAX_BODY = 1 << 20
MAX_MEMORY_MB = 300


@dataclass(frozen=True)
class Crawled:
    """The result of a crawl.

    Attributes:
        rows: fetch log by URL.
        captures: from the WARC files, by URL.
        memory: additional MiB of the process during the fetch, and MiB of its largest child.
        folder: the store.
        path: the segment within it.
    """

    rows: dict[str, dict[str, object]]
    captures: dict[str, dict[str, object]]
    memory: dict[str, float]
    folder: Path
    path: str

    def reason(self, host: Host, path: str = "/") -> str | None:
        """The reason for a missing capture: "" if there is one, None if the URL was never tried."""
        row = self.rows.get(host.url(path))
        return None if row is None else str(row["reason"])

    def reasons(self, hosts: dict[str, Host]) -> dict[str, str | None]:
        return {name: self.reason(host) for name, host in hosts.items()}


@pytest.fixture
def web() -> Iterator[Web]:
    with Web() as one:
        yield one


@pytest.fixture
def good_web() -> Iterator[Web]:
    """A separate server for the good host, whose clock hostile hosts cannot delay."""
    with Web() as one:
        yield one


@pytest.fixture
def crawl(good_web: Web, tmp_path: Path) -> Callable[..., Crawled]:
    """Crawls hosts from their roots, together with a good host; checks memory and the pace of the good host."""

    def run(*hosts: Host, environment: dict[str, str] | None = None, **settings: object) -> Crawled:
        good = good_web.host(lambda path: page(f"<p>{path} is a good page.".encode()))
        pages = [good.url(f"/{number}") for number in range(GOOD_PAGES)]
        config = {
            "seeds": [*pages, *(host.url() for host in hosts)],
            "allow_loopback": True,
            "delay_s": DELAY_S,
            "latency_factor": 0.0,
            "timeout_s": TIMEOUT_S,
            "max_backoff_s": 0.5,
            "max_body_bytes": MAX_BODY,
            "partitions": 1,
            **settings,
        }
        crawled = crawl_in(tmp_path / "store", config, environment)
        assert [url for url in pages if url not in crawled.captures] == []
        begins = sorted(good.requests)
        gaps = [later[0] - earlier[1] for earlier, later in itertools.pairwise(begins)]
        # The mean, because a busy test process can record one request late and the next on time.
        # test_politeness_proof measures the delay itself.
        assert sum(gaps) >= len(gaps) * DELAY_S / 2
        assert max(gaps) < TIMEOUT_S, "a hostile host held the good one up"
        assert crawled.memory["fetch"] < MAX_MEMORY_MB
        return crawled

    return run


def crawl_in(folder: Path, config: dict[str, object], environment: dict[str, str] | None = None) -> Crawled:
    """Runs one crawl in a separate process; `folder` is its store."""
    folder.mkdir()
    program = str(Path(__file__).with_name("run_crawl.py"))
    done = subprocess.run(
        [sys.executable, program, str(folder)],
        input=json.dumps(config),
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    result = json.loads((folder / "result.json").read_text())
    rows = {row["url"]: row for row in result["rows"]}
    return Crawled(rows, result["captures"], result["memory"], folder, result["path"])
