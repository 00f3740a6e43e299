"""The engine on real Dask processes: scaling up, lost workers, a lost scheduler, version mismatches.

Run the soak test after a change of how versions are compared.
"""

import logging
import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from dask.distributed import wait

from tasks.core import engine as engine_module
from tasks.core.engine import DaskEngine, dashboard_of, open_engine
from tasks.core.errors import TransientError
from tasks.core.workers.versions import VersionError, check_same
from tasks.core.workers.window import Window
from tests.tasks.core.engine_work import Counted, Fatal, Watched, die, fail_at_40, fill, noted
from tests.waiting import later, until

pytestmark = pytest.mark.real_time

ROOT = Path(__file__).parents[3]
STARTS_S = 300
"""A scheduler or worker imports for three CPU-seconds, which on a machine with more to do can take minutes."""


class Dask:
    """A cluster of processes that a test starts and kills."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.folder = folder
        self.started: list[subprocess.Popen[bytes]] = []
        self.workers: list[subprocess.Popen[bytes]] = []

    def scheduler(self, **environment: str) -> subprocess.Popen[bytes]:
        """Starts a scheduler and returns once it listens, so that its start-up time does not matter."""
        page = ("--dashboard-address", "127.0.0.1:0")
        process = self._start("scheduler", "--host", "127.0.0.1", "--port", str(self.port), *page, **environment)
        until(lambda: listening(self.port) or process.poll() is not None, STARTS_S)
        assert process.poll() is None, "the scheduler has ended"
        return process

    def worker(self, *options: str, before: str = "", **environment: str) -> subprocess.Popen[bytes]:
        """Starts a worker process; `before` is the first folder of its Python path."""
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [before, str(ROOT)]))
        options = ("--nthreads", "1", "--no-nanny", "--host", "127.0.0.1", *options)
        place = ("--local-directory", str(self.folder / "spill"), "--dashboard-address", "127.0.0.1:0")
        self.workers.append(self._start("worker", self.address, *options, *place, **environment))
        return self.workers[-1]

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()

    def _start(self, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"dask-{len(self.started)}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "dask", *command],
                env=os.environ | environment,
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.started.append(process)
        return process


@pytest.fixture
def dask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dask]:
    """A cluster, with short time limits of the engine."""
    monkeypatch.setattr(engine_module, "_CONNECT_S", STARTS_S)
    monkeypatch.setattr(engine_module, "_WORKERS_S", STARTS_S)
    cluster = Dask(tmp_path)
    yield cluster
    cluster.end()


DOUBLED = {index: 2 * index for index in range(60)}


def threads(engine: Any) -> int:
    """Returns the number of threads in an engine's cluster now."""
    return sum(engine._client.nthreads().values())


def test_a_process_pool_starts_lazily_and_serves_all_maps_of_a_stage(tmp_path: Path) -> None:
    def children() -> set[int]:
        return {child.pid for child in psutil.Process().children(recursive=True)}

    before = children()
    with open_engine(workers=2) as engine:
        assert dict(engine.map(Counted(tmp_path), [])) == {}
        assert children() - before == set()
        for _ in range(2):
            assert dict(engine.map(Counted(tmp_path), range(60))) == DOUBLED
        assert len(children() - before) >= 2
        with pytest.raises(ValueError, match="it is 40") as caught:
            dict(engine.map(fail_at_40, range(60)))
        assert caught.value.__notes__ == ["while 40 was made"]
    assert set(noted(tmp_path / "unpickled")).isdisjoint({str(os.getpid())})


def test_a_stage_follows_a_growing_cluster_and_sends_shared_payload_to_each_worker_once(
    dask: Dask, tmp_path: Path
) -> None:
    dask.scheduler()
    dask.worker()
    with open_engine(dask.address) as engine:
        assert threads(engine) == 1
        grown = later(dask.worker, lambda: noted(tmp_path / "called"))
        assert dict(engine.map(Counted(tmp_path, ballast=1 << 20, processes=2), range(60))) == DOUBLED
        grown.join()
        assert threads(engine) == 2
    assert sorted(noted(tmp_path / "unpickled")) == sorted(str(worker.pid) for worker in dask.workers)


