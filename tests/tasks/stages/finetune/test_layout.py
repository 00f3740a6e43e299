"""The stage in a layout: a killed sharded fine-tuning resumes on another number of ranks, and is merged from shards."""

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tasks.core.artifact import Artifact
from tasks.core.errors import RecipeError
from tasks.run.recipe import find_recipe
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.logs import METRICS, read_metrics
from tasks.trainer.loop import Trainer
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.parallel.replicated import whole_checkpoint
from tasks.trainer.place import Layout, TrainPlace
from tasks.trainer.tuning.model import write_merged
from tests.tasks.stages.finetune.conftest import INSTRUCTIONS, Make
from tests.tasks.stages.finetune.test_kills import die_at, rows_and_settings, spec_of
from tests.tasks.stages.finetune.test_stage import config, tune
from tests.tasks.trainer.faulty import ranks_of

ALONE = Ranks(0, 1, 0)


def test_a_killed_sharded_fine_tuning_resumes_on_one_rank_and_the_reverse(
    base: Artifact, examples: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, settings = rows_and_settings(examples, "adapters on 4 bits", steps=6, checkpoint_every=2)
    whole, changing = (spec_of(base, rows, settings, tmp_path / name) for name in ("whole", "changing"))
    shared = changing.model_copy(update={"place": TrainPlace(layout=Layout(shard=2))})
    Trainer(whole, ALONE).train()
    with monkeypatch.context() as patch:
        die_at(patch, 3, rank=1)
        assert -signal.SIGKILL in ranks_of(shared, 2)
    with monkeypatch.context() as patch:
        die_at(patch, 5)
        assert ranks_of(changing, 1) == [-signal.SIGKILL]
    assert ranks_of(shared, 2) == [0, 0]
    lines = [read_metrics(Path(spec.out) / METRICS) for spec in (whole, changing)]
    assert [line["step"] for line in lines[1]] == list(range(6))
    for name in ("loss", "grad_norm"):
        one, other = ([line[name] for line in of_run] for of_run in lines)
        np.testing.assert_allclose(other, one, atol=1e-5, rtol=0)
    last = Path(changing.out) / "checkpoints" / checkpoint.name_of(6)
    assert not checkpoint.is_whole(last)
    merged = []
    for spec in (whole, changing):
        with whole_checkpoint(Path(spec.out) / "checkpoints" / checkpoint.name_of(6)) as folder:
            adapters = (folder / checkpoint.MODEL).read_bytes()
        with (Path(spec.out) / "merged").open("wb") as file:
            write_merged(spec, adapters, file)
        merged.append(load_file(Path(spec.out) / "merged"))
    assert merged[0].keys() == merged[1].keys()
    for name, weight in merged[0].items():
        # Adam divides by the root of the squared gradient, so rounding of tiny gradients is visible.
        torch.testing.assert_close(merged[1][name], weight, atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    ("layout", "loss", "reason"),
    [
        ({"tensor": 2}, "sft", r"layout\.tensor: 2, and a fine-tuning has no tensor parallelism"),
        ({"pipeline": 2}, "sft", r"layout\.pipeline: 2, and a fine-tuning has no pipeline parallelism"),
        ({"context": 2}, "dpo", r"layout\.context: 2, and the loss of a pair is over whole answers"),
    ],
)
def test_a_layout_without_support_is_refused_before_anything_runs(
    base: Artifact, examples: Make, tmp_path: Path, layout: Any, loss: str, reason: str
) -> None:
    with pytest.raises(RecipeError, match=reason):
        tune(tmp_path / "refused", base, examples(INSTRUCTIONS), config(loss=loss), TrainPlace(layout=Layout(**layout)))
    assert not list((tmp_path / "refused").rglob("*.json"))


def test_fp8_is_refused_with_the_reason() -> None:
    with pytest.raises(RecipeError, match=r"finetune\.precision: adapters and a base in 4 bits have no products"):
        find_recipe("smoke").override({"finetune.precision": "fp8"})
