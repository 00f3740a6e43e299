"""Batch-size warm-up: runs, their traces, and the ranks that can share every batch."""

from pathlib import Path
from typing import Any

import pytest

from tasks.core.errors import InputError
from tasks.formats.tokens.order import Order
from tasks.stages.train.stage import describe_run
from tasks.trainer.best import End
from tasks.trainer.config import RampConfig, TrainConfig
from tasks.trainer.data.batches import Batches
from tasks.trainer.logs import METRICS, read_metrics
from tasks.trainer.loop import Trainer, TrainingStopped
from tasks.trainer.model.shape import ModelShape
from tasks.trainer.parallel.fit import layout_reasons
from tasks.trainer.parallel.replicated import check_ranks
from tasks.trainer.place import Layout
from tasks.trainer.spec import open_plan
from tests.corpora import Made
from tests.tasks.trainer.small_run import digests, small_config, small_spec
from tests.tasks.trainer.test_loop import ALONE, curve, stop_after, train

RAMP = (RampConfig(batch_size=2, steps=3), RampConfig(batch_size=4, steps=2))
SETTINGS: dict[str, Any] = {"ramp": RAMP, "batch_size": 8, "steps": 9, "checkpoint_every": 2, "milestones": 1}


def test_a_run_stopped_in_its_warm_up_ends_with_the_bytes_of_an_uninterrupted_one(made: Made, tmp_path: Path) -> None:
    whole, broken = (small_spec(made, tmp_path / name, **SETTINGS) for name in ("whole", "broken"))
    assert whole.data_changes == (3, 5)
    train(whole)
    for step in (1, 3):
        trainer = Trainer(broken, ALONE)
        stop_after(trainer, step)
        with pytest.raises(TrainingStopped):
            trainer.train()
    train(broken)
    last = "checkpoints/step-00000009/*"
    assert digests(tmp_path / "broken", last) == digests(tmp_path / "whole", last)
    assert curve(broken) == curve(whole)
    tokens = [line["tokens"] for line in read_metrics(tmp_path / "whole" / METRICS)]
    assert tokens[2] < (tokens[4] - tokens[2]) * 1.2 < tokens[8] - tokens[6]


def test_a_trace_finds_the_steps_that_read_a_document(made: Made, tmp_path: Path) -> None:
    spec = small_spec(made, tmp_path, **SETTINGS)
    plan, batches = open_plan(spec), Batches(spec)
    order = Order.of_run(describe_run(spec, plan, End(spec.run.steps, None, "")))
    read: dict[tuple[str, int], list[int]] = {}
    for step in range(9):
        for place in batches.documents(step):
            read.setdefault(place, []).append(step)
        rows = [len(part.tokens) for part in batches.microbatches(step, range(4)).values()]
        assert sum(rows) == order.size_of(step)
    batches.close()
    for (shard, row), steps in read.items():
        source = shard.rpartition("-train-")[0]
        sequences = plan.sequences_of(source, shard, row)
        assert sorted({step for one in sequences for step in order.steps_of(source, one, 9)}) == steps
    assert len(read) > 10


def test_every_batch_must_be_shared_equally(made: Made) -> None:
    run = small_config(**SETTINGS)
    check_ranks(run, 1)
    with pytest.raises(InputError, match="2 ranks cannot share 1 microbatches"):
        check_ranks(run, 2)
    run = run.model_copy(update={"microbatch": 1})
    shape = ModelShape.of(run.model, 512)
    assert not layout_reasons(Layout(shard=2), run, shape, 32, 1, 2)
    assert "cannot share 2 microbatches" in "".join(layout_reasons(Layout(shard=4), run, shape, 32, 1, 4))
    assert "leave out train.ramp" in "".join(layout_reasons(Layout(pipeline=2), run, shape, 32, 1, 2))


@pytest.mark.parametrize(
    ("ramp", "reason"),
    [
        ([(8, 2), (4, 2)], "must grow"),
        ([(3, 2)], "multiple of microbatch"),
        ([(4, 12)], "leave nothing of 12 steps"),
    ],
)
def test_an_impossible_warm_up_is_refused(ramp: list[tuple[int, int]], reason: str) -> None:
    stages = [{"batch_size": size, "steps": steps} for size, steps in ramp]
    with pytest.raises(ValueError, match=reason):
        small_config(batch_size=16, ramp=stages)


def test_sequences_are_counted_stage_by_stage() -> None:
    run = TrainConfig(steps=20, batch_size=8, ramp=[RampConfig(batch_size=4, steps=10)])
    assert [run.samples(steps) for steps in (0, 4, 10, 12, 20)] == [0, 16, 40, 56, 120]
