"""Token shards, a plan, a tokenizer and a trained model, shared by all tests of this folder."""

from pathlib import Path

import pytest
import torch

from tasks.core.artifact import Artifact
from tests.conftest import run_stage_in
from tests.corpora import Made, corpus, tokens_in
from tests.tasks.trainer.in_process import training_in_process
from tests.tasks.trainer.small_run import small_config


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """As in the process of a run: more threads than free cores would wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Artifacts of the token stages; most documents are shorter than a sequence, some longer."""
    rows = [{**row, "text": row["text"][: 5 + index * 7 % 130]} for index, row in enumerate(corpus(360))]
    return tokens_in(tmp_path_factory.mktemp("tokens"), rows)


@pytest.fixture(scope="session")
def trained(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    config = small_config(steps=150, batch_size=8, microbatch=8, checkpoint_every=50, milestones=3)
    inputs = {"shards": made.shards, "plan": made.plan}
    folder = tmp_path_factory.mktemp("trained")
    with training_in_process():
        return run_stage_in(folder, "tasks.stages.train.stage", config, inputs, kind="checkpoint")  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def model_folder(made: Made, trained: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return as_model_folder(tmp_path_factory.mktemp("model"), made, trained, 150)


def as_model_folder(folder: Path, made: Made, trained: Artifact, step: int) -> Path:
    """Makes a folder like that of a registered model, with the weights after a step."""
    (folder / "model.safetensors").write_bytes(trained.read(f"checkpoints/step-{step:08d}/model.safetensors"))
    (folder / "model.json").write_bytes(trained.read("model.json"))
    (folder / "tokenizer.json").write_bytes(made.tokenizer.read("tokenizer.json"))
    return folder
