"""Rolling back: weights that a step has damaged are left, its steps are passed over, and a resume does the same."""

from pathlib import Path

import pytest
import torch

from tasks.core.errors import InputError
from tasks.trainer import checkpoint
from tasks.trainer.config import TrainSpec
from tasks.trainer.faults import FILE as FAULTS
from tasks.trainer.guard import ROLL_BACK_AFTER
from tasks.trainer.loop import Stopped, Trainer
from tasks.trainer.metrics import FILE, SKIPPED, read_metrics
from tasks.trainer.rollback import MAX_ROLLBACKS, drop_after, target
from tests.corpora import Made
from tests.tasks.trainer.faulty import damage, ranks_of
from tests.tasks.trainer.small_run import digests, save_whole, small_spec
from tests.tasks.trainer.test_loop import ALONE, stop_after

DAMAGED = 7


def run(made: Made, folder: Path, stop: int | None = None) -> TrainSpec:
    spec = small_spec(made, folder, steps=24, checkpoint_every=3, milestones=1, keep_checkpoints=9)
    trainer = Trainer(spec, ALONE)
    damage(trainer, DAMAGED)
    if stop is None:
        trainer.train()
        return spec
    stop_after(trainer, stop)
    with pytest.raises(Stopped):
        trainer.train()
    return spec


def test_a_run_goes_back_before_the_step_that_damaged_the_weights_and_passes_over(made: Made, tmp_path: Path) -> None:
    run(made, tmp_path / "whole")
    lines = read_metrics(tmp_path / "whole" / FILE)
    assert [line["step"] for line in lines] == list(range(24)), "each step once"
    # Steps 8 to 12 are refused; 6 is the newest checkpoint before them.
    assert [line["step"] for line in lines if line["loss"] is None] == list(range(6, 13))
    skipped = read_metrics(tmp_path / "whole" / SKIPPED)
    assert {line["reason"] for line in skipped} == {"passed_over"}
    assert all(line["slices"] for line in skipped)
    (fault,) = read_metrics(tmp_path / "whole" / FAULTS)
    assert (fault["kind"], fault["step"]) == ("rollback", DAMAGED + 1)
    assert "5 steps refused in a row from step 8; back to step 6, steps up to 12 are passed over" in fault["what"]
    state = checkpoint.verify(tmp_path / "whole" / "checkpoints" / checkpoint.name_of(24))
    assert (state["passed"], state["steps_taken"]) == ([[6, 13]], 24 - 7)
    assert checkpoint.steps_at(tmp_path / "whole" / "checkpoints") == [3, 6, 15, 18, 21, 24]

    for name, stop in (("before", 10), ("while", 15)):
        broken = run(made, tmp_path / name, stop)
        if name == "before":
            assert ranks_of(broken, 2, damage={"step": DAMAGED}) == [0, 0]
        else:
            again = Trainer(broken, ALONE)
            damage(again, DAMAGED)
            again.train()
        assert digests(tmp_path / "whole").items() <= digests(tmp_path / name).items()
        assert read_metrics(tmp_path / name / FAULTS) == [fault]


def test_a_run_that_goes_back_too_often_or_has_nothing_to_go_back_to_ends(made: Made, tmp_path: Path) -> None:
    trainer = Trainer(small_spec(made, tmp_path, steps=60, checkpoint_every=2, milestones=1), ALONE)
    damage(trainer, 0)
    with pytest.raises(InputError, match="out of bounds for 10 steps in a row"):
        trainer.train()


def test_no_checkpoint_is_gone_back_to_twice_nor_one_before_a_milestone(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        save_whole(tmp_path, step, {"w": torch.ones(1)}, {"m": torch.ones(1)}, {})

    def step_of(first: int, committed: int, passed: list[tuple[int, int]]) -> int | None:
        found = target(tmp_path, first, committed, passed)
        return found and found["step"]

    assert step_of(41, 0, []) == 40
    assert step_of(40, 0, []) == 30
    assert step_of(38, 0, [(30, 37)]) == 20
    assert step_of(38, 30, [(30, 37)]) is None
    assert step_of(41, 0, [(1, 2)] * MAX_ROLLBACKS) is None
    weights = tmp_path / checkpoint.name_of(30) / checkpoint.MODEL
    weights.write_bytes(weights.read_bytes()[:-1])
    assert step_of(35, 0, []) == 20
    drop_after(tmp_path, 20)
    assert checkpoint.steps_at(tmp_path) == [10, 20]
    assert ROLL_BACK_AFTER < 10
