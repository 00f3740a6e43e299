"""Crawls once in a separate process, and reports its resources. Not a test module.

`python run_crawl.py STORE` with the recipe's crawl settings as JSON on stdin; writes STORE/result.json.
"""

import json
import re
import resource
import sys
from pathlib import Path

from tasks.core.artifact import Artifact
from tasks.formats.warc import archive
from tasks.stages.crawl.config import CrawlConfig
from tests.conftest import run_stage_in


def main() -> None:
    store = Path(sys.argv[1])
    config = CrawlConfig(**json.load(sys.stdin))
    seeds = run_stage_in(store, "tasks.stages.crawl.inject", config)
    ranks = run_stage_in(store, "tasks.stages.crawl.rank", config)
    fetchlist = run_stage_in(
        store, "tasks.stages.crawl.generate", config, {"seeds": seeds, "ranks": ranks}, member="p0"
    )
    before = _memory("VmRSS")
    inputs = {"seeds": seeds, "fetchlist": fetchlist, "fetchlists": [fetchlist]}
    segment = run_stage_in(store, "tasks.stages.crawl.fetch", config, inputs, member="p0")
    used = {"fetch": _memory("VmHWM") - before, "child": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024}
    result = {"rows": _rows(segment), "captures": _captures(segment), "memory": used, "path": segment.address.path}
    (store / "result.json").write_text(json.dumps(result))


def _rows(segment: Artifact) -> list[dict[str, object]]:
    wanted = ["url", "status", "reason", "requested", "http_status", "bytes", "redirect", "error"]
    return [row for path in segment.files("log/") for row in segment.table(path).select(wanted).to_pylist()]


def _captures(segment: Artifact) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for path in segment.files("warc/"):
        with segment.store.open(f"{segment.address.path}/{path}") as file:
            for one in archive.captures(file):
                assert one.url not in found
                truncated = one.headers.get("WARC-Truncated") is not None
                found[one.url] = {"bytes": len(one.payload), "truncated": truncated, "headers": one.http}
    return found


def _memory(field: str) -> float:
    """Returns a figure of this process in MiB."""
    found = re.search(rf"{field}:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


if __name__ == "__main__":
    main()