def test_a_lost_worker_loses_only_its_current_parts(
    dask: Dask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engine_module, "_CHECK_EVERY_S", 0.2)
    caplog.set_level(logging.INFO, "sluice")
    dask.scheduler()
    dask.worker("--name", "steady")
    victim = dask.worker("--name", "victim")
    with open_engine(dask.address) as engine:
        until(lambda: threads(engine) == 2)
        made: dict[int, int] = {}
        killed = []
        for index, result in engine.map(Counted(tmp_path, seconds=0.1), range(60)):
            made[index] = result
            if len(made) == 30:
                victim.kill()
                killed = list(made)
    assert made == DOUBLED
    calls = Counter(map(int, noted(tmp_path / "called")))
    # Lost are its running and queued parts, and results not yet fetched from it.
    assert not [number for number in killed if calls[number] > 1], "what had come back ran again"
    assert "worker victim is gone" in caplog.text


def test_a_lost_worker_with_many_small_items_loses_and_doubles_nothing(dask: Dask, tmp_path: Path) -> None:
    dask.scheduler()
    dask.worker()
    victim = dask.worker()
    with open_engine(dask.address) as engine:
        until(lambda: threads(engine) == 2)
        items = Watched(10_000)
        made: list[tuple[int, int]] = []
        killed = 0
        for pair in engine.map(Counted(tmp_path), items):
            made.append(pair)
            assert items.read - len(made) <= 2 * 512, "more than the window was sent"
            if len(made) == 3_000:
                victim.kill()
                killed = len(made)
    assert sorted(made) == [(index, 2 * index) for index in range(10_000)]
    calls = Counter(map(int, noted(tmp_path / "called")))
    assert not [index for index, _ in made[:killed] if calls[index] > 1], "what had come back ran again"


def test_an_item_that_kills_its_worker_runs_again_without_the_others_of_its_group(
    dask: Dask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Window, "_within", lambda window, seconds: 50)
    dask.scheduler(DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="0")
    for _ in range(3):
        dask.worker()
    with open_engine(dask.address) as engine:
        until(lambda: threads(engine) == 3)
        fatal = Fatal(tmp_path, number=700, times=1)
        assert dict(engine.map(fatal, range(1000))) == {index: 2 * index for index in range(1000)}
        with pytest.raises(TransientError, match="died repeatedly while they made the same part"):
            dict(engine.map(Fatal(tmp_path, number=700, times=9), range(1000)))
    assert Counter(noted(tmp_path / "called"))["700"] == 4, "each time in its group and alone"


def test_a_stage_continues_when_the_scheduler_is_back(dask: Dask, tmp_path: Path) -> None:
    first = dask.scheduler()
    dask.worker()

    def restart() -> None:
        first.kill()
        first.wait()
        dask.scheduler()
        dask.worker()

    with open_engine(dask.address) as engine:
        made: dict[int, int] = {}
        back = []
        for index, result in engine.map(Counted(tmp_path, seconds=0.05), range(60)):
            made[index] = result
            if len(made) == 20:
                restart()
                back = list(made)
    assert made == DOUBLED
    calls = Counter(map(int, noted(tmp_path / "called")))
    assert not [number for number in back if calls[number] > 1], "what had come back ran again"


def test_a_scheduler_that_does_not_return_is_a_retryable_error(
    dask: Dask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "_CONNECT_S", 3)
    scheduler = dask.scheduler()
    dask.worker()
    with open_engine(dask.address) as engine:
        later(scheduler.kill, lambda: noted(tmp_path / "called"))
        with pytest.raises(TransientError, match=r"was lost and did not come back.*first missing part"):
            list(engine.map(Counted(tmp_path, seconds=0.05), range(60)))


