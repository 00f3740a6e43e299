"""A fine-tuning on several nodes, each with its own disk: the result of one rank, also after the loss of a node."""

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.store import Store
from tasks.run.recipe import Recipe, find_recipe
from tasks.run.runner import run_stage
from tasks.trainer.checkpoints.copies import FOLDER
from tasks.trainer.checkpoints.locations import CopySource
from tasks.trainer.logs import read_starts
from tests.tasks.stages.finetune.conftest import INSTRUCTIONS
from tests.tasks.stages.finetune.test_stage import config, losses
from tests.tasks.trainer.in_process import training_in_process
from tests.tasks.trainer.nodes import StageNode, run_stages
from tests.waiting import until

KILLED = -9


def recipe(base: Artifact, folder: Path, **layout: int) -> Recipe:
    """A recipe with its own store, in which the examples are made."""
    shutil.copytree(base.store.root, folder / "store")
    rows = folder / "rows.jsonl"
    rows.write_text("".join(f"{json.dumps(row)}\n" for row in INSTRUCTIONS))
    settings = json.loads(find_recipe("smoke").text)
    tuning = config(lora={"rank": 4, "base": "nf4"}, steps=8, checkpoint_every=2, milestones=2)
    settings |= {
        "name": "test",
        "version": "dev",
        "examples": {"files": [str(rows)], "seq_len": 96},
        "finetune": tuning.model_dump(mode="json", exclude_unset=True),
    }
    settings["place"] |= {"store": str(folder / "store"), "mlflow": ""}
    made = Recipe.from_text(json.dumps(settings)).override({"place.train.layout": layout or None})
    run_stage(made, "examples")
    return made


def tuned(of: Recipe) -> Artifact:
    return Artifact.open_at(Store(of.place.store), ArtifactId("test/finetuned", "dev"))


def test_two_nodes_tune_like_one_rank_although_one_is_killed_and_loses_its_disk(base: Artifact, tmp_path: Path) -> None:
    alone = recipe(base, tmp_path / "alone")
    with training_in_process():
        run_stage(alone, "finetune")
    of = recipe(base, tmp_path / "nodes", shard=2)
    copies = CopySource(Store(of.place.store), f"test/finetuned/dev/{FOLDER}", required=True)

    def after_a_copy(step: int) -> bool:
        return step == 3 and bool(until(copies.steps))

    first, second = (StageNode(of, tmp_path / str(node), stage="finetune") for node in range(2))
    assert run_stages([first, StageNode(of, second.scratch, after_a_copy, "finetune")]) == [1, KILLED]
    shutil.rmtree(second.scratch)
    assert run_stages([first, second]) == [0, 0]
    (folder,) = first.scratch.glob("scratch/epoch-*")
    assert read_starts(folder)[-1]["step"] >= 2
    np.testing.assert_allclose(losses(tuned(of)), losses(tuned(alone)), atol=1e-5, rtol=0)
    weights = [load(tuned(one).read("merged/model.safetensors")) for one in (of, alone)]
    assert weights[0].keys() == weights[1].keys()
    for name, weight in weights[1].items():
        # Adam divides by the root of the squared gradient, so rounding of tiny gradients is visible.
        torch.testing.assert_close(weights[0][name], weight, atol=1e-3, rtol=0)
