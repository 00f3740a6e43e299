"""Adapters: nothing before they learn, the same merged, and the base stays as it is."""

import pytest
import torch

from tasks.trainer.config import TARGETS, LoraConfig, ModelConfig
from tasks.trainer.model.transformer import Transformer, build
from tasks.trainer.tuning.lora import adapters, attach, merged_weights

MODEL = ModelConfig(layers=2, dim=32, heads=4, kv_heads=2)
TOKENS = torch.arange(48).view(2, 24)
DOCUMENTS = (torch.arange(24) // 9).expand(2, 24)


@pytest.fixture(params=[True, False])
def model(request: pytest.FixtureRequest) -> Transformer:
    return build(MODEL.model_copy(update={"tie_embeddings": request.param}), 60, 3)


def test_a_new_adapter_changes_nothing(model: Transformer) -> None:
    before = model(TOKENS, DOCUMENTS)
    attach(model, LoraConfig(), 0)
    assert torch.equal(model(TOKENS, DOCUMENTS), before)


def test_only_adapters_are_trained_and_saved(model: Transformer) -> None:
    attach(model, LoraConfig(rank=2, targets=("wq", "w2")), 0)
    names = {f"layers.{n}.{where}.lora_{x}" for n in (0, 1) for where in ("attention.wq", "ffn.w2") for x in "ab"}
    assert set(dict(model.named_parameters())) == set(model.state_dict()) == names


@pytest.mark.parametrize("base", ["fp32", "nf4"])
@pytest.mark.parametrize("targets", [TARGETS, ("wv",)])
def test_merged_and_unmerged_compute_the_same(model: Transformer, base: str, targets: tuple[str, ...]) -> None:
    attach(model, LoraConfig.model_validate({"rank": 4, "base": base, "targets": targets}), 0)
    torch.manual_seed(1)
    for adapter in adapters(model):
        torch.nn.init.normal_(adapter.lora_b, std=0.3)
    whole = Transformer(model.config, 60)
    whole.load_state_dict(merged_weights(model))
    found = model(TOKENS, DOCUMENTS)
    torch.testing.assert_close(whole(TOKENS, DOCUMENTS), found, atol=1e-5, rtol=1e-5)
    for adapter in adapters(model):
        adapter.active = False
    if whole.head is None:  # a head of its own begins at zero
        assert (model(TOKENS, DOCUMENTS) - found).abs().max() > 1e-3


def test_equal_seeds_give_equal_adapters_and_others_do_not(model: Transformer) -> None:
    made = []
    for seed in (0, 0, 1):
        one = build(MODEL, 60, 3)
        attach(one, LoraConfig(), seed)
        made.append(one.state_dict()["layers.0.attention.wq.lora_a"])
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])
