"""The engine and its Dask client, with a scheduler and two workers in this process."""

import logging
import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest
from dask.distributed import Client, LocalCluster
from distributed.comm import CommClosedError

from tasks.core import engine as engine_module
from tasks.core.engine import DaskEngine, open_engine
from tasks.core.errors import TransientError
from tasks.core.workers.monitor import WorkerMonitor
from tests.waiting import later, until

DOUBLED = {index: 2 * index for index in range(40)}


def double(number: int) -> int:
    time.sleep(0.005)
    return 2 * number


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    place = {"processes": False, "scheduler_kwargs": {"dashboard": False}}
    with LocalCluster(n_workers=2, threads_per_worker=1, **place) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of the cluster; the engine looks at its workers again and again."""
    monkeypatch.setattr(engine_module, "_CHECK_EVERY_S", 0.0)
    with Client(cluster) as client:
        yield client


def test_a_map_that_ends_early_leaves_no_subscription_and_no_task(cluster: LocalCluster, client: Client) -> None:
    results = DaskEngine(client, "Dask").map(double, range(1000))
    next(results)
    topic = cluster.scheduler._broker._topics["all"]
    assert client.id in topic.subscribers
    results.close()
    until(lambda: client.id not in topic.subscribers)
    until(lambda: not client.refcount)


def test_events_of_others_are_not_kept() -> None:
    arrived: SimpleQueue[Any] = SimpleQueue()
    for event in ("a text", {"action": "cancel"}, {"action": "add-worker"}):
        engine_module._put_change(arrived, (0.0, event))
    assert arrived.get_nowait() == (None, {"action": "add-worker"})
    assert arrived.empty()


def test_the_task_of_a_result_is_released_before_the_stage_has_it(client: Client) -> None:
    for _ in DaskEngine(client, "Dask").map(double, [1]):
        until(lambda: len(client.refcount) == 1)  # the function


class Unreachable:
    """A scheduler that does not say what workers it has."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    async def identity(self, **_: Any) -> None:
        raise OSError("no route to host")


def test_workers_are_not_gone_when_the_scheduler_does_not_name_them(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = DaskEngine(client, "Dask")
    client.sync(client._update_scheduler_info)  # as the client's own callback does
    monkeypatch.setattr(client, "scheduler", Unreachable(client.scheduler))
    assert dict(engine.map(double, range(40))) == DOUBLED
    assert (engine._threads, engine._monitor.seconds_without_workers()) == (2, 0.0)
    assert "is gone" not in caplog.text


def test_workers_that_are_retired_are_not_lost(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sluice")
    engine = DaskEngine(client, "Dask")
    first, second = client.nthreads()
    made = {}
    for index, result in engine.map(double, range(40)):
        made[index] = result
        if len(made) == 1:
            client.retire_workers([first])
    assert made == DOUBLED
    assert "Dask: 1 worker, 1 thread" in caplog.text
    client.cluster.scale(3)
    client.retire_workers([second])  # while no map runs
    assert dict(engine.map(double, range(40))) == DOUBLED
    assert "is gone" not in caplog.text
    assert engine._monitor.lost == 0


def test_time_without_workers_starts_anew_when_a_scheduler_is_back() -> None:
    monitor = WorkerMonitor("Dask")
    monitor.update({})
    assert monitor.seconds_without_workers() > 0
    monitor.idle()
    assert monitor.seconds_without_workers() == 0


def test_items_that_could_not_be_sent_are_sent_again(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = DaskEngine(client, "Dask")
    send, tries = client.map, []

    def fail_twice(*args: Any, **named: Any) -> Any:
        tries.append(args)
        if len(tries) < 3:
            raise CommClosedError("the stream has ended")
        return send(*args, **named)

    monkeypatch.setattr(client, "map", fail_twice)
    assert dict(engine.map(double, range(40))) == DOUBLED


def test_a_stage_does_not_wait_for_a_client_that_has_closed(
    client: Client, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    awaited = threading.Event()

    async def fetch_nothing(*_: Any) -> None:
        awaited.set()

    monkeypatch.setattr(DaskEngine, "_await", fetch_nothing)
    closing = Client(cluster, set_as_default=False)
    later(closing.close, awaited.is_set)
    with pytest.raises(TransientError, match=r"did not come back \(its client has closed\).*first missing part"):
        list(DaskEngine(closing, "Dask").map(double, range(40)))


@pytest.mark.parametrize("step", ["wait_for_workers", "get_versions", "run"])
def test_a_cluster_that_is_lost_at_the_start_is_a_retryable_error(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise CommClosedError("the stream has ended")

    monkeypatch.setattr(Client, step, fail)
    with (
        pytest.raises(TransientError, match=r"was lost before any work \(the stream has ended\).*[Ss]ee the logs"),
        open_engine(cluster.scheduler_address),
    ):
        pytest.fail("it opened")
