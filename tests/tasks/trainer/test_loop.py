"""The loop: resuming does not change the result, and a broken step changes nothing."""

import logging
import shutil
import time
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from tasks.core.errors import InputError, StoreError
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.config import TrainSpec
from tasks.trainer.integrity.guard import MAX_REFUSED, WINDOW
from tasks.trainer.logs import DETERMINISTIC, FAULTS, METRICS, SKIPPED, MetricsTail, read_metrics
from tasks.trainer.loop import Trainer, TrainingStopped
from tasks.trainer.model.config import ExpertsConfig, ModelConfig
from tasks.trainer.parallel import replicated
from tasks.trainer.parallel.ranks import Ranks, tree_sum
from tests.corpora import Made
from tests.tasks.trainer.small_run import digests, small_spec

ALONE = Ranks(0, 1, 0)


def train(spec: TrainSpec) -> Trainer:
    trainer = Trainer(spec, ALONE)
    trainer.train()
    return trainer


def curve(spec: TrainSpec) -> list[list[float]]:
    return [[line[name] for name in DETERMINISTIC] for line in read_metrics(Path(spec.out) / METRICS)]


def stop_after(trainer: Trainer, step: int) -> None:
    """Requests a stop of the trainer during `step`, like SIGTERM."""

    def watch(module: object, inputs: object) -> None:
        trainer.replica.stop_requested = trainer.step == step

    trainer.replica.model.layers["0"].register_forward_pre_hook(watch)


def poison(trainer: Trainer, steps: range) -> None:
    """Makes the model's output NaN in some steps."""

    def spoil(module: object, inputs: object, output: torch.Tensor) -> torch.Tensor:
        return output * float("nan") if trainer.step in steps else output

    trainer.replica.model.layers["1"].register_forward_hook(spoil)


def jolt(trainer: Trainer, steps: range) -> None:
    """Makes the model's output extreme but finite in some steps."""

    def shake(module: object, inputs: object, output: torch.Tensor) -> torch.Tensor:
        return -50 * output if trainer.step in steps else output

    trainer.replica.model.norm.register_forward_hook(shake)


def test_the_loss_falls(made: Made, tmp_path: Path) -> None:
    spec = small_spec(made, tmp_path, steps=40, checkpoint_every=50)
    train(spec)
    losses = [line["loss"] for line in read_metrics(tmp_path / METRICS)]
    assert len(losses) == 40
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])


@pytest.mark.parametrize("experts", [None, ExpertsConfig(count=4, per_token=2, width=16, balance="bias")])
def test_a_stopped_and_resumed_run_ends_with_the_same_bytes(
    made: Made, tmp_path: Path, experts: ExpertsConfig | None
) -> None:
    model = ModelConfig(layers=2, dim=32, heads=4, kv_heads=2, experts=experts)
    whole, broken = (small_spec(made, tmp_path / name, model=model) for name in ("whole", "broken"))
    train(whole)
    trainer = Trainer(broken, ALONE)
    stop_after(trainer, 4)
    with pytest.raises(TrainingStopped, match="after 5 of 12"):
        trainer.train()
    assert checkpoint.steps_at(tmp_path / "broken" / "checkpoints") == [3, 5]
    train(broken)
    last = {name: value for name, value in digests(tmp_path / "whole").items() if "00000012" in name}
    assert len(last) == 3
    assert last.items() <= digests(tmp_path / "broken").items()
    assert curve(whole) == curve(broken)
    if experts:
        line = read_metrics(tmp_path / "whole" / METRICS)[-1]
        assert line["experts/dropped"] == 0
        assert line["experts/load"] == max(line["experts/load/0"], line["experts/load/1"]) >= 1


