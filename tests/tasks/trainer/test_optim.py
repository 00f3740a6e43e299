"""AdamW is torch's, the schedules go where they say, and clipping bounds the norm."""

import copy

import pytest
import torch
from torch import nn

from tasks.trainer.config import OptimConfig
from tasks.trainer.optim import AdamW, clip, learning_rate


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


def test_the_kernel_for_all_parameters_takes_the_steps_of_one_after_the_other() -> None:
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
def test_the_rate_rises_to_its_peak_and_ends_at_its_minimum(schedule: str) -> None:
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
