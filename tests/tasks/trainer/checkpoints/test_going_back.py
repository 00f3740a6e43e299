"""A run that goes back to an earlier checkpoint on request: what came after it is abandoned everywhere, once."""

import logging
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tasks.core.artifact import Artifact
from tasks.core.errors import InputError, TransientError
from tasks.trainer import loop
from tasks.trainer.loop import Trainer
from tests.conftest import run_stage_in
from tests.corpora import Made
from tests.tasks.stages.train.test_stage import STAGE, contents
from tests.tasks.trainer.in_process import in_process
from tests.tasks.trainer.small_run import small_config

__all__ = ["in_process"]

END, BAD_FROM = 11, 6
CONFIG = small_config(milestones=4)
"""Checkpoints of steps 3, 6, 9 and 12, all milestones."""


class Machines:
    """Machines with scratch folders of their own, and a store that they share."""

    def __init__(self, made: Made, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.made, self.folder, self.patch = made, folder, patch

    def train(self, machine: str, resume_from: str = "") -> Artifact:
        config = CONFIG.model_copy(update={"resume_from": resume_from})
        self.patch.setattr(tempfile, "tempdir", str(self.folder / machine))
        store = f"memory://{self.folder.name}"
        inputs = {"shards": self.made.shards, "plan": self.made.plan}
        return run_stage_in(store, STAGE, config, inputs, kind="checkpoint")

    def interrupt(self, machine: str, resume_from: str = "", *, bad: bool = False) -> None:
        """Trains up to the last step; the steps of a bad node have a wrong learning rate from `BAD_FROM` on."""
        train_step, rate = Trainer._train_step, loop.learning_rate

        def stopping(trainer: Trainer, *args: Any) -> object:
            if trainer.step == END:
                raise TransientError("the node is gone")
            return train_step(trainer, *args)

        with self.patch.context() as patch:
            patch.setattr(Trainer, "_train_step", stopping)
            if bad:
                patch.setattr(loop, "learning_rate", lambda optim, step, *_: rate(optim, step, 12) * (1 + (step >= 6)))
            with pytest.raises(TransientError):
                self.train(machine, resume_from)


@pytest.fixture
def machines(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machines:
    return Machines(made, tmp_path, monkeypatch)


def test_steps_of_a_bad_node_are_abandoned_on_all_machines_and_made_again(
    made: Made, machines: Machines, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    inputs = {"shards": made.shards, "plan": made.plan}
    whole = run_stage_in(tmp_path / "whole", STAGE, CONFIG, inputs, kind="checkpoint")
    machines.interrupt("first", bad=True)
    machines.interrupt("second", "6")
    assert "back to step 6 on request: steps 6 to 8 and checkpoints 9 are abandoned" in caplog.text
    assert "resumed at step 6 of 12" in caplog.text
    caplog.clear()
    made_again = machines.train("first", "6")
    assert "resumed at step 9 of 12" in caplog.text, "a retry with the same request goes on, with the good step 9"
    assert contents(made_again) == contents(whole)


def test_the_same_step_is_gone_back_to_again_only_by_another_request(
    machines: Machines, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    machines.interrupt("first", bad=True)
    machines.interrupt("first", "6", bad=True)
    machines.interrupt("first", "6#2")
    assert caplog.text.count("resumed at step 6 of 12") == 2


def test_a_step_without_a_checkpoint_is_refused_with_those_that_exist(machines: Machines) -> None:
    machines.interrupt("first")
    with pytest.raises(InputError, match=r"the checkpoint of step 7 does not exist\. Name one of 3, 6, 9"):
        machines.train("first", "7")
    assert machines.train("first").record.metrics["steps"] == 12
