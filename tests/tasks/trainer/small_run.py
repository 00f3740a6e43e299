"""A run of one or two seconds on a hand-made corpus, for the tests of trainer and evaluation."""

import hashlib
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from tasks.core.digest import sha256_of_file
from tasks.core.stage import Inputs
from tasks.trainer.checkpoints import checkpoint
from tasks.trainer.config import OptimConfig, TrainConfig, TrainSpec
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.spec import make_spec
from tests.corpora import Made

WEIGHTS = {"code": 0.5, "my-books": 0.25, "web": 0.25}


def small_config(**settings: object) -> TrainConfig:
    """Returns settings of a tiny run; keywords override them."""
    usual = {
        "model": ModelConfig(layers=2, dim=32, heads=4, kv_heads=2),
        "optim": OptimConfig(lr=1e-2, warmup_steps=2),
        "steps": 12,
        "batch_size": 4,
        "microbatch": 2,
        "checkpoint_every": 3,
        "milestones": 2,
    }
    return TrainConfig(**{**usual, **settings})


def small_spec(made: Made, out: Path, **settings: object) -> TrainSpec:
    """Returns the spec of a tiny run that writes to `out`."""
    out.mkdir(parents=True, exist_ok=True)
    spec = make_spec(small_config(**settings), Inputs({"shards": made.shards, "plan": made.plan}), out)
    return spec.model_copy(update={"weights": WEIGHTS})


def save_whole(
    root: Path, step: int, model: dict[str, Tensor], optimizer: dict[str, Tensor], state: dict[str, object]
) -> Path:
    """Writes a checkpoint like one rank; returns its folder."""
    folder = checkpoint.unfinished(root, step)
    checkpoint.begin(folder)
    for file, tensors in ((checkpoint.MODEL, model), (checkpoint.OPTIMIZER, optimizer)):
        save_file({name: tensors[name] for name in sorted(tensors)}, folder / file)
    files = (checkpoint.MODEL, checkpoint.OPTIMIZER)
    return checkpoint.commit(folder, step, state, {file: sha256_of_file(folder / file) for file in files})


def digests(folder: Path, pattern: str = "checkpoints/*/*") -> dict[str, str]:
    """Returns the sha256 of matching files by their path below `folder`."""
    files = [path for path in folder.glob(pattern) if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
