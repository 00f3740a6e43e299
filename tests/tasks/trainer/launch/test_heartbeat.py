"""Heartbeats of a gang: the last result of a node arrives, and no thread outlives the context."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tasks.trainer.launch import gang_agent
from tasks.trainer.launch.gang import Gang
from tasks.trainer.launch.gang_agent import BEAT_S, HeartbeatStore, NodeResult
from tests.tasks.trainer.gangs import free_port
from tests.waiting import until

pytestmark = pytest.mark.real_time


class Slow:
    """A store whose writes take some seconds, as on a busy machine."""

    def __init__(self, store: Any, seconds: float) -> None:
        self._store, self._seconds = store, seconds

    def set(self, key: str, value: str) -> None:
        time.sleep(self._seconds)
        self._store.set(key, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def side_by_side(*nodes: Callable[[], None]) -> None:
    failed: list[BaseException] = []

    def guarded(node: Callable[[], None]) -> None:
        try:
            node()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(node,)) for node in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if failed:
        raise failed[0]


def test_a_node_exits_only_after_its_result_is_written_to_a_slow_store() -> None:
    port, left = free_port(), threading.Event()
    received: list[NodeResult | None] = []

    def node_0() -> None:
        with HeartbeatStore(Gang(2, 0, "127.0.0.1", port), 1) as heartbeats:
            heartbeats.begin(0)
            assert left.wait(30)
            time.sleep(2 * BEAT_S)  # results are read with the next heartbeat
            received.append(heartbeats.results.get(1))

    def node_1() -> None:
        heartbeats = HeartbeatStore(Gang(2, 1, "127.0.0.1", port), 1)
        heartbeats._store = Slow(heartbeats._store, 3.0)
        with heartbeats:
            heartbeats.begin(0)
            heartbeats.post(NodeResult(143))
        left.set()

    side_by_side(node_0, node_1)
    assert received == [NodeResult(143)]


def test_the_heartbeat_thread_has_ended_when_the_context_has() -> None:
    # A thread that returns from torch while the interpreter ends would abort the process and fail a trained model.
    port = free_port()
    left: list[bool] = []

    def node(number: int) -> None:
        with HeartbeatStore(Gang(2, number, "127.0.0.1", port), 1) as heartbeats:
            heartbeats._store = Slow(heartbeats._store, 1.5)
        left.append(heartbeats._thread.is_alive())

    side_by_side(lambda: node(0), lambda: node(1))
    assert left == [False, False]


def test_an_agent_that_is_killed_is_lost_to_all_others_without_waiting_for_heartbeats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gang_agent, "PEER_TIMEOUT_S", 1e9)
    port, seen, killed = free_port(), dict[int, list[int]](), multiprocessing.get_context("fork").Event()

    def node(number: int) -> None:
        with HeartbeatStore(Gang(3, number, "127.0.0.1", port), 1) as heartbeats:
            assert killed.wait(30)
            until(lambda: heartbeats.lost)
            seen[number] = heartbeats.lost
            until(lambda: len(seen) == 2)  # node 0 ends the store

    def victim() -> None:
        with HeartbeatStore(Gang(3, 2, "127.0.0.1", port), 1):
            killed.set()
            os.kill(os.getpid(), signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(target=victim)
    process.start()
    side_by_side(lambda: node(0), lambda: node(1))
    assert seen == {0: [2], 1: [2]}
    process.join()


def test_a_node_that_leaves_is_not_lost() -> None:
    port, left, seen = free_port(), threading.Event(), list[list[int]]()

    def node_0() -> None:
        with HeartbeatStore(Gang(2, 0, "127.0.0.1", port), 1) as heartbeats:
            assert left.wait(30)
            time.sleep(2 * BEAT_S)
            seen.append(heartbeats.lost)

    def node_1() -> None:
        with HeartbeatStore(Gang(2, 1, "127.0.0.1", port), 1):
            pass
        left.set()

    side_by_side(node_0, node_1)
    assert seen == [[]]
