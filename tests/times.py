"""Durations of tests: a pytest plugin that records them, and a program that prints them.

Reads the environment variable `SLUICE_TEST_TIMES`, a folder: where it is set, every pytest call writes
`<folder>/<process id>.jsonl`, one line per test as it ends. `python -m tests.times FOLDER` reads all of these and
prints the seconds per package (the folder of a test) and the ten slowest tests. With xdist the process that
distributes the tests writes the file, and the seconds of a package are the sum over all workers.
"""

import json
import os
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest

VARIABLE = "SLUICE_TEST_TIMES"
SLOWEST = 10
# tests/tasks/stages/crawl is a package; tests/tasks/stages/crawl/hostile counts as part of it.
LEVELS = 4


@dataclass
class Call:
    """One pytest call.

    Attributes:
        began: seconds since the epoch.
        wall_s: from its start to the end of its last test.
        seconds: by the test's node id, its setup, call and teardown together.
        failed: node ids of the tests that failed, in any phase.
        flaky: node ids of the tests that failed once and then passed.
    """

    began: float
    wall_s: float
    seconds: dict[str, float]
    failed: list[str]
    flaky: list[str]


class Recorder:
    """The plugin: adds up the durations that pytest reports for a test and writes a line after its teardown.

    A line is a JSON object: `test`, `seconds`, `failed` (the phases that failed), `rerun` (whether it failed before),
    `began` (of the call, seconds since the epoch) and `ended` (of the test).
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{os.getpid()}.jsonl"
        self.began = time.time()
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: dict[str, list[str]] = defaultdict(list)
        self.rerun: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = report.nodeid
        self.seconds[test] += report.duration
        if report.outcome == "rerun":
            self.rerun.add(test)
        elif report.failed:
            self.failed[test].append(str(report.when))
        if report.when == "teardown":
            line = {"test": test, "seconds": self.seconds[test], "failed": self.failed[test]}
            line["rerun"] = test in self.rerun
            with self.path.open("a") as file:
                file.write(json.dumps({**line, "began": self.began, "ended": time.time()}) + "\n")


def record(config: pytest.Config) -> None:
    """Registers the plugin where `SLUICE_TEST_TIMES` is set; a worker of xdist reports to the process above it."""
    folder = os.environ.get(VARIABLE)
    if folder and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(Path(folder)), "sluice-times")


def read(folder: Path) -> list[Call]:
    """Returns the calls recorded in `folder`, the earliest first."""
    calls = []
    for path in folder.glob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        began = lines[0]["began"]
        seconds = {line["test"]: line["seconds"] for line in lines}
        failed = [line["test"] for line in lines if line["failed"]]
        flaky = sorted({line["test"] for line in lines if line["rerun"]} - set(failed))
        calls.append(Call(began, max(line["ended"] for line in lines) - began, seconds, failed, flaky))
    return sorted(calls, key=lambda call: call.began)


def package(nodeid: str) -> str:
    """Returns the folder of a test, at most four levels deep; doctests of the product count as one package.

    >>> package("tests/tasks/stages/crawl/hostile/test_dns.py::test_a")
    'tests/tasks/stages/crawl'
    >>> package("tasks/formats/web/url.py::tasks.formats.web.url.host")
    'doctests'
    """
    folders = nodeid.partition("::")[0].split("/")[:-1]
    return "/".join(folders[:LEVELS]) if folders[:1] == ["tests"] else "doctests"


def table(calls: list[Call]) -> str:
    """Returns seconds and tests per package, the ten slowest tests, durations of calls, flaky and failed tests."""
    seconds = {nodeid: s for call in calls for nodeid, s in call.seconds.items()}
    packages: dict[str, list[float]] = defaultdict(list)
    for nodeid, s in seconds.items():
        packages[package(nodeid)].append(s)
    lines = ["", "  seconds  tests  package"]
    lines += [
        f"  {sum(took):7.1f}  {len(took):5}  {name}"
        for name, took in sorted(packages.items(), key=lambda item: -sum(item[1]))
    ]
    lines += ["", "  seconds  slowest tests"]
    slowest = sorted(seconds, key=lambda nodeid: -seconds[nodeid])[:SLOWEST]
    lines += [f"  {seconds[nodeid]:7.1f}  {nodeid}" for nodeid in slowest]
    lines += ["", "  minutes  pytest calls"]
    lines += [f"  {call.wall_s / 60:7.1f}  {len(call.seconds)} tests" for call in calls]
    failed = [nodeid for call in calls for nodeid in call.failed]
    flaky = [nodeid for call in calls for nodeid in call.flaky]
    lines += ["", "  flaky tests: failed, then passed", *(f"  {nodeid}" for nodeid in flaky)] if flaky else []
    lines += ["", "  failed tests", *(f"  {nodeid}" for nodeid in failed)] if failed else []
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(read(Path(sys.argv[1]))))
