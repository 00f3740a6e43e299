"""The window of items in flight, without a cluster."""

import random
import time

import pytest

from tasks.core.workers import window as window_module
from tasks.core.workers.window import Done, Window, work

MOST = 512
"""Items in flight per thread."""


@pytest.mark.parametrize("seed", range(20))
def test_every_item_gets_one_result_whatever_comes_back_unfinished(seed: int) -> None:
    chance = random.Random(seed)
    pace = 10 ** chance.uniform(-6, 1)
    threads = chance.randint(1, 5)
    window = Window(2_000)
    flying: list[list[int]] = []
    finished: list[int] = []
    while flying or window.waiting:
        flying += window.groups(sum(map(len, flying)), threads)
        assert sum(map(len, flying)) <= threads * MOST
        group = flying.pop(chance.randrange(len(flying)))
        fate = chance.random()
        if fate < 0.05 and len(group) > 1:
            window.alone(group)
            continue
        done = 0 if fate < 0.1 else len(group) if fate < 0.8 else chance.randint(1, len(group))
        finished += group[:done]
        window.again(group[done:])
        if done:
            window.measured(Done([None] * done, done * pace * chance.uniform(0.5, 2)))
    assert sorted(finished) == list(range(2_000))


def sizes(count: int, seconds: float, threads: int) -> list[int]:
    """Returns the sizes of all groups, if each item takes that long and groups come back in order."""
    window = Window(count)
    flying: list[list[int]] = []
    found: list[int] = []
    while flying or window.waiting:
        new = list(window.groups(sum(map(len, flying)), threads))
        found += map(len, new)
        flying += new
        window.measured(Done([None] * len(flying[0]), seconds * len(flying.pop(0))))
    return found


def test_items_are_grouped_to_a_quarter_of_a_second_and_the_last_ones_are_shared() -> None:
    assert set(sizes(100, 0.3, 2)) == {1}
    found = sizes(2_000, 0.01, 2)
    assert found[:8] == [1] * 8, "nothing is known yet"
    assert max(found) == 25
    assert found[-4:-1] == [2] * 3, "20 ms, as a task costs"
    assert max(sizes(100_000, 0.00001, 2)) == 128


def slow(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def test_a_worker_returns_a_group_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_module, "STOP_S", 0.05)
    done = work(slow, [0.0, 0.0, 0.1, 0.0])
    assert done.results == [0.0, 0.0, 0.1]
    assert work(abs, range(-5, 0)).results == [5, 4, 3, 2, 1]
