"""Poison in a fine-tuning: the bad row is found by its part of the loss, for answers and for pairs of answers."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tasks.core.artifact import Artifact
from tasks.core.stage import Inputs
from tasks.formats.tokens import marks
from tasks.trainer.data.withheld import slice_losses
from tasks.trainer.logs import METRICS, read_metrics
from tasks.trainer.loop import Trainer
from tasks.trainer.spec import tuning_spec
from tests.corpora import Made
from tests.tasks.stages.finetune.conftest import INSTRUCTIONS, PREFERENCES, Make
from tests.tasks.stages.finetune.test_compare import SHORT
from tests.tasks.stages.finetune.test_stage import config
from tests.tasks.trainer.faulty import poison
from tests.tasks.trainer.test_loop import ALONE

BELL = "\a"
CASES = {
    "sft": (INSTRUCTIONS, {"prompt": "Say it.", "response": f"{BELL} red"}, "instructions"),
    "dpo": (PREFERENCES, {"prompt": "Say it.", "chosen": f"{BELL} red", "rejected": "blue"}, "preferences"),
}


def trainer_of(loss: str, base: Artifact, made: Artifact, out: Path, **settings: Any) -> Trainer:
    inputs = Inputs({"base": base, "examples": made})
    return Trainer(tuning_spec(config(loss=loss, steps=12, **settings), inputs, out), ALONE)


@pytest.mark.parametrize("loss", CASES)
def test_the_losses_of_the_rows_are_those_of_the_batch(
    loss: str, base: Artifact, examples: Make, tmp_path: Path
) -> None:
    rows, _, kind = CASES[loss]
    trainer = trainer_of(loss, base, examples(rows, kind=kind), tmp_path)
    parts = trainer.batches.microbatches(0, trainer.replica.numbers)
    whole = trainer.computer.gradient(parts)
    slices = slice_losses(trainer.replica, trainer.batches, 0, parts)
    assert sum(piece.labels for piece in slices) == whole.labels
    assert sum(piece.loss for piece in slices) == pytest.approx(whole.loss * whole.labels)


@pytest.mark.parametrize("loss", CASES)
def test_a_poisonous_row_is_withheld_and_the_rest_is_trained(
    loss: str, base: Artifact, examples: Make, made: Made, tmp_path: Path
) -> None:
    rows, bad, kind = CASES[loss]
    found = examples([*rows[:20], bad, *rows[20:]], kind=kind, template=SHORT)
    trainer = trainer_of(loss, base, found, tmp_path)
    poison(trainer, Tokenizer.from_file(str(made.tokenizer.local("tokenizer.json"))).encode(BELL).ids)
    trainer.train()
    (mark,) = marks.from_json((tmp_path / marks.FILE).read_bytes())
    assert mark.rows == {"examples/part-00000-of-00001.arrow": (20,)}
    assert mark.reason == "loss_not_finite"
    assert all(line["loss"] is not None for line in read_metrics(tmp_path / METRICS))
