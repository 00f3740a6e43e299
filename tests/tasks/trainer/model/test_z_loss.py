"""z-loss in the fused cross-entropy, against autograd on the formula."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tasks.trainer.logs import METRICS, read_metrics
from tasks.trainer.model.loss import IGNORED, ZLoss, head_cross_entropy
from tests.corpora import Made
from tests.tasks.trainer.small_run import small_spec
from tests.tasks.trainer.test_loop import train

COEFFICIENT, TOKENS = 0.3, 9
"""Of 11 rows the last two are no tokens."""


def tensors() -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(rows, 6, generator=draw, requires_grad=True) for rows in (7, 11))
    labels = torch.tensor([1, 8, IGNORED, 0, 3, IGNORED, 5])
    return hidden, weight, labels


def test_gradients_are_those_of_the_formula_and_the_loss_is_without_it() -> None:
    hidden, weight, labels = tensors()
    logits = (hidden @ weight.T)[:, :TOKENS]
    plain = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    penalty = COEFFICIENT * (logits.logsumexp(dim=1)[labels != IGNORED] ** 2).sum()
    (plain + penalty).backward()  # type: ignore[no-untyped-call]
    expected = hidden.grad, weight.grad

    hidden, weight, labels = tensors()
    z = ZLoss(COEFFICIENT)
    found = head_cross_entropy(hidden, weight, labels, TOKENS, chunk=3, z=z)
    found.backward()  # type: ignore[no-untyped-call]

    torch.testing.assert_close(found, plain)
    assert z.take() == pytest.approx(penalty.item(), rel=1e-6)
    assert z.take() == 0.0
    for own, formula in zip((hidden.grad, weight.grad), expected, strict=True):
        torch.testing.assert_close(own, formula)


def test_a_measurement_without_gradients_adds_no_z_loss() -> None:
    hidden, weight, labels = tensors()
    z = ZLoss(COEFFICIENT)
    with torch.no_grad():
        head_cross_entropy(hidden, weight, labels, z=z)
    assert z.take() == 0.0


def test_a_run_logs_its_z_loss_beside_the_loss(made: Made, tmp_path: Path) -> None:
    for name, settings in (("none", {}), ("some", {"z_loss": 1e-3})):
        trained = train(small_spec(made, tmp_path / name, steps=2, **settings))
    none, some = (read_metrics(tmp_path / name / METRICS) for name in ("none", "some"))
    assert none[0]["loss"] == some[0]["loss"]  # before the first update
    assert none[1]["loss"] != some[1]["loss"]
    assert "z_loss" not in none[0]
    # The first logits are near zero, so log Z is near the log of the vocabulary.
    assert some[0]["z_loss"] == pytest.approx(1e-3 * math.log(trained.batches.vocab_size) ** 2, rel=0.01)
