"""Adapters: no effect before training, equal when merged, base unchanged; NF4 equals that of bitsandbytes."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save

from tasks.trainer.checkpoints.checkpoint import write_whole
from tasks.trainer.config import TARGETS, LoraConfig
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.model.transformer import Transformer, build
from tasks.trainer.tuning.lora import CHUNK, VALUES, Nf4Linear, adapters, dequantize, quantize
from tasks.trainer.tuning.model import fill, merged
from tests.tasks.trainer.tuning.filled import filled, stored

MODEL = ModelConfig(layers=2, dim=32, heads=4, kv_heads=2)
TOKENS = torch.arange(48).view(2, 24)
DOCUMENTS = (torch.arange(24) // 9).expand(2, 24)


OTHERS = {
    "tied": {},
    "untied": {"tie_embeddings": False},
    "qwen": {"head_width": 12, "qkv_bias": True, "qk_norm": True, "vocab_rows": 64},
}


@pytest.fixture(params=OTHERS)
def model(request: pytest.FixtureRequest) -> Transformer:
    made = build(MODEL.model_copy(update=OTHERS[request.param]), 60, 3)
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if name.endswith(".bias"):  # which begin at zero
                torch.nn.init.normal_(weight, generator=torch.Generator().manual_seed(5))
    return made


def test_a_new_adapter_changes_nothing(model: Transformer) -> None:
    assert torch.equal(filled(model, LoraConfig())(TOKENS, DOCUMENTS), model(TOKENS, DOCUMENTS))


def test_only_adapters_are_trained_and_saved(model: Transformer) -> None:
    tuned = filled(model, LoraConfig(rank=2, targets=("wq", "w2")))
    names = {f"layers.{n}.{where}.lora_{x}" for n in (0, 1) for where in ("attention.wq", "ffn.w2") for x in "ab"}
    assert set(dict(tuned.named_parameters())) == set(tuned.state_dict()) == names


@pytest.mark.parametrize("base", ["fp32", "nf4"])
@pytest.mark.parametrize("targets", [TARGETS, ("wv",)])
def test_merged_and_unmerged_compute_the_same(
    model: Transformer, base: str, targets: tuple[str, ...], tmp_path: Path
) -> None:
    lora = LoraConfig.model_validate({"rank": 4, "base": base, "targets": targets})
    tuned = filled(model, lora)
    torch.manual_seed(1)
    for adapter in adapters(tuned).values():
        torch.nn.init.normal_(adapter.lora_b, std=0.3)
    weights = merged(stored(model, tmp_path), tuned.state_dict(), lora)
    with (tmp_path / "merged").open("wb") as file:
        write_whole(weights, file)
    whole = Transformer(model.config, 60)
    whole.load_state_dict(load_file(tmp_path / "merged"))
    assert (tmp_path / "merged").read_bytes() == save(load_file(tmp_path / "merged")), "the bytes of safetensors"
    found = tuned(TOKENS, DOCUMENTS)
    torch.testing.assert_close(whole(TOKENS, DOCUMENTS), found, atol=1e-5, rtol=1e-5)
    for adapter in adapters(tuned).values():
        adapter.active = False
    if whole.head is None:  # an untied head begins at zero
        assert (tuned(TOKENS, DOCUMENTS) - found).abs().max() > 1e-3


def test_equal_seeds_give_equal_adapters_and_others_do_not() -> None:
    plain = build(MODEL, 60, 3)
    made = [filled(plain, LoraConfig(), seed).state_dict()["layers.0.attention.wq.lora_a"] for seed in (0, 0, 1)]
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


def test_a_base_in_bf16_is_read_exactly(model: Transformer) -> None:
    half = build(model.config, 60, 3).bfloat16()
    tuned = filled(half)
    for name, weight in half.state_dict().items():
        assert torch.equal(tuned.state_dict()[name], weight.float())


def test_a_base_of_another_shape_is_refused(model: Transformer, tmp_path: Path) -> None:
    wider = build(model.config.model_copy(update={"ffn_width": 64}), 60, 3)
    with pytest.raises(ValueError, match=r"layers\.0\.ffn\.w1\.weight has the shape \[96, 32\], and in the model"):
        fill(filled(wider, LoraConfig(base="nf4")), stored(model, tmp_path), 0)
    deeper = build(model.config.model_copy(update={"layers": 3}), 60, 3)
    with pytest.raises(ValueError, match=r"other tensors than the model: layers\.2\."):
        fill(filled(deeper), stored(model, tmp_path), 0)


SHAPES = [(64, 64), (48, 96), (7, 33), (1, 1), (128, 256)]


def weight(shape: tuple[int, ...], scale: float = 0.05) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * scale


@pytest.mark.parametrize("shape", SHAPES)
def test_every_weight_gets_the_nearest_of_the_sixteen_values(shape: tuple[int, ...]) -> None:
    given = weight(shape)
    codes, scales = quantize(given)
    back = dequantize(codes, scales, given.shape)
    assert codes.numel() == -(-given.numel() // 2)
    values = torch.tensor(VALUES)
    each = scales.repeat_interleave(64)[: given.numel()].view(shape)
    nearest = (given[..., None] - each[..., None] * values).abs().amin(dim=-1)
    torch.testing.assert_close((given - back).abs(), nearest, atol=1e-7, rtol=0)


def test_a_weight_is_quantized_in_chunks_like_as_a_whole() -> None:
    given = weight((3, CHUNK // 2 + 17))
    codes, scales = quantize(given)
    tail = given.flatten()[CHUNK:]
    assert torch.equal(scales[CHUNK // 64 :], quantize(tail)[1])
    assert torch.equal(codes[CHUNK // 2 :], quantize(tail)[0])
    assert torch.equal(
        dequantize(codes, scales, given.shape).flatten()[CHUNK:], dequantize(*quantize(tail), tail.shape)
    )


def test_zero_stays_zero() -> None:
    given = torch.zeros(130)
    assert torch.equal(dequantize(*quantize(given), given.shape), given)


@pytest.mark.oracle("bitsandbytes")
@pytest.mark.parametrize("shape", SHAPES)
def test_codes_scales_and_error_equal_those_of_bitsandbytes(shape: tuple[int, ...]) -> None:
    import bitsandbytes.functional as bitsandbytes

    given = weight(shape)
    packed, state = bitsandbytes.quantize_nf4(given, blocksize=64)
    codes, scales = quantize(given)
    ours = dequantize(codes, scales, given.shape)
    assert torch.equal(codes, packed.flatten())
    assert torch.equal(scales, state.absmax)
    # As one row: its CPU kernel uses wrong scales for rows that are not a multiple of a block, as in (48, 96).
    theirs = bitsandbytes.dequantize_nf4(*bitsandbytes.quantize_nf4(given.flatten(), blocksize=64)).view(shape)
    torch.testing.assert_close(ours, theirs, atol=1e-7, rtol=1e-6)
    torch.testing.assert_close((given - ours).norm(), (given - theirs).norm())


def test_gradients_flow_through_but_not_to_the_quantized_weight() -> None:
    given = weight((24, 40))
    linear = Nf4Linear(given.shape)
    for name, values in linear.encoded(given).items():
        getattr(linear, name).copy_(values)
    x = torch.randn(5, 40, requires_grad=True)
    linear(x).square().sum().backward()
    other = x.detach().clone().requires_grad_()
    F.linear(other, dequantize(*quantize(given), given.shape)).square().sum().backward()
    torch.testing.assert_close(x.grad, other.grad)
    assert not list(linear.parameters())
    assert not linear.state_dict()
