"""Initial weights: random ones are drawn once; those of an earlier run are unchanged, used once, and of its model."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor, distribute_tensor

from benchmarks.fake_ranks import Storages
from tasks.core.artifact import Artifact, ArtifactId
from tasks.core.commit import commit
from tasks.core.config import Config
from tasks.core.errors import InputError
from tasks.core.stage import Inputs, Output, Report
from tasks.core.store import Store
from tasks.formats.tokens.plan import Plan
from tasks.stages.tokens import PackConfig
from tasks.trainer.config import InitConfig, TrainConfig, TrainSpec
from tasks.trainer.logs import METRICS, read_metrics
from tasks.trainer.loop import Trainer, TrainingStopped
from tasks.trainer.model import model_file, transformer
from tasks.trainer.model.config import ExpertsConfig, LinearRope, ModelConfig
from tasks.trainer.model.model_file import changed_settings
from tasks.trainer.model.transformer import Transformer, build, initial_constant, initial_weight
from tasks.trainer.parallel import sharded_state
from tasks.trainer.parallel.apply import shards_of
from tasks.trainer.parallel.mesh import Mesh
from tasks.trainer.parallel.ranks import Ranks
from tasks.trainer.parallel.sharded_state import initialize_shards
from tasks.trainer.place import Layout, TrainPlace
from tasks.trainer.spec import make_spec
from tests.conftest import run_stage_in
from tests.corpora import Made
from tests.tasks.trainer.forks import forked
from tests.tasks.trainer.gangs import free_port
from tests.tasks.trainer.small_run import digests, small_config, small_spec
from tests.tasks.trainer.test_loop import ALONE, stop_after, train

NAME = "test/checkpoint@first"
LAYOUTS = Layout(shard=2, tensor=2, compile=False), Layout(shard=2, pipeline=2, compile=False)


@pytest.fixture(scope="module")
def first(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """The checkpoint artifact of a tiny run, with the files that a following run reads."""
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


def test_only_the_weights_are_taken_from_the_initial_checkpoint(made: Made, first: Artifact, tmp_path: Path) -> None:
    spec = spec_from(made, first, tmp_path, seed=1)
    trainer = Trainer(spec, ALONE)
    weights = load_file(first.local("checkpoints/step-00000012/model.safetensors"))
    assert all(torch.equal(tensor, weights[name]) for name, tensor in trainer.replica.model.state_dict().items())
    assert (trainer.step, trainer.tokens, trainer.replica.optimizer.steps_taken) == (0, 0, 0)
    assert not any(tensor.any() for tensor in trainer.replica.optimizer.state().values())
    trainer.train()
    random = small_spec(made, tmp_path / "random", seed=1)
    train(random)
    begun, anew = (read_metrics(Path(one.out) / METRICS) for one in (spec, random))
    rates = [line["lr"] for line in begun]
    assert rates == [line["lr"] for line in anew], "with the warm-up"
    assert rates[0] < rates[1] == max(rates)
    assert begun[0]["loss"] < anew[0]["loss"] - 0.1


def test_a_stopped_run_resumes_from_its_own_checkpoint(made: Made, first: Artifact, tmp_path: Path) -> None:
    whole, broken = (spec_from(made, first, tmp_path / name) for name in ("whole", "broken"))
    train(whole)
    trainer = Trainer(broken, ALONE)
    stop_after(trainer, 4)
    with pytest.raises(TrainingStopped, match="after 5 of 12"):
        trainer.train()
    assert broken.initial
    gone = broken.initial.model_copy(update={"file": "/nowhere"})  # it is not read again
    train(broken.model_copy(update={"initial": gone}))
    last = {name: value for name, value in digests(tmp_path / "whole").items() if "00000012" in name}
    assert len(last) == 3
    assert last.items() <= digests(tmp_path / "broken").items()


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the weights that were randomly initialized, in order."""
    names: list[str] = []

    def counted(config: ModelConfig, name: str, shape: torch.Size, seed: int, init: InitConfig) -> torch.Tensor:
        names.extend([name] if initial_constant(config, name, shape, init) is None else [])
        return initial_weight(config, name, shape, seed, init)

    for module in (transformer, sharded_state):
        monkeypatch.setattr(module, "initial_weight", counted)
    return names


