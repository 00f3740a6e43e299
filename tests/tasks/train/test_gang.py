"""Two nodes train one model: the same bytes, one writer, and no node that waits for ever for another."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.corpora import Made
from tests.tasks.train.gangs import contents, ended, gang, pod, recipe_of, store_with, trained_in
from tests.tasks.train.small_run import WEIGHTS, small_config


@pytest.fixture
def store(made: Made, tmp_path: Path) -> Path:
    return store_with(made, tmp_path / "store", WEIGHTS)


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.05)


def test_two_nodes_make_what_one_node_with_two_ranks_makes(made: Made, tmp_path: Path) -> None:
    one, two = (store_with(made, tmp_path / name, WEIGHTS) for name in ("one", "two"))
    alone = ended([pod(recipe_of(one, small_config()), PET_NPROC_PER_NODE="2")])
    assert alone[0][0] == 0, alone[0][1]
    together = ended(gang(recipe_of(two, small_config())))
    assert [code for code, _ in together] == [0, 0], together
    assert contents(trained_in(one)) == contents(trained_in(two))
    assert "helping with train" in together[1][1]
    again = ended(gang(recipe_of(two, small_config())))
    assert [code for code, _ in again] == [0, 0]
    assert "there is nothing to help with" in again[1][1]
