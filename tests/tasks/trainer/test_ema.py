"""The mean of the weights: what it is, and that it survives stops and other numbers of ranks bit for bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, load_file, save

from tasks.core.artifact import ArtifactId
from tasks.core.stage import Output
from tasks.core.store import Store
from tasks.stages.train.stage import _write_averaged
from tasks.trainer.checkpoints.checkpoint import EMA, MODEL, OPTIMIZER
from tasks.trainer.config import EmaConfig
from tasks.trainer.loop import Trainer, TrainingStopped
from tasks.trainer.model.model_file import AVERAGED
from tests.corpora import Made
from tests.tasks.trainer.small_run import digests, small_spec
from tests.tasks.trainer.test_loop import ALONE, stop_after, train

SETTINGS: dict[str, Any] = {"ema": EmaConfig(decay=0.5), "milestones": 6, "checkpoint_every": 2, "steps": 6}


def weights(run: Path, step: int, file: str) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_file(run / "checkpoints" / f"step-{step:08d}" / file)
    return found


def test_it_is_a_plain_mean_at_first_and_then_forgets_by_the_decay(made: Made, tmp_path: Path) -> None:
    train(small_spec(made, tmp_path, **SETTINGS))
    name = "layers.1.ffn.w2.weight"
    steps = [weights(tmp_path, step, MODEL)[name] for step in range(1, 7)]
    mean = (steps[0] + steps[1]) / 2
    for weight in steps[2:]:
        mean = mean.lerp(weight, 0.5)
    last = weights(tmp_path, 6, OPTIMIZER)
    torch.testing.assert_close(last[EMA + name], mean)
    assert last[EMA + name].dtype == torch.float32
    assert {key.removeprefix(EMA) for key in last if key.startswith(EMA)} == weights(tmp_path, 6, MODEL).keys()


def test_a_resumed_run_has_the_mean_of_an_uninterrupted_one(made: Made, tmp_path: Path) -> None:
    train(small_spec(made, tmp_path / "whole", **SETTINGS))
    spec = small_spec(made, tmp_path / "broken", **SETTINGS)
    trainer = Trainer(spec, ALONE)
    stop_after(trainer, 2)
    with pytest.raises(TrainingStopped):
        trainer.train()
    train(spec)
    last = "checkpoints/step-00000006/*.safetensors"
    assert digests(tmp_path / "broken", last) == digests(tmp_path / "whole", last)


def test_the_weights_of_the_run_are_those_without_a_mean(made: Made, tmp_path: Path) -> None:
    train(small_spec(made, tmp_path / "mean", **SETTINGS))
    train(small_spec(made, tmp_path / "none", **{**SETTINGS, "ema": None}))
    last = "checkpoints/step-00000006/model.safetensors"
    assert digests(tmp_path / "mean", last) == digests(tmp_path / "none", last)


def test_its_length_is_set_once() -> None:
    assert EmaConfig(horizon=100).keep == 0.99
    for settings in ({}, {"decay": 0.9, "horizon": 10}):
        with pytest.raises(ValueError, match="either horizon"):
            EmaConfig(**settings)


def test_the_mean_of_a_milestone_is_published_under_the_names_of_the_model(tmp_path: Path) -> None:
    store, address = Store(str(tmp_path)), ArtifactId("r/checkpoint", "v")
    output = Output(store, address, "f" * 64)
    mean = {"norm.weight": torch.rand(4), "layers.0.ffn.w1.weight": torch.rand(3, 4)}
    moments = {f"{kind}.{name}": torch.zeros_like(own) for name, own in mean.items() for kind in ("first", "second")}
    with output.part("step-00000002", conserved=False) as part:
        for file, tensors in ((MODEL, mean), (OPTIMIZER, moments | {EMA + name: own for name, own in mean.items()})):
            part.write(f"checkpoints/step-00000002/{file}", save(tensors))
    _write_averaged(output, [2])
    found = load(store.read(f"{address.path}/{AVERAGED}/step-00000002/{MODEL}"))
    assert found.keys() == mean.keys()
    assert all(torch.equal(found[name], own) for name, own in mean.items())
