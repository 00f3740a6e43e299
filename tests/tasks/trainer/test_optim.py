"""AdamW and Muon take the same steps as torch's; schedules reach their targets; clipping limits the norm."""

import copy

import pytest
import torch
from torch import Tensor, nn

from tasks.core.config import canonical_json
from tasks.trainer.config import OptimConfig, TrainConfig
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.model.transformer import Transformer, build
from tasks.trainer.optim import (
    UPDATE_RMS,
    AdamW,
    Muon,
    build_optimizer,
    clip,
    is_hidden,
    learning_rate,
    load_optimizer,
    orthogonalize,
    sum_of_squares,
)


def test_steps_equal_those_of_torch() -> None:
    torch.manual_seed(0)
    ours, theirs = nn.Linear(5, 4), nn.Linear(5, 4)
    theirs.load_state_dict(ours.state_dict())
    config = OptimConfig(weight_decay=0.1)
    groups = [{"params": [theirs.weight], "weight_decay": 0.1}, {"params": [theirs.bias], "weight_decay": 0.0}]
    optimizer, reference = (
        AdamW(dict(ours.named_parameters()), config),
        torch.optim.AdamW(groups, betas=config.betas, eps=config.eps),
    )
    for step in range(5):
        for layer in (ours, theirs):
            layer.zero_grad()
            (layer(torch.arange(5.0)) ** 2).sum().backward()
        for group in reference.param_groups:
            group["lr"] = 0.01 * (step + 1)
        optimizer.step(0.01 * (step + 1))
        reference.step()
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-5, atol=1e-7)


