"""The model: documents do not see one another, and its loss is the textbook's."""

import pytest
import torch
import torch.nn.functional as F

from tasks.trainer.config import ModelConfig
from tasks.trainer.model.attention import document_positions
from tasks.trainer.model.loss import CHUNK, IGNORED, head_cross_entropy
from tasks.trainer.model.shape import Shape
from tasks.trainer.model.transformer import build

CONFIG = ModelConfig(layers=2, dim=32, heads=4, kv_heads=2)
VOCABULARY = 50


def packed() -> tuple[torch.Tensor, torch.Tensor]:
    """Two sequences of 24 tokens with three and one documents."""
    tokens = torch.randint(0, VOCABULARY, (2, 24), generator=torch.Generator().manual_seed(1))
    documents = torch.tensor([[0] * 7 + [1] * 9 + [2] * 8, [0] * 24])
    return tokens, documents


def test_a_change_in_one_document_changes_no_logit_of_another() -> None:
    model, (tokens, documents) = build(CONFIG, VOCABULARY, 0), packed()
    before = model(tokens, documents)
    changed = tokens.clone()
    changed[0, 7:16] = (changed[0, 7:16] + 1) % VOCABULARY
    after = model(changed, documents)
    assert torch.equal(before[0, :7], after[0, :7])
    assert torch.equal(before[0, 16:], after[0, 16:])
    assert torch.equal(before[1], after[1])
    assert not torch.allclose(before[0, 7:16], after[0, 7:16])


def test_a_document_reads_the_same_wherever_it_stands_in_the_sequence() -> None:
    model, (tokens, documents) = build(CONFIG, VOCABULARY, 0), packed()
    alone = model(tokens[:1, 7:16], torch.zeros(1, 9, dtype=torch.int64))
    torch.testing.assert_close(model(tokens, documents)[0, 7:16], alone[0], atol=1e-5, rtol=1e-5)


def test_a_token_does_not_see_what_comes_after_it() -> None:
    model, (tokens, documents) = build(CONFIG, VOCABULARY, 0), packed()
    changed = tokens.clone()
    changed[1, 20:] = 0
    assert torch.equal(model(tokens, documents)[1, :20], model(changed, documents)[1, :20])


def test_positions_begin_again_with_each_document() -> None:
    positions = document_positions(torch.tensor([[4, 4, 4, 7, 7, 2]]))
    assert positions.tolist() == [[0, 1, 2, 0, 1, 0]]


@pytest.mark.parametrize("tied", [True, False])
def test_the_parameter_count_is_that_of_the_model(tied: bool) -> None:
    config = CONFIG.model_copy(update={"tie_embeddings": tied})
    model = build(config, VOCABULARY, 0)
    assert Shape.of(config, VOCABULARY).weights["total"] == sum(p.numel() for p in model.parameters())


def test_initial_weights_depend_on_the_seed_alone_and_not_on_the_number_of_layers() -> None:
    torch.rand(17)
    first, again, other = (build(CONFIG, VOCABULARY, seed).state_dict() for seed in (3, 3, 4))
    deeper = build(CONFIG.model_copy(update={"layers": 3}), VOCABULARY, 3).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embedding.weight"], other["embedding.weight"])
    assert torch.equal(first["layers.1.attention.wq.weight"], deeper["layers.1.attention.wq.weight"])


def test_the_fused_loss_and_its_gradients_are_those_of_cross_entropy() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = CHUNK + 37
    hidden = torch.randn(rows, 16, generator=generator, requires_grad=True)
    weight = torch.randn(VOCABULARY, 16, generator=generator, requires_grad=True)
    labels = torch.randint(0, VOCABULARY, (rows,), generator=generator)
    labels[::5] = IGNORED
    expected = F.cross_entropy(hidden @ weight.T, labels, reduction="sum", ignore_index=IGNORED)
    wanted = torch.autograd.grad(expected * 3, (hidden, weight))
    found = head_cross_entropy(hidden, weight, labels)
    got = torch.autograd.grad(found * 3, (hidden, weight))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
