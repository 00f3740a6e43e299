"""muP: activations and updates have the same size at every width, and the standard parametrization's have not."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from tasks.trainer.config import InitConfig, OptimConfig, TrainConfig
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.model.transformer import initial_weight
from tasks.trainer.mup import rate_share
from tasks.trainer.optim import AdamW
from tasks.trainer.parallel.replicated import Replicated
from tests.tasks.trainer.parallel.parallel_worker import batch
from tests.tasks.trainer.test_loop import ALONE

BASE, WIDTHS, VOCABULARY, STEPS = 32, (32, 64, 256), 96, 2
WIDER_HEADS = {"heads": 2, "kv_heads": 2}
"""Two heads at every width, so that attention is scaled by 1 / d."""


def run_of(width: int, mup: bool, **shape: int) -> TrainConfig:
    shape = shape or {"heads": width // 16, "kv_heads": width // 16}
    model = ModelConfig(layers=2, dim=width, tie_embeddings=False, **shape)
    head_width = 16 if shape == WIDER_HEADS else 0
    init = InitConfig(base_width=BASE, base_head_width=head_width) if mup else InitConfig()
    return TrainConfig(model=model, optim=OptimConfig(lr=1e-2, weight_decay=0.0), init=init, batch_size=4, microbatch=4)


def changes_of_logits(width: int, mup: bool, **shape: int) -> float:
    """Root mean square of the change of the logits by some steps."""
    engine = Replicated(run_of(width, mup, **shape), VOCABULARY, ALONE)
    engine.initialize()
    part = batch(0, 0)
    for _ in range(STEPS):
        engine.forward_backward({0: part})
        engine.optimizer.step(1e-2)
    with torch.no_grad():  # the head begins with zeros, and so do the logits
        return float(engine.model(part.tokens, part.documents).square().mean().sqrt())


@pytest.mark.parametrize("shape", [{}, WIDER_HEADS])
def test_logits_move_equally_far_at_every_width_and_in_the_standard_form_farther(shape: dict[str, int]) -> None:
    with_mup, standard = ([changes_of_logits(width, mup, **shape) for width in WIDTHS] for mup in (True, False))
    assert with_mup[0] == pytest.approx(standard[0], rel=1e-5)
    assert max(with_mup) < 1.2 * min(with_mup)
    assert all(wider > 2 * narrower for narrower, wider in pairwise(standard))


def test_deviations_and_rates_are_those_of_the_table() -> None:
    run = run_of(128, mup=True, **WIDER_HEADS)
    names = {"embedding.weight": 1, "layers.0.ffn.w1.weight": 1 / 4, "head.weight": 1 / 4, "norm.weight": 1}
    for name, share in {**names, "layers.0.attention.wq.weight": 1 / 8}.items():
        assert rate_share(run.model, run.init, name, 1 if "norm" in name else 2) == share
    init = InitConfig(std=0.02, base_width=32)
    deviations = {"embedding.weight": 0.02, "layers.0.ffn.w1.weight": 0.01, "head.weight": 0.005}
    for name, deviation in deviations.items():
        drawn = initial_weight(run.model, name, torch.Size((128, 128)), 0, init)
        assert float(drawn.std()) == pytest.approx(deviation, rel=0.05)


def test_weight_decay_is_that_of_the_unscaled_rate() -> None:
    weights = {name: torch.ones(2, 2, requires_grad=True) for name in ("a", "b")}
    for weight in weights.values():
        weight.grad = torch.zeros(2, 2)
    AdamW(weights, OptimConfig(weight_decay=0.5), {"b": 0.1}).step(0.1)
    np.testing.assert_array_equal(weights["a"].detach(), weights["b"].detach())
    assert float(weights["a"].detach()[0, 0]) == pytest.approx(0.95)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"model": {"tie_embeddings": True}}, "separate head"),
        ({"optim": {"name": "muon"}}, "those of AdamW"),
        ({"init": {"base_head_width": 8}}, "set base_width"),
    ],
)
def test_what_it_cannot_scale_is_refused(settings: dict[str, dict[str, object]], reason: str) -> None:
    usual = {"model": {"tie_embeddings": False}, "init": {"base_width": 64}}
    with pytest.raises(ValueError, match=reason):
        TrainConfig.model_validate({**usual, **settings})