def test_a_run_resumes_from_the_checkpoint_before_a_damaged_one(
    made: Made, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = small_spec(made, tmp_path, keep_checkpoints=4)
    train(spec)
    before, lines = digests(tmp_path), curve(spec)
    weights = tmp_path / "checkpoints" / checkpoint.name_of(12) / checkpoint.MODEL
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x7f")
    with caplog.at_level(logging.INFO):
        train(spec)
    assert "resumed at step 9" in caplog.text
    (fault,) = read_metrics(tmp_path / FAULTS)
    assert (fault["kind"], fault["step"]) == ("checkpoint", 12)
    assert digests(tmp_path) == before
    assert curve(spec) == lines


def test_a_full_scratch_disk_ends_the_run_with_its_location_and_the_next_start_resumes(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, root = small_spec(made, tmp_path), tmp_path / "checkpoints"

    def full(tensors: dict[str, torch.Tensor], path: Path) -> None:
        if path.parent == checkpoint.unfinished(root, 6):
            path.write_bytes(b"half")
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
        save_file(tensors, path)

    with monkeypatch.context() as disk:
        disk.setattr(replicated, "save_file", full)
        with pytest.raises(StoreError, match=f"scratch, {root}, .* step 6: No space left .* Free space"):
            train(spec)
    assert [path.name for path in root.iterdir()] == [checkpoint.name_of(3)], "half a checkpoint would fill the disk"
    train(spec)
    assert checkpoint.steps_at(root) == [3, 6, 9, 12]


def test_a_finished_run_is_not_repeated(made: Made, tmp_path: Path) -> None:
    spec = small_spec(made, tmp_path)
    train(spec)
    before = digests(tmp_path)
    again = Trainer(spec, ALONE)
    assert again.step == 12
    again.train()
    assert digests(tmp_path) == before


def test_a_non_finite_step_changes_nothing_and_names_its_documents(made: Made, tmp_path: Path) -> None:
    trainer = Trainer(small_spec(made, tmp_path, steps=6), ALONE)
    poison(trainer, range(3, 4))
    trainer.train()
    lines = read_metrics(tmp_path / METRICS)
    assert [line["loss"] is None for line in lines] == [False, False, False, True, False, False]
    assert lines[3]["tokens"] == lines[2]["tokens"]
    assert trainer.replica.optimizer.steps_taken == 5
    assert all(weight.isfinite().all() for weight in trainer.replica.model.parameters())
    (skipped,) = read_metrics(tmp_path / SKIPPED)
    assert (skipped["step"], skipped["reason"]) == (3, "loss_not_finite")
    assert skipped["slices"] == trainer.batches.slices(3)


def test_the_same_spike_is_skipped_before_and_after_a_resume(made: Made, tmp_path: Path) -> None:
    settings = {"steps": WINDOW + 12, "checkpoint_every": WINDOW + 2, "milestones": 1, "batch_size": 2}
    spec = small_spec(made, tmp_path, **settings)
    for attempt in range(2):
        trainer = Trainer(spec, ALONE)
        assert trainer.step == attempt * (WINDOW + 2)
        jolt(trainer, range(WINDOW + 6, WINDOW + 7))
        trainer.train()
        skipped = [(line["step"], line["reason"]) for line in read_metrics(tmp_path / SKIPPED)]
        assert skipped == [(WINDOW + 6, "loss_spike")]
        shutil.rmtree(tmp_path / "checkpoints" / checkpoint.name_of(WINDOW + 12))


def test_a_run_that_never_recovers_stops_with_its_cause(made: Made, tmp_path: Path) -> None:
    trainer = Trainer(small_spec(made, tmp_path, steps=40), ALONE)
    poison(trainer, range(2, 40))
    with pytest.raises(InputError, match=f"{MAX_REFUSED} steps in a row were refused"):
        trainer.train()
    assert len(read_metrics(tmp_path / METRICS)) == 2 + MAX_REFUSED - 1


def test_checkpoints_of_another_run_are_refused(made: Made, tmp_path: Path) -> None:
    train(small_spec(made, tmp_path, steps=3))
    with pytest.raises(InputError, match="another run"):
        Trainer(small_spec(made, tmp_path, steps=3, init_seed=1), ALONE)


def test_more_ranks_than_microbatches_are_refused(made: Made, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="3 ranks cannot share 2 microbatches"):
        Trainer(small_spec(made, tmp_path), Ranks(0, 3, 0))


def test_bf16_trains_and_keeps_its_state_in_fp32(made: Made, tmp_path: Path) -> None:
    trainer = train(small_spec(made, tmp_path, precision="bf16"))
    lines = read_metrics(tmp_path / METRICS)
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert {tensor.dtype for tensor in trainer.replica.optimizer.state().values()} == {torch.float32}
    assert {weight.dtype for weight in trainer.replica.model.parameters()} == {torch.float32}


def test_the_tree_sum_of_two_ranks_equals_that_of_one() -> None:
    values = [torch.tensor([x], dtype=torch.float32) for x in (1e8, 1.0, -1e8, 3.0, 7.0, 1e-3, 2e7, -5.0)]

    def compute(number: int) -> list[torch.Tensor]:
        return [values[number].clone()]

    whole = tree_sum(range(8), compute)[0]
    halves = [tree_sum(range(8)[rank::2], compute)[0] for rank in range(2)]
    assert whole.equal(halves[0] + halves[1])
    assert not whole.equal(sum(values[1:], values[0]))


def test_the_tail_of_the_metrics_has_each_step_once_across_a_restart(tmp_path: Path) -> None:
    path = tmp_path / METRICS
    tail = MetricsTail(path)
    assert list(tail.new_lines()) == []
    path.write_text('{"step": 0}\n{"step": 1}\n{"step": 2')
    assert [line["step"] for line in tail.new_lines()] == [0, 1]
    aside = tmp_path / "aside"
    aside.write_text('{"step": 0}\n{"step": 1}\n{"step": 2}\n')
    aside.rename(path)
    assert [line["step"] for line in tail.new_lines()] == [2]


def test_a_checkpoint_has_the_state_of_its_step_even_if_the_copy_is_slow(made: Made, tmp_path: Path) -> None:
    usual, slow = (small_spec(made, tmp_path / name, keep_checkpoints=9) for name in ("usual", "slow"))
    train(usual)
    trainer = Trainer(slow, ALONE)
    stage = trainer.replica.stage

    def slowly() -> object:
        time.sleep(0.1)  # several steps of this model
        return stage()

    trainer.replica.stage = slowly  # type: ignore[method-assign, assignment]
    trainer.train()
    assert digests(Path(usual.out)) == digests(Path(slow.out)) != {}
