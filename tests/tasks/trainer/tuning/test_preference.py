"""DPO: loss and gradient equal the formula, computed pair by pair, one text at a time."""

import math

import pytest
import torch

from tasks.trainer.config import LoraConfig
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.model.loss import IGNORED
from tasks.trainer.model.transformer import Transformer, build
from tasks.trainer.tuning.lora import adapters
from tasks.trainer.tuning.model import PreferenceTransformer
from tests.tasks.trainer.tuning.filled import filled

MODEL = ModelConfig(layers=2, dim=16, heads=2, kv_heads=1)
BETA = 0.4
PAIRS = [(((1, 2, 3), (4, 5)), ((1, 2, 3), (6,))), (((7, 8), (9, 10, 11)), ((7, 8), (12, 13)))]
"""(prompt, chosen), (prompt, rejected)."""


def model(lora: LoraConfig | None = None) -> PreferenceTransformer:
    made: PreferenceTransformer = filled(build(MODEL, 20, 1), lora, loss="dpo", beta=BETA)
    return made


def packed(texts: list[tuple[tuple[int, ...], tuple[int, ...]]], length: int) -> tuple[torch.Tensor, ...]:
    """Returns tokens, documents and labels of concatenated texts, shape (1, length); 0 is end-of-text."""
    tokens, documents, labels = [], [], []
    for number, (prompt, answer) in enumerate(texts):
        whole = [0, *prompt, *answer]
        tokens += whole
        labels += [*whole[1:], 0]
        labels[-len(whole) : -len(answer) - 1] = [IGNORED] * len(prompt)
        documents += [number] * len(whole)
    rest = length - len(tokens)
    rows = (tokens + [0] * rest, documents + [len(texts)] * rest, labels + [IGNORED] * rest)
    tensors = [torch.tensor([row]) for row in rows]
    return tensors[0], tensors[1], tensors[2]


def log_likelihood(of: Transformer, prompt: tuple[int, ...], answer: tuple[int, ...]) -> torch.Tensor:
    """The sum over the answer and end-of-text, from the logits of the text alone."""
    whole = torch.tensor([[0, *prompt, *answer]])
    logits = of(whole, torch.zeros_like(whole))[0].double()
    expected = [*answer, 0]
    probabilities = torch.softmax(logits, dim=-1)[-len(expected) :]
    return sum((probabilities[at, token].log() for at, token in enumerate(expected)), torch.zeros(()))


def by_hand(policy: Transformer, reference: Transformer) -> torch.Tensor:
    """Equation 7 of Rafailov et al. 2023, summed over PAIRS."""
    total = torch.zeros(())
    for chosen, rejected in PAIRS:
        with torch.no_grad():
            before = [log_likelihood(reference, *text) for text in (chosen, rejected)]
        now = [log_likelihood(policy, *text) for text in (chosen, rejected)]
        total = total - torch.log(1 / (1 + torch.exp(-BETA * ((now[0] - before[0]) - (now[1] - before[1])))))
    return total


@pytest.mark.parametrize("length", [25, 22])
def test_loss_and_gradient_match_the_formula(length: int) -> None:
    """With padding behind the texts, and without."""
    policy, reference = model(), build(MODEL, 20, 1)
    with torch.no_grad():
        for weight in policy.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel())) * 0.1)
    tokens, documents, labels = packed([text for pair in PAIRS for text in pair], length)
    loss = policy.loss(tokens, documents, labels)
    loss.backward()
    found = {name: weight.grad.clone() for name, weight in policy.named_parameters() if weight.grad is not None}
    policy.zero_grad()
    expected = by_hand(policy, reference)
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert abs(loss.item() - 2 * math.log(2)) > 1e-3
    for name, weight in policy.named_parameters():
        torch.testing.assert_close(found[name], weight.grad, atol=1e-5, rtol=1e-4)
    assert int(policy.counted(documents, labels)) == 2


def test_with_adapters_the_reference_is_the_model_without_them() -> None:
    policy = model(LoraConfig(rank=2))
    assert policy.reference is None
    batch = packed([text for pair in PAIRS for text in pair], 24)
    assert policy.loss(*batch).item() == pytest.approx(2 * math.log(2), rel=1e-6)
    for adapter in adapters(policy).values():
        torch.nn.init.normal_(adapter.lora_b, std=0.5)
    assert policy.loss(*batch).item() == pytest.approx(by_hand(policy, build(MODEL, 20, 1)).item(), rel=1e-4)


def test_a_pair_without_labels_contributes_nothing() -> None:
    policy = model()
    tokens, documents, labels = packed([text for pair in PAIRS for text in pair], 24)
    labels[documents >= 2] = IGNORED
    assert int(policy.counted(documents, labels)) == 1
    assert policy.loss(tokens, documents, labels).item() == pytest.approx(math.log(2), rel=1e-6)
