"""The crawlers of the crawl benchmark as commands, and what one run of a command costs.

Each crawler is a process of its own. Its CPU time is that of the whole process with its children, user and system
(`wait4`). What it needs to start is measured by the same command on one page, and taken off.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any

from benchmarks.harness import peer_python
from tasks.formats.web.url import authority

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
STATE = ROOT / ".sluice" / "benchmarks" / "crawl"
CONCURRENCY = 64
PEERS = ["scrapy==2.19.0", "uvloop==0.23.0"]


@dataclass(frozen=True)
class Cost:
    """What a run took: CPU seconds, and bytes of memory at its peak."""

    cpu_s: float
    peak_bytes: int


class Sluice:
    """The stages of a crawl up to fetch, as the shell runs them; the cost is that of fetch."""

    def __init__(self, folder: Path) -> None:
        self._store = folder / "store"

    def cost(self, seeds: list[str], pages: list[str]) -> Cost:
        """Crawls `pages` from `seeds` into a store of its own, which is removed afterwards."""
        shutil.rmtree(self._store, ignore_errors=True)
        crawl = {
            "seeds": seeds,
            "include_hosts": ["*." + authority(seeds[0]).partition(".")[2]],
            "allow_loopback": True,
            "partitions": 1,
            "max_pages": _limit(pages),
            "max_pages_per_host": len(pages),
            "max_pages_per_domain": len(pages),
            "max_hosts_per_domain": len(pages),
            "max_depth": 50,
            "delay_s": 0.0,
            "latency_factor": 0.0,
            "concurrency": CONCURRENCY,
        }
        for stage in ("inject", "rank", "generate"):
            timed(command(stage, crawl, self._store))
        try:
            return timed(command("fetch", crawl, self._store))
        finally:
            shutil.rmtree(self._store, ignore_errors=True)


def command(stage: str, crawl: dict[str, Any], store: Path) -> list[str]:
    """Returns the command that runs a stage of a crawl of one partition, as the shell does."""
    recipe = {
        "name": "bench",
        "crawl": crawl,
        "canary": {"arms": 0, "anchors": ["uniform"]},
        "place": {"store": str(store), "mlflow": ""},
    }
    member = ["--member", "p0"] if stage in ("generate", "fetch") else []
    return [sys.executable, "-m", "tasks", stage, "--recipe", json.dumps(recipe), *member]


class Scrapy:
    """Scrapy, in an environment that is made on the first run."""

    def __init__(self, folder: Path) -> None:
        self._python = peer_python(folder / "peers", PEERS)

    def cost(self, seeds: list[str], pages: list[str]) -> Cost:
        """Crawls `pages` from `seeds`; nothing is stored."""
        program = [self._python, str(HERE / "peer_scrapy.py")]
        return timed([*program, json.dumps(seeds), str(_limit(pages)), str(CONCURRENCY)])


class Aiohttp:
    """Bare aiohttp, for the pages that the others have found."""

    def __init__(self, folder: Path) -> None:
        self._list = folder / "urls.txt"

    def cost(self, seeds: list[str], pages: list[str]) -> Cost:
        """Requests `pages`, in turn over the hosts as polite crawlers do: connections are used again."""
        by_host = groupby(sorted(pages), key=authority)
        ranks = zip_longest(*(list(held) for _, held in by_host))
        self._list.write_text("\n".join(url for rank in ranks for url in rank if url))
        return timed([sys.executable, str(HERE / "peer_aiohttp.py"), str(self._list), str(CONCURRENCY)])


def _limit(pages: list[str]) -> int:
    """Returns how many pages a crawl may ask for: one, or many more than there are, so that its own end is seen."""
    return 1 if len(pages) == 1 else 10 * len(pages)


def timed(command: Sequence[str]) -> Cost:
    """Runs a command to its end and returns what it took; raises CalledProcessError when it fails."""
    # Bytecode is kept from run to run, as it is where a crawler is installed.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**environment, "ARROW_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.stderr.write(said.decode("utf-8", "replace"))
        raise subprocess.CalledProcessError(process.returncode, list(command)[:3])
    return Cost(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)
