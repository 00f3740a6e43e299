"""The memory of a fine-tuning is that of its plan: a base in 4 bits never is in memory in another form."""

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tasks.core.digest import sha256_of_file
from tasks.trainer.checkpoints.checkpoint import StoredTensor
from tasks.trainer.config import ArtifactSpec, InitialSpec, TrainConfig, TrainSpec, TuningSpec
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.model.shape import SIZES, ModelShape, flops_per_token
from tasks.trainer.model.transformer import build
from tasks.trainer.place import Layout
from tasks.trainer.tuning.lora import Nf4Linear
from tasks.trainer.tuning.memory import trained_weights, tuning_flops_per_token, tuning_memory_per_rank
from tasks.trainer.tuning.model import build_tuned, outline
from tests.tasks.trainer.clean_ranks import largest_growth

SMALL = ModelConfig(layers=2, dim=64, heads=4, kv_heads=2)
MIDDLE = ModelConfig(layers=12, dim=512, heads=8, kv_heads=4)
HALF_BILLION = ModelConfig(layers=24, dim=1024, heads=16, kv_heads=4, ffn_width=4864)
NF4 = {"lora": {"rank": 8, "base": "nf4"}}


def spec_of(
    folder: Path, model: ModelConfig, vocab_size: int, seq_len: int, tuning: dict[str, Any], batch_size: int = 4
) -> TrainSpec:
    """The spec of a fine-tuning from a random base, which is written to a file."""
    folder.mkdir(exist_ok=True)
    path = folder / "model.safetensors"
    if not path.exists():
        save_file(build(model, vocab_size, 0).state_dict(), path)
    return TrainSpec(
        run=TrainConfig(model=model, batch_size=batch_size, microbatch=2),
        weights={},
        shards=ArtifactSpec(store="", artifact="", content=""),
        initial=InitialSpec(artifact="random", file=str(path), sha256=sha256_of_file(str(path))),
        tuning=TuningSpec.model_validate(
            {"loss": "sft", "vocab_size": vocab_size, "eos_id": 0, "seq_len": seq_len, **tuning}
        ),
        plan=None,
        out=str(folder),
    )


def measured(folder: Path, spec: TrainSpec, layout: dict[str, Any] | None = None, steps: int = 2) -> int:
    """Returns the bytes by which a rank grows at most in some steps."""
    assert spec.tuning is not None
    tuning = spec.tuning.model_dump(mode="json", include={"loss", "lora"})
    small = spec_of(folder / "small", SMALL, 256, 32, tuning)
    job = {"specs": [one.model_dump(mode="json") for one in (small, spec)], "layout": layout, "steps": steps}
    ranks = Layout(**(layout or {})).ranks
    return largest_growth("tests.tasks.trainer.tuning.memory_worker", ranks, job, folder)


def planned(spec: TrainSpec, layout: dict[str, Any] | None = None) -> dict[str, int]:
    assert spec.tuning is not None
    shape = ModelShape.of(spec.run.model, spec.tuning.vocab_size)
    chosen = None if layout is None else Layout(**layout)
    return dict(tuning_memory_per_rank(chosen, spec.run, spec.tuning, shape, gpu=False))


def test_a_base_in_4_bits_is_read_one_tensor_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, read, held = spec_of(tmp_path, SMALL, 256, 32, NF4), StoredTensor.read, list[weakref.ref[Any]]()

    def counted(stored: StoredTensor) -> Any:
        # `fill` still has the tensor before this one.
        assert sum(earlier() is not None for earlier in held) <= 1
        values = read(stored)
        held.append(weakref.ref(values))
        return values

    monkeypatch.setattr(StoredTensor, "read", counted)
    model = build_tuned(spec)
    assert [earlier() for earlier in held] == [None] * len(held)
    assert len(held) > 9 * SMALL.layers
    matrices = [module for module in model.modules() if isinstance(module, Nf4Linear)]
    values = [tensor for module in matrices for tensor in module.buffers()]
    assert {tensor.dtype for tensor in values} == {torch.uint8}
    assert sum(tensor.nbytes for tensor in values) * 8 == 4.5 * sum(module.shape.numel() for module in matrices)


