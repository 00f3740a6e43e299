"""Timeouts between ranks: those of the start, of a step and of a checkpoint are settings of the place."""

import os
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tasks.trainer.loop import Trainer
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.place import Timeouts
from tests.corpora import Made
from tests.tasks.trainer.forks import forked
from tests.tasks.trainer.gangs import free_port
from tests.tasks.trainer.small_run import small_spec

TIMEOUTS = Timeouts(start_s=50, step_s=7, checkpoint_s=90)


def timeout_of(group: dist.ProcessGroup | None) -> timedelta:
    group = group or dist.group.WORLD
    assert group is not None
    found: timedelta = group._get_backend(torch.device("cpu")).options._timeout
    return found


def rank(number: int, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(number), "WORLD_SIZE": "2"}
    with Ranks.from_environment(TIMEOUTS) as ranks:
        groups = [None, dist.new_group(), ranks.checkpoint_group()]
        before = [timeout_of(group).total_seconds() for group in groups]
        ranks.end_start()
        after = [timeout_of(group).total_seconds() for group in groups]
    os._exit(0 if (before[0], before[2], after) == (50, 90, [7, 7, 90]) else 1)


def later_run(number: int, port: int, later_port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(number), "WORLD_SIZE": "2"}
    with Ranks.from_environment(TIMEOUTS) as ranks:
        ranks.checkpoint_group()
    os.environ["MASTER_PORT"] = str(later_port)
    with Ranks.from_environment(TIMEOUTS) as ranks:
        groups = [None, dist.new_group(), dist.new_group()]
        ranks.end_start()
        after = [timeout_of(group).total_seconds() for group in groups]
    os._exit(0 if after == [7, 7, 7] else 1)


def test_groups_of_a_later_run_with_the_names_of_earlier_ones_have_their_own_timeouts() -> None:
    ports = free_port(), free_port()
    assert forked(later_run, [(0, *ports), (1, *ports)]) == [0, 0]


def test_groups_have_the_timeout_of_the_start_and_then_of_a_step_and_those_of_checkpoints_keep_theirs() -> None:
    port = free_port()
    assert forked(rank, [(0, port), (1, port)]) == [0, 0]


def test_the_start_ends_with_the_first_step(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(small_spec(made, tmp_path, steps=3, milestones=1), Ranks(0, 1, 0))
    seen: list[int] = []
    monkeypatch.setattr(Ranks, "end_start", lambda ranks: seen.append(trainer.step))
    trainer.train()
    assert seen == [1]
