"""Initial weights of an earlier run: taken as they are, from the right model and tokenizer, and only once."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.errors import InputError
from tasks.core.stage import Inputs, Output, Report
from tasks.core.store import Store
from tasks.formats.tokens.plan import Plan
from tasks.trainer import model_file
from tasks.trainer.config import ModelConfig, TrainSpec
from tasks.trainer.loop import Stopped, Trainer
from tasks.trainer.metrics import FILE, read_metrics
from tasks.trainer.spec import make_spec
from tests.corpora import Made
from tests.tasks.trainer.small_run import digests, small_config, small_spec
from tests.tasks.trainer.test_loop import ALONE, stop_after, train

NAME = "test/checkpoint@first"


@pytest.fixture(scope="module")
def first(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """The checkpoint artifact of a tiny run, with what a next run reads of it."""
    folder = tmp_path_factory.mktemp("first")
    spec = small_spec(made, folder / "run")
    train(spec)
    return committed(made, folder, folder / "run" / "checkpoints", small_config().model)


def committed(made: Made, folder: Path, checkpoints: Path, model: ModelConfig) -> Artifact:
    output = Output(Store(str(folder)), ArtifactId.parse(NAME), "by-hand")
    plan = Plan.open(made.plan)
    with output.part("model", conserved=False) as part:
        with part.file("model.json") as file:
            file.write(json.dumps(model_file.describe(model, plan.format, plan.seq_len)).encode())
        for path in sorted(checkpoints.glob("step-*/model.safetensors")):
            with part.file(f"checkpoints/{path.parent.name}/{path.name}") as file:
                file.write(path.read_bytes())
    return commit(output, "by hand", 1, Config(), [made.shards.ref("shards")], Report())


def spec_from(made: Made, first: Artifact, out: Path, **settings: object) -> TrainSpec:
    out.mkdir(parents=True, exist_ok=True)
    inputs = Inputs({"shards": made.shards, "plan": made.plan, "initial": first})
    return make_spec(small_config(init_from=NAME, **settings), inputs, out)


def test_the_last_weights_are_taken_and_all_else_begins_anew(made: Made, first: Artifact, tmp_path: Path) -> None:
    spec = spec_from(made, first, tmp_path, seed=1)
    trainer = Trainer(spec, ALONE)
    weights = load_file(first.local("checkpoints/step-00000012/model.safetensors"))
    assert all(torch.equal(tensor, weights[name]) for name, tensor in trainer.model.state_dict().items())
    assert (trainer.step, trainer.tokens, trainer.optimizer.steps_taken) == (0, 0, 0)
    assert not any(tensor.any() for tensor in trainer.optimizer.state().values())
    trainer.train()
    random = small_spec(made, tmp_path / "random", seed=1)
    train(random)
    begun, anew = (read_metrics(Path(one.out) / FILE) for one in (spec, random))
    assert [line["lr"] for line in begun] == [line["lr"] for line in anew]
    assert begun[0]["loss"] < anew[0]["loss"] - 0.1


def test_a_run_that_was_stopped_goes_on_from_its_own_checkpoint(made: Made, first: Artifact, tmp_path: Path) -> None:
    whole, broken = (spec_from(made, first, tmp_path / name) for name in ("whole", "broken"))
    train(whole)
    trainer = Trainer(broken, ALONE)
    stop_after(trainer, 4)
    with pytest.raises(Stopped, match="after 5 of 12"):
        trainer.train()
    assert broken.initial
    gone = broken.initial.model_copy(update={"file": "/nowhere"})  # it is not read again
    train(broken.model_copy(update={"initial": gone}))
    last = {name: value for name, value in digests(tmp_path / "whole").items() if "00000012" in name}
    assert len(last) == 3
    assert last.items() <= digests(tmp_path / "broken").items()


def test_other_initial_weights_are_another_run(made: Made, first: Artifact, tmp_path: Path) -> None:
    spec = spec_from(made, first, tmp_path)
    train(spec)
    assert spec.initial
    other = spec.initial.model_copy(update={"sha256": "0" * 64})
    with pytest.raises(InputError, match="holds checkpoints of another run"):
        Trainer(spec.model_copy(update={"initial": other}), ALONE)


def test_damaged_weights_are_refused(made: Made, first: Artifact, tmp_path: Path) -> None:
    spec = spec_from(made, first, tmp_path / "run")
    assert spec.initial
    damaged = bytearray(Path(spec.initial.file).read_bytes())
    damaged[-1] ^= 1
    (tmp_path / "damaged").write_bytes(damaged)
    initial = spec.initial.model_copy(update={"file": str(tmp_path / "damaged")})
    with pytest.raises(InputError, match=r"damaged of test/checkpoint@first cannot be read \(it does not have the sha"):
        Trainer(spec.model_copy(update={"initial": initial}), ALONE)


def test_another_model_is_refused_with_both_values_and_the_setting(made: Made, first: Artifact, tmp_path: Path) -> None:
    other = ModelConfig(layers=2, dim=64, heads=4, kv_heads=2)
    said = r"checkpoint@first is another model: dim is 64 and was 32\. Set dim = 32 in \[train\.model\], or leave out"
    with pytest.raises(InputError, match=said):
        spec_from(made, first, tmp_path, model=other)


def test_an_artifact_without_a_model_is_refused(made: Made, tmp_path: Path) -> None:
    empty = committed(made, tmp_path, tmp_path, ModelConfig())
    with pytest.raises(InputError, match=r"\[train\] init_from: test/checkpoint@first has no model"):
        spec_from(made, empty, tmp_path / "run")