def test_no_pass_keeps_a_dequantized_weight(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, SMALL, 256, 32, NF4)
    model, kept = build_tuned(spec), list[Tensor]()
    matrices = [tuple(module.shape) for module in model.modules() if isinstance(module, Nf4Linear)]
    tokens = torch.zeros(1, 40, dtype=torch.int64)

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(tokens, tokens)
    assert len(kept) > len(matrices) > 0
    assert not {tuple(tensor.shape) for tensor in kept} & {*matrices, *(shape[::-1] for shape in matrices)}


@pytest.mark.soak
@pytest.mark.parametrize(
    ("tuning", "layout"),
    [
        (NF4, None),
        (NF4, {"shard": 2}),
        ({"lora": {"rank": 8}}, None),
        ({}, None),
        ({}, {"shard": 2}),
        ({**NF4, "loss": "dpo"}, None),
        ({"loss": "dpo"}, None),
    ],
)
def test_the_plan_is_within_15_percent_of_the_measurement(
    tmp_path: Path, tuning: dict[str, Any], layout: dict[str, Any] | None
) -> None:
    spec = spec_of(tmp_path / "base", MIDDLE, 16384, 128, tuning)
    plan, found = planned(spec, layout), measured(tmp_path, spec, layout)
    assert found / 1.15 < sum(plan.values()) < 1.15 * found, plan


@pytest.mark.soak
@pytest.mark.parametrize("layout", [None, {"shard": 2}])
def test_a_base_of_half_a_billion_weights_is_tuned_within_its_plan(
    tmp_path: Path, layout: dict[str, Any] | None
) -> None:
    # A second step, or microbatch, only takes longer.
    spec = spec_of(tmp_path / "base", HALF_BILLION, 32000, 64, NF4, batch_size=2 * Layout(**(layout or {})).ranks)
    whole = 4 * ModelShape.of(HALF_BILLION, 32000).weights["total"]
    assert whole > 1.8e9
    found, plan = measured(tmp_path, spec, layout, steps=1), sum(planned(spec, layout).values())
    assert found < 1.15 * plan
    assert found < whole / 2


def test_trained_weights_and_flops_are_those_of_the_model(tmp_path: Path) -> None:
    shape = ModelShape.of(SMALL, 256)
    for tuning in ({}, {"lora": {"rank": 3}}, {"lora": {"rank": 2, "targets": ["wk", "w2"]}}, {"loss": "dpo"}):
        given = TuningSpec.model_validate({"loss": "sft", "vocab_size": 256, "eos_id": 0, "seq_len": 32, **tuning})
        trained = sum(weight.numel() for weight in outline(SMALL, given).parameters())
        assert trained_weights(given.lora, shape) == trained
        flops, whole = tuning_flops_per_token(given, shape, 32), flops_per_token(shape, 32)
        if given.lora:
            assert flops == whole - 2 * shape.matmul_weights + 6 * trained
        else:
            assert flops == whole * (4 / 3 if given.loss == "dpo" else 1)


def test_ranks_that_share_the_state_hold_a_part_of_the_frozen_weights() -> None:
    size = SIZES["8b"]
    run, shape = TrainConfig(model=size.model, precision="bf16"), ModelShape.of(size.model, size.vocab_size)
    tuning = TuningSpec.model_validate({"loss": "sft", "vocab_size": 128256, "eos_id": 0, "seq_len": 1024, **NF4})
    alone, shared = (tuning_memory_per_rank(layout, run, tuning, shape) for layout in (None, Layout(shard=8)))
    assert shared["frozen"] == pytest.approx(alone["frozen"] / 8)
    matrices = shape.layers * shape.layer_matrices
    assert alone["frozen"] == round(matrices * 4.5 / 8 + 4 * (shape.weights["total"] - matrices))
