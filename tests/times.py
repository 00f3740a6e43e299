"""Where the time of a test run goes: a pytest plugin that writes it down, and a program that prints it.

Reads the environment variable `SLUICE_TEST_TIMES`, a folder: where it is set, every pytest call writes
`<folder>/<process id>.json` when it ends. `python -m tests.times FOLDER` reads all of these and prints the seconds per
room (the folder of a test) and the ten slowest tests. With xdist the process that distributes the tests writes the
file, and the seconds of a room are those of all workers together.
"""

import json
import os
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

VARIABLE = "SLUICE_TEST_TIMES"
SLOWEST = 10
# tests/tasks/stages/crawl is a room, tests/tasks/stages/crawl/hostile a part of it.
LEVELS = 4


@dataclass
class Call:
    """One pytest call.

    Attributes:
        began: seconds since the epoch.
        wall_s: from its begin to its end.
        seconds: by the test's node id, its setup, call and teardown together.
    """

    began: float = field(default_factory=time.time)
    wall_s: float = 0.0
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))


class Recorder:
    """The plugin: adds up what pytest reports and writes `<folder>/<process id>.json` at the end of the session."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"{os.getpid()}.json"
        self.call = Call()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.call.seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        self.call.wall_s = time.time() - self.call.began
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(vars(self.call)))


def record(config: pytest.Config) -> None:
    """Registers the plugin where `SLUICE_TEST_TIMES` is set; a worker of xdist reports to the process above it."""
    folder = os.environ.get(VARIABLE)
    if folder and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(Path(folder)), "sluice-times")


def read(folder: Path) -> list[Call]:
    """Returns the calls whose times lie in `folder`, the first one first."""
    calls = [Call(**json.loads(path.read_text())) for path in folder.glob("*.json")]
    return sorted(calls, key=lambda call: call.began)


def room(nodeid: str) -> str:
    """Returns the folder that a test is in, at most four levels deep; doctests of the product are one room.

    >>> room("tests/tasks/stages/crawl/hostile/test_dns.py::test_a")
    'tests/tasks/stages/crawl'
    >>> room("tasks/formats/url.py::tasks.formats.url.host")
    'doctests'
    """
    folders = nodeid.partition("::")[0].split("/")[:-1]
    return "/".join(folders[:LEVELS]) if folders[:1] == ["tests"] else "doctests"


def table(calls: list[Call]) -> str:
    """Returns the seconds and numbers of tests per room, the ten slowest tests, and how long each call took."""
    seconds = {nodeid: s for call in calls for nodeid, s in call.seconds.items()}
    rooms: dict[str, list[float]] = defaultdict(list)
    for nodeid, s in seconds.items():
        rooms[room(nodeid)].append(s)
    lines = ["", "  seconds  tests  room"]
    lines += [
        f"  {sum(took):7.1f}  {len(took):5}  {name}"
        for name, took in sorted(rooms.items(), key=lambda item: -sum(item[1]))
    ]
    lines += ["", "  seconds  slowest tests"]
    slowest = sorted(seconds, key=lambda nodeid: -seconds[nodeid])[:SLOWEST]
    lines += [f"  {seconds[nodeid]:7.1f}  {nodeid}" for nodeid in slowest]
    lines += ["", "  minutes  pytest calls"]
    lines += [f"  {call.wall_s / 60:7.1f}  {len(call.seconds)} tests" for call in calls]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(read(Path(sys.argv[1]))))