@pytest.fixture
def no_group() -> Iterator[None]:
    """Leaves the process group of a sharded run after the test."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.usefixtures("no_group")
@pytest.mark.parametrize("layout", [None, Layout()])
def test_random_weights_are_drawn_only_for_a_new_run_without_initial_weights(
    made: Made, first: Artifact, tmp_path: Path, drawn: list[str], layout: Layout | None
) -> None:
    def start(spec: TrainSpec) -> int:
        """Constructs a run, and trains it to the end; returns the number of random weights."""
        drawn.clear()
        Trainer(spec.model_copy(update={"place": TrainPlace(layout=layout)}), ALONE).train()
        return len(drawn)

    fresh = small_spec(made, tmp_path / "fresh", steps=2)
    weights = Transformer(fresh.run.model, 300).state_dict()
    assert start(fresh) == sum(weight.ndim == 2 for weight in weights.values())
    assert start(fresh) == 0, "it resumes from its last checkpoint"
    assert start(spec_from(made, first, tmp_path / "initial", steps=2)) == 0


def initialize(rank: int, port: int, found: Path) -> None:
    """Initializes the shards of two layouts as one of four ranks; writes what it has drawn for each."""
    names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": rank, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 4}
    os.environ |= {name: str(value) for name, value in names.items()}
    model, layouts = ModelConfig(layers=2, dim=64, heads=4, kv_heads=4, tie_embeddings=False), LAYOUTS
    run, drawn = TrainConfig(model=model), list[list[str]]()
    whole = dict(build(model, 512, run.init_seed).named_parameters())
    largest = max(parameter.nbytes for parameter in whole.values())

    def counted(config: ModelConfig, name: str, shape: torch.Size, seed: int, init: InitConfig) -> torch.Tensor:
        drawn[-1].append(name)
        return initial_weight(config, name, shape, seed, init)

    sharded_state.initial_weight = counted
    with Ranks.from_environment() as ranks:
        for layout in layouts:
            mesh = Mesh.of(layout, ranks)
            (chunk,) = shards_of(run, mesh, 512, 32)
            chunk.to_empty(device="cpu")
            parameters = cast(dict[str, DTensor], dict(chunk.named_parameters()))
            drawn.append([])
            with Storages() as alive:
                initialize_shards(parameters, run, mesh)
            own = sum(parameter.to_local().nbytes for parameter in parameters.values())
            # torch copies a parameter while it takes the part of a rank.
            assert alive.peak - own < 2.5 * largest
            for name, parameter in parameters.items():
                places = parameter.device_mesh, parameter.placements
                expected = distribute_tensor(whole[name].detach(), *places, src_data_rank=None).to_local()
                assert torch.equal(parameter.to_local(), expected), name
    found.with_suffix(f".{rank}").write_text(json.dumps(drawn))
    os._exit(0)


def test_ranks_divide_the_drawing_of_initial_weights_and_have_the_bytes_of_one(tmp_path: Path) -> None:
    port = free_port()
    assert forked(initialize, [(rank, port, tmp_path / "drawn") for rank in range(4)]) == [0] * 4
    of_ranks = [json.loads((tmp_path / f"drawn.{rank}").read_text()) for rank in range(4)]
    for number in range(len(LAYOUTS)):
        drawn = [name for one in of_ranks for name in one[number]]
        assert len(set(drawn)) == len(drawn) == 15, "seven matrices of each layer, and the embedding"
        assert min(len(one[number]) for one in of_ranks) >= 3


def test_a_model_is_allocated_without_torch_initializing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.init, "kaiming_uniform_", lambda *_, **__: pytest.fail("a matrix was initialized"))
    monkeypatch.setattr(torch.nn.init, "normal_", lambda *_, **__: pytest.fail("an embedding was initialized"))
    Transformer(small_config().model, 300)


def test_different_initial_weights_are_another_run(made: Made, first: Artifact, tmp_path: Path) -> None:
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


OTHER = {
    "layers": 3,
    "dim": 64,
    "heads": 2,
    "kv_heads": 1,
    "head_width": 16,
    "qkv_bias": True,
    "output_bias": True,
    "attention_sinks": True,
    "qk_norm": True,
    "ffn_multiple": 4.0,
    "ffn_width": 80,
    "rope_theta": 500_000.0,
    "rope_scaling": LinearRope(kind="linear", factor=2.0),
    "tie_embeddings": False,
    "vocab_rows": 320,
    "norm_eps": 1e-6,
    "experts": ExpertsConfig(count=4, per_token=2, width=16),
    "norm_place": "post",
    "norm_weight": "none",
    "activation": "relu2",
    "gated": False,
    "embedding_scale": "rms",
    "window": 8,
    "window_pattern": "wf",
    "window_rope_theta": 1e3,
    "rope_pattern": "rn",
    "rope_reversed": True,
    "attention_scalar": 5.0,
    "attention_cap": 5.0,
    "logit_cap": 5.0,
}
"""Another value of each setting of a model."""
MEANING = (
    *("activation", "embedding_scale", "rope_pattern", "rope_reversed"),
    *("attention_scalar", "attention_cap", "logit_cap"),
)
"""Settings that change what the same tensors mean."""


def shapes(model: ModelConfig) -> dict[str, torch.Size]:
    with torch.device("meta"):
        return {name: tensor.shape for name, tensor in Transformer(model, 300).state_dict().items()}


def test_model_settings_that_affect_no_tensor_may_differ(made: Made, first: Artifact, tmp_path: Path) -> None:
    assert OTHER.keys() == ModelConfig.model_fields.keys()
    before = small_config().model
    for name, value in OTHER.items():
        with_window = {"window": 8} if name.startswith("window_") else {}
        model = ModelConfig(**{**before.model_dump(), **with_window, name: value})
        if shapes(model) == shapes(before) and name not in MEANING:
            assert spec_from(made, first, tmp_path / name, model=model).initial
            assert f"{name} " in changed_settings(first, model)
        else:
            said = rf"another model: {name} is .* and was .*\. Set {name} = .* in \[train\.model\], or leave out"
            with pytest.raises(InputError, match=said):
                spec_from(made, first, tmp_path / name, model=model)
    assert changed_settings(first, before) == ""


def test_a_different_model_is_refused_with_both_values_and_the_setting(
    made: Made, first: Artifact, tmp_path: Path
) -> None:
    before = small_config().model
    other = before.model_copy(update={"dim": 64, "rope_theta": 500_000.0})
    said = r"checkpoint@first is another model: dim is 64 and was 32\. Set dim = 32 in \[train\.model\], or leave out"
    with pytest.raises(InputError, match=said):
        spec_from(made, first, tmp_path, model=other)
    # The tensors have the same shapes, but heads would be other columns.
    split = before.model_copy(update={"heads": 8, "kv_heads": 4})
    assert shapes(split) == shapes(before)
    with pytest.raises(InputError, match="heads is 8 and was 4, kv_heads is 4 and was 2"):
        spec_from(made, first, tmp_path, model=split)


def test_multiples_that_round_to_the_same_width_are_the_same_model(made: Made, first: Artifact, tmp_path: Path) -> None:
    same = small_config().model.model_copy(update={"ffn_multiple": 2.7})
    assert spec_from(made, first, tmp_path, model=same).initial
    assert changed_settings(first, same) == ""


def test_longer_sequences_with_scaled_positions_can_start_from_the_weights(
    made: Made, first: Artifact, tmp_path: Path
) -> None:
    longer = run_stage_in(
        tmp_path, "tasks.stages.tokens.pack", PackConfig(seq_len=64), {"shards": made.shards}, kind="plan"
    )
    scaled = ModelConfig.model_validate({**small_config().model.model_dump(), "rope_scaling": OTHER["rope_scaling"]})
    settings = {"model": scaled, "steps": 2, "milestones": 1}
    begun = spec_from(made._replace(plan=longer), first, tmp_path / "begun", **settings)
    anew = small_spec(made._replace(plan=longer), tmp_path / "anew", **settings)
    for spec in (begun, anew):
        train(spec.model_copy(update={"weights": begun.weights}))
    losses = [read_metrics(Path(spec.out) / METRICS)[0]["loss"] for spec in (begun, anew)]
    assert losses[0] < losses[1] - 0.1
    assert changed_settings(first, scaled) == 'rope_scaling {"kind": "linear", "factor": 2.0} (was none)'


def test_an_artifact_without_a_model_is_refused(made: Made, tmp_path: Path) -> None:
    empty = committed(made, tmp_path, tmp_path, ModelConfig())
    with pytest.raises(InputError, match=r"\[train\] init_from: test/checkpoint@first has no model"):
        spec_from(made, empty, tmp_path / "run")
