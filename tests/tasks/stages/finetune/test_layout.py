"""A fine-tuning in any layout of FSDP trains like one rank, and its checkpoints are read by any other number of ranks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from tasks.core.artifact import Artifact
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.config import TrainSpec
from tasks.trainer.logs import METRICS, read_metrics
from tasks.trainer.loop import Trainer
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.place import Layout
from tests.tasks.stages.finetune.conftest import Make
from tests.tasks.stages.finetune.test_kills import METHODS, rows_and_settings, spec_of
from tests.tasks.trainer.faulty import ranks_of

ALONE = Ranks(0, 1, 0)


def in_layout(spec: TrainSpec, **layout: Any) -> TrainSpec:
    return spec.model_copy(update={"layout": Layout(**layout)})


def curve(spec: TrainSpec) -> np.ndarray:
    lines = read_metrics(Path(spec.out) / METRICS)
    return np.array([[line[name] for name in ("loss", "grad_norm", "tokens")] for line in lines])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("layout", [{"shard": 2}])
def test_ranks_that_share_the_state_train_like_one(
    base: Artifact, examples: Make, tmp_path: Path, method: str, layout: dict[str, Any]
) -> None:
    rows, settings = rows_and_settings(examples, method, steps=4, checkpoint_every=2)
    whole, shared = (spec_of(base, rows, settings, tmp_path / name) for name in ("whole", "shared"))
    Trainer(whole, ALONE).train()
    assert ranks_of(in_layout(shared, **layout), 2) == [0, 0]
    np.testing.assert_allclose(curve(shared), curve(whole), atol=1e-5, rtol=0)
