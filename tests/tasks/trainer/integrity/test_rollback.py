"""Rollback: damaged weights are discarded, the damaging steps are skipped, and a resumed run does the same."""

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from tasks.core.errors import InputError
from tasks.core.store import Store
from tasks.stages.canary import CanaryConfig
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.checkpoints.recovery import Recovery
from tasks.trainer.config import TrainSpec
from tasks.trainer.integrity.guard import MAX_ROLLBACKS, MIN_LOSSES, ROLL_BACK_AFTER, may_roll_back_to
from tasks.trainer.logs import FAULTS, METRICS, SKIPPED, read_metrics
from tasks.trainer.loop import Trainer, TrainingStopped
from tests.corpora import Made
from tests.tasks.trainer.checkpoints.test_recovery import copy_due, output_in
from tests.tasks.trainer.faulty import damage, ranks_of
from tests.tasks.trainer.small_run import digests, save_whole, small_config, small_spec
from tests.tasks.trainer.test_loop import ALONE, stop_after

DAMAGED = 7
SETTINGS = {"steps": 24, "checkpoint_every": 3, "milestones": 1}


def run(made: Made, folder: Path, stop: int | None = None) -> TrainSpec:
    spec = small_spec(made, folder, **SETTINGS, keep_checkpoints=9)
    trainer = Trainer(spec, ALONE)
    damage(trainer, DAMAGED)
    if stop is None:
        trainer.train()
        return spec
    stop_after(trainer, stop)
    with pytest.raises(TrainingStopped):
        trainer.train()
    return spec


def test_a_run_rolls_back_before_the_damaging_step_and_skips_it(made: Made, tmp_path: Path) -> None:
    run(made, tmp_path / "whole")
    lines = read_metrics(tmp_path / "whole" / METRICS)
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


def test_weights_that_are_damaged_to_a_finite_loss_are_rolled_back_and_are_not_a_new_level(
    made: Made, tmp_path: Path
) -> None:
    at = MIN_LOSSES + 40
    settings = {**SETTINGS, "steps": at + 20, "checkpoint_every": 10}
    trainer = Trainer(small_spec(made, tmp_path, **settings, keep_checkpoints=9), ALONE)
    take = trainer.replica.optimizer.step

    def spoilt(lr: float) -> None:
        take(lr)
        if trainer.step == at:
            with torch.no_grad():
                trainer.replica.model.norm.weight.mul_(-30)

    trainer.replica.optimizer.step = spoilt
    trainer.train()
    (fault,) = read_metrics(tmp_path / FAULTS)
    assert (fault["kind"], fault["step"]) == ("rollback", at + 1)
    losses = [line["loss"] for line in read_metrics(tmp_path / METRICS)]
    assert max(loss for loss in losses[at:] if loss is not None) < losses[0]
    assert losses[-1] is not None


def test_one_checkpoint_is_too_few_for_a_rollback_and_is_refused_with_the_settings() -> None:
    with pytest.raises(ValidationError, match=r"keep_checkpoints: 1 is too few.*a rollback needs the one before it"):
        small_config(keep_checkpoints=1)
    assert CanaryConfig().training(0).keep_checkpoints >= 2


def test_two_checkpoints_are_enough_if_the_newest_one_is_damaged(made: Made, tmp_path: Path) -> None:
    """The default. Step 5 damages the weights, which are saved, and step 6 is refused."""
    trainer = Trainer(small_spec(made, tmp_path, **SETTINGS), ALONE)
    assert trainer.run.keep_checkpoints == 2
    damage(trainer, 5)
    trainer.train()
    (fault,) = read_metrics(tmp_path / FAULTS)
    assert "refused in a row from step 6; back to step 3" in fault["what"]
    assert read_metrics(tmp_path / METRICS)[-1]["loss"] is not None


def test_a_machine_that_fetches_a_checkpoint_also_fetches_the_previous_one(made: Made, tmp_path: Path) -> None:
    """Step 5 damages the weights, which are saved and copied; then the machine is lost."""
    spec, store = small_spec(made, tmp_path / "here", **SETTINGS), Store(f"memory://{tmp_path.name}")
    trainer, recovery = Trainer(spec, ALONE), Recovery(output_in(store), tmp_path / "here", (24,))
    damage(trainer, 5)
    for step in (3, 6):
        stop_after(trainer, step - 1)
        with pytest.raises(TrainingStopped):
            trainer.train()
        copy_due(recovery)
    there = small_spec(made, tmp_path / "there", **SETTINGS)
    Recovery(output_in(store), tmp_path / "there", (24,)).restore()
    assert checkpoint.steps_at(tmp_path / "there" / "checkpoints") == [3, 6]
    Trainer(there, ALONE).train()
    assert "back to step 3" in read_metrics(tmp_path / "there" / FAULTS)[0]["what"]
    assert len(read_metrics(tmp_path / "there" / METRICS)) == 24


def test_too_many_rollbacks_or_no_target_end_the_run(made: Made, tmp_path: Path) -> None:
    trainer = Trainer(small_spec(made, tmp_path, steps=60, checkpoint_every=2, milestones=1), ALONE)
    damage(trainer, 0)
    with pytest.raises(
        InputError, match=r"10 steps in a row were refused.*the weights are damaged. No earlier checkpoint"
    ):
        trainer.train()


def test_a_rollback_uses_no_checkpoint_twice_and_none_before_a_milestone(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        save_whole(tmp_path, step, {"w": torch.ones(1)}, {"m": torch.ones(1)}, {})

    def step_of(first: int, committed: int, passed: list[tuple[int, int]]) -> int | None:
        wanted = lambda step: may_roll_back_to(step, first, committed, passed)  # noqa: E731
        return next((step for step in reversed(checkpoint.steps_at(tmp_path)) if wanted(step)), None)

    assert step_of(41, 0, []) == 40
    assert step_of(40, 0, []) == 30
    assert step_of(38, 0, [(30, 37)]) == 20
    assert step_of(38, 30, [(30, 37)]) is None
    assert step_of(41, 0, [(1, 2)] * MAX_ROLLBACKS) is None
    checkpoint.drop_after(tmp_path, 20)
    assert checkpoint.steps_at(tmp_path) == [10, 20]
    assert ROLL_BACK_AFTER < 10