def test_workers_that_die_on_a_part_are_distinguished_from_a_lost_cluster(dask: Dask) -> None:
    dask.scheduler(DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="1")
    for _ in range(2):
        dask.worker()
    with open_engine(dask.address) as engine:
        until(lambda: threads(engine) == 2)
        with pytest.raises(
            TransientError, match=r"died repeatedly while they made the same part.*[Gg]ive them more memory"
        ):
            list(engine.map(die, [1]))


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a scheduler without workers."""
    cluster = Dask(tmp_path_factory.mktemp("scheduler"))
    cluster.scheduler()
    yield cluster.address
    cluster.end()


def test_a_scheduler_without_workers_is_reported_with_the_command_to_start_one(
    scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "_CONNECT_S", STARTS_S)
    monkeypatch.setattr(engine_module, "_WORKERS_S", 1)
    with (
        pytest.raises(TransientError, match=rf"no worker connected.*dask worker {scheduler}"),
        open_engine(scheduler),
    ):
        pytest.fail("it opened")


@pytest.mark.parametrize("moment", ["while it works", "before a result is fetched"])
def test_a_stage_does_not_wait_forever_for_lost_workers(
    dask: Dask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    monkeypatch.setattr(engine_module, "_CHECK_EVERY_S", 0.2)
    dask.scheduler()
    worker = dask.worker()
    fetch = DaskEngine._await

    async def fetch_of_a_dead_worker(engine: DaskEngine, future: Any, arrived: Any) -> None:
        await wait([future])
        worker.kill()
        worker.wait()
        await fetch(engine, future, arrived)

    with open_engine(dask.address) as engine:
        monkeypatch.setattr(engine_module, "_WORKERS_S", 1)
        if moment == "while it works":
            later(worker.kill, lambda: noted(tmp_path / "called"))
        else:
            monkeypatch.setattr(DaskEngine, "_await", fetch_of_a_dead_worker)
        with pytest.raises(TransientError, match="no worker for 1 s"):
            list(engine.map(Counted(tmp_path, seconds=0.05), range(60)))


def test_a_worker_with_another_pyarrow_is_refused_with_both_versions(dask: Dask, tmp_path: Path) -> None:
    import pyarrow

    other = tmp_path / "other" / "pyarrow-1.2.3.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: pyarrow\nVersion: 1.2.3\n")
    dask.scheduler()
    dask.worker(before=str(other.parent))
    told = rf"worker tcp://127.0.0.1:\d+ has pyarrow 1\.2\.3, this task has {pyarrow.__version__}.*same image or wheel"
    with pytest.raises(VersionError, match=told) as caught, open_engine(dask.address):
        pytest.fail("it opened")
    assert caught.value.permanent


@pytest.mark.soak
def test_a_worker_of_another_build_of_the_same_version_is_refused(dask: Dask, tmp_path: Path) -> None:
    dask.scheduler()
    dask.worker(before=other_build(tmp_path))
    with pytest.raises(VersionError, match="sluice code"), open_engine(dask.address):
        pytest.fail("it opened")


def test_a_worker_of_another_build_that_comes_later_is_refused_before_it_writes(dask: Dask, tmp_path: Path) -> None:
    dask.scheduler()
    first = dask.worker()
    with open_engine(dask.address) as engine:
        dask.worker("--name", "late", before=other_build(tmp_path))
        until(lambda: threads(engine) == 2)
        first.kill()
        with pytest.raises(VersionError, match="worker late has sluice code"):
            list(engine.map(Counted(tmp_path), range(4)))
    assert noted(tmp_path / "called") == []


def other_build(folder: Path) -> str:
    """Returns a folder with the same package after a change."""
    shutil.copytree(ROOT / "tasks", folder / "other" / "tasks", ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "other" / "tasks" / "formats" / "text.py").open("a") as file:
        file.write("\n# another day\n")
    return str(folder / "other")


def test_only_major_and_minor_version_of_python_are_compared() -> None:
    check_same({"python": "3.11.15.final.0"}, {"w": {"python": "3.11.2.final.0"}}, "the cluster")
    with pytest.raises(VersionError, match=r"the cluster runs other versions: w has python 3\.12, this task has 3\.11"):
        check_same({"python": "3.11.15.final.0"}, {"w": {"python": "3.12.1.final.0"}}, "the cluster")


def test_the_log_shows_memory_limits_and_a_worker_that_pauses(
    dask: Dask, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engine_module, "_CHECK_EVERY_S", 0.1)
    caplog.set_level(logging.INFO, "sluice")
    dask.scheduler()
    dask.worker("--memory-limit", "400MiB", "--name", "small")
    with open_engine(dask.address) as engine:
        assert list(engine.map(fill, [350])) == [(0, 350)]
    assert "1 worker, 1 thread, 400 MiB of memory (400 MiB each)" in caplog.text
    assert "worker small has paused" in caplog.text
    assert "1 pauses for memory" in caplog.text


def test_the_status_page_exists(scheduler: str) -> None:
    page = dashboard_of(scheduler)
    with urllib.request.urlopen(page) as answer:
        shown = answer.read().decode()
    assert page.startswith("http://127.0.0.1:")
    assert "needs bokeh" not in shown


def listening(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0