def test_the_fused_kernel_takes_the_same_steps_as_single_tensors() -> None:
    layers = {"layer": nn.Linear(5, 4), "embedding": nn.Embedding(3, 5), "empty": nn.Embedding(0, 5)}
    models = [nn.ModuleDict(layers), nn.ModuleDict(copy.deepcopy(layers))]
    plain, fused = (AdamW(dict(model.named_parameters()), OptimConfig(weight_decay=0.1)) for model in models)
    for step in range(5):
        for model in models:
            for number, param in enumerate(model.parameters()):
                generator = torch.Generator().manual_seed(10 * step + number)
                param.grad = torch.randn(param.shape, generator=generator)
        plain.step(0.01)
        fused.steps_taken += 1
        with torch.no_grad():
            fused._fused(0.01)
    torch.testing.assert_close(models[1].state_dict(), models[0].state_dict(), rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(fused.state(), plain.state(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
def test_the_learning_rate_warms_up_to_its_peak_and_ends_at_its_minimum(schedule: str) -> None:
    config = OptimConfig(lr=1.0, warmup_steps=10, schedule=schedule, decay_share=0.25, min_lr_share=0.1)
    rates = [learning_rate(config, step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9] == pytest.approx(1.0)
    assert rates[-1] == pytest.approx(0.1)
    assert (rates[74] == 1.0) == (schedule == "wsd")


def test_clipping_bounds_the_norm_and_leaves_a_broken_gradient_alone() -> None:
    gradient = torch.tensor([3.0, 4.0])
    assert clip(gradient, 10.0) == 5.0
    assert clip(gradient, 1.0) == 5.0
    torch.testing.assert_close(gradient, torch.tensor([0.6, 0.8]))
    broken = torch.tensor([1.0, float("nan")])
    assert clip(broken, 0.1) != clip(broken, 0.1)
    assert broken[0] == 1.0


LR = 0.01


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def model_with_gradients() -> Transformer:
    model = build(ModelConfig(layers=2, dim=32, heads=4, kv_heads=2, tie_embeddings=False), 48, 0)
    for number, param in enumerate(model.parameters()):
        param.grad = random(*param.shape, seed=number)
    return model


@pytest.mark.parametrize("shape", [(32, 96), (96, 32), (48, 48)])
def test_orthogonalization_sets_singular_values_to_about_one_and_keeps_the_vectors(shape: tuple[int, int]) -> None:
    matrix = random(*shape)
    found = orthogonalize(matrix, torch.float32)
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    inner = u.T @ found @ vh.T
    values = inner.diagonal()
    assert 0.3 < values.min() < values.max() < 1.3
    torch.testing.assert_close(inner, values.diag(), atol=1e-4, rtol=0)
    assert not orthogonalize(torch.zeros(shape), torch.float32).any()


@pytest.mark.parametrize("shape", [(32, 96), (96, 32)])
def test_muon_steps_equal_those_of_torch_within_bf16(shape: tuple[int, int]) -> None:
    ours, theirs = (torch.nn.Parameter(random(*shape, seed=7)) for _ in range(2))
    begin = ours.detach().clone()
    optimizer = Muon({"layers.0.w": ours}, OptimConfig(), torch.bfloat16)
    reference = torch.optim.Muon([theirs], lr=LR, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    for step in range(4):
        ours.grad, theirs.grad = random(*shape, seed=step), random(*shape, seed=step)
        optimizer.step(LR)
        reference.step()
    moved = (theirs - begin).norm()
    assert (ours - theirs).norm() < 0.02 * moved


def test_a_muon_update_has_the_size_of_an_adamw_update() -> None:
    model = model_with_gradients()
    before = copy.deepcopy(model.state_dict())
    build_optimizer(dict(model.named_parameters()), run_with("muon", weight_decay=0.0)).step(LR)
    for name, weight in model.named_parameters():
        if is_hidden(name, weight):
            moved = (weight - before[name]).square().mean().sqrt() / LR
            assert 0.6 * UPDATE_RMS < moved < 1.2 * UPDATE_RMS, name


def test_embedding_head_and_norms_use_adamw() -> None:
    models = {name: model_with_gradients() for name in ("adamw", "muon")}
    for name, model in models.items():
        build_optimizer(dict(model.named_parameters()), run_with(name)).step(LR)
    adamw, muon = (model.state_dict() for model in models.values())
    same = {name for name in adamw if torch.equal(adamw[name], muon[name])}
    matrices = {name for name, weight in adamw.items() if weight.ndim == 2}
    assert same == {"embedding.weight", "head.weight"} | (adamw.keys() - matrices)


def test_a_step_after_loading_the_state_equals_an_uninterrupted_step() -> None:
    whole, broken = model_with_gradients(), model_with_gradients()
    first, second = (build_optimizer(dict(model.named_parameters()), run_with("muon")) for model in (whole, broken))
    first.step(LR)
    second.step(LR)
    state = {name: tensor.clone() for name, tensor in second.state().items()}
    third = build_optimizer(dict(broken.named_parameters()), run_with("muon"))
    load_optimizer(third, state)
    third.steps_taken = second.steps_taken
    first.step(LR)
    third.step(LR)
    assert all(torch.equal(whole.state_dict()[name], tensor) for name, tensor in broken.state_dict().items())


def test_adamw_is_the_default_and_not_in_the_fingerprint() -> None:
    assert isinstance(build_optimizer({"norm.weight": torch.ones(3)}, TrainConfig()), AdamW)
    assert "name" not in canonical_json(OptimConfig())
    assert canonical_json(OptimConfig(name="adamw")) == canonical_json(OptimConfig())
    assert '"name":"muon"' in canonical_json(OptimConfig(name="muon"))


def run_with(name: str, **more: float) -> TrainConfig:
    return TrainConfig(optim=OptimConfig.model_validate({"name": name, **more}))


def test_the_norm_of_a_sharded_gradient_has_the_bits_of_one_addition_after_the_other() -> None:
    generator = torch.Generator().manual_seed(0)
    for ranks in (1, 4, 6):
        sizes = torch.randint(0, 3000, (40,), generator=generator).tolist()
        shards = [torch.randn(size, generator=generator) * 10 ** (at % 7 - 3) for at, size in enumerate(sizes)]
        parts = [(1, 2, ranks)[at % 3] for at in range(40)]
        total = torch.zeros((), dtype=torch.float64)
        for shard, count in zip(shards, parts, strict=True):
            total += torch.linalg.vector_norm(shard, dtype=torch.float64).square() * count / ranks
        assert torch.equal(sum_of_squares(shards, torch.tensor(parts, dtype=torch.float64), ranks), total)


@pytest.mark.parametrize("name", ["adamw", "muon", "fused"])
def test_a_step_that_divides_its_gradients_is_the_step_of_divided_gradients(name: str) -> None:
    before, within = model_with_gradients(), model_with_gradients()
    optimizers = [
        build_optimizer(dict(model.named_parameters()), run_with(name.replace("fused", "adamw")))
        for model in (before, within)
    ]
    optimizers[1].divisor = 37.0
    for param in before.parameters():
        assert param.grad is not None
        param.grad /= 37.0
    for optimizer in optimizers:
        if name == "fused":
            assert isinstance(optimizer, AdamW)
            optimizer.steps_taken = 1
            with torch.no_grad():
                optimizer._fused(LR)
        else:
            optimizer.step(LR)
    exact = 1e-6 if name == "fused" else 0.0  # its gradients are scaled in fp32
    torch.testing.assert_close(within.state_dict(), before.state_dict(), rtol=exact, atol=exact)
    torch.testing.assert_close(optimizers[1].state(), optimizers[0].state(), rtol=exact, atol=exact)
