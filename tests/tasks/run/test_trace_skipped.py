"""Trace marks refused and skipped steps as not trained, with the reason."""

from typing import Any

import pytest
import torch

from tasks.core.store import Store
from tasks.run.trace.text import render
from tasks.run.trace.trace import trace
from tasks.trainer.config import OptimConfig, TrainConfig, TrainSpec
from tasks.trainer.loop import Trainer
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.parallel.ranks import Ranks
from tests.conftest import run_stage_in
from tests.corpora import corpus, documents_in, tokens_in
from tests.tasks.trainer.faulty import damage

REFUSED, DAMAGED = 3, 9


def faulty(spec: TrainSpec, *_: Any, **__: Any) -> None:
    """Trains in this process with a non-finite step and a later one that damages the weights."""
    trainer = Trainer(spec, Ranks(0, 1, 0))
    damage(trainer, DAMAGED)

    def spoil(module: object, inputs: object, output: torch.Tensor) -> torch.Tensor:
        return output * float("nan") if trainer.step == REFUSED else output

    trainer.replica.model.layers["0"].register_forward_hook(spoil)
    trainer.train()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("skipped")
    rows = corpus(60)
    documents_in(folder, rows, 3)
    made = tokens_in(folder, rows)
    config = TrainConfig(
        model=ModelConfig(layers=1, dim=16, heads=2, kv_heads=1), optim=OptimConfig(warmup_steps=2), steps=20,
        batch_size=4, microbatch=4, checkpoint_every=4, keep_checkpoints=9, milestones=1,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.trainer.launch.supervised.train_local", faulty)
        inputs = {"shards": made.shards, "plan": made.plan}
        run_stage_in(folder, "tasks.stages.train.stage", config, inputs, kind="checkpoint")
    return Store(str(folder))


def test_a_refused_or_skipped_step_states_its_reason(store: Store) -> None:
    reasons = {step: trace(store, "test", "dev", f"step:{step}").to_json()["skipped"] for step in range(20)}
    # Steps 10 to 14 are refused after the damage of step 9; the checkpoint of step 8 is the last good one.
    over = {step: "passed_over" for step in range(8, 15)}
    assert {step: why for step, why in reasons.items() if why} == {REFUSED: "loss_not_finite", **over}
    assert "skipped (passed_over): it did not change the model" in render(trace(store, "test", "dev", "step:9"))


def test_skipped_steps_do_not_count_as_reads_of_a_page(store: Store) -> None:
    skipped = {REFUSED, *range(8, 15)}
    unread = 0
    for row in corpus(60):
        (document,) = trace(store, "test", "dev", row["url"]).to_json()["documents"]
        assert document["skipped_steps"] == [step for step in document["steps"] if step in skipped]
        assert bool(document["checkpoints"]) == bool(set(document["steps"]) - skipped)
        unread += bool(document["steps"]) and not document["checkpoints"]
    assert unread, "a page that skipped steps alone have read is in no checkpoint"
