"""The model: no attention between documents, the textbook loss, and the published rotary angles."""

import math

import pytest
import torch
import torch.nn.functional as F

from tasks.core.config import canonical_json, parse
from tasks.core.errors import RecipeError
from tasks.trainer.config import InitConfig, TrainConfig
from tasks.trainer.model.attention import document_positions
from tasks.trainer.model.config import ModelConfig
from tasks.trainer.model.loss import IGNORED, head_cross_entropy
from tasks.trainer.model.shape import LOSS_ROWS, SIZES, ModelShape
from tasks.trainer.model.transformer import build, frequencies, rotary
from tasks.trainer.parallel.fit import loss_rows, memory_per_rank
from tasks.trainer.place import Layout

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


def test_logits_of_a_document_do_not_depend_on_its_position_in_the_sequence() -> None:
    model, (tokens, documents) = build(CONFIG, VOCABULARY, 0), packed()
    alone = model(tokens[:1, 7:16], torch.zeros(1, 9, dtype=torch.int64))
    torch.testing.assert_close(model(tokens, documents)[0, 7:16], alone[0], atol=1e-5, rtol=1e-5)


def test_attention_is_causal() -> None:
    model, (tokens, documents) = build(CONFIG, VOCABULARY, 0), packed()
    changed = tokens.clone()
    changed[1, 20:] = 0
    assert torch.equal(model(tokens, documents)[1, :20], model(changed, documents)[1, :20])


def test_positions_restart_with_each_document() -> None:
    positions = document_positions(torch.tensor([[4, 4, 4, 7, 7, 2]]))
    assert positions.tolist() == [[0, 1, 2, 0, 1, 0]]


QWEN = {"head_width": 12, "qkv_bias": True, "qk_norm": True, "vocab_rows": 64}
GPT_OSS = {"qkv_bias": True, "output_bias": True, "attention_sinks": True}


@pytest.mark.parametrize(
    "settings", [{}, {"tie_embeddings": False}, QWEN, *({name: QWEN[name]} for name in QWEN), GPT_OSS]
)
def test_the_computed_parameter_count_matches_the_model(settings: dict[str, object]) -> None:
    config = CONFIG.model_copy(update=settings)
    model = build(config, VOCABULARY, 0)
    assert ModelShape.of(config, VOCABULARY).weights["total"] == sum(p.numel() for p in model.parameters())


def test_biases_and_sinks_start_at_zero_and_norms_of_heads_at_one() -> None:
    state = build(CONFIG.model_copy(update=GPT_OSS), VOCABULARY, 0).state_dict()
    assert torch.equal(state["layers.1.attention.sinks"], torch.zeros(4))
    assert torch.equal(state["layers.1.attention.wo.bias"], torch.zeros(32))
    state = build(CONFIG.model_copy(update=QWEN), VOCABULARY, 0).state_dict()
    biases = [name for name in state if name.endswith(".bias")]
    assert biases == [f"layers.{layer}.attention.w{one}.bias" for layer in (0, 1) for one in "qkv"]
    assert not any(state[name].any() for name in biases)
    assert all(torch.equal(state[f"layers.1.attention.{one}_norm.weight"], torch.ones(12)) for one in "qk")


def test_rows_that_are_no_tokens_have_no_logit_no_probability_and_no_gradient() -> None:
    (tokens, documents), padded = packed(), build(CONFIG.model_copy(update=QWEN), VOCABULARY, 0)
    whole = build(CONFIG.model_copy(update={**QWEN, "vocab_rows": 0}), VOCABULARY, 0)
    state = padded.state_dict()
    whole.load_state_dict({**state, "embedding.weight": state["embedding.weight"][:VOCABULARY]})
    assert torch.equal(padded(tokens, documents), whole(tokens, documents))
    losses = [model.loss(tokens, documents, tokens.roll(-1)) for model in (padded, whole)]
    torch.testing.assert_close(*losses)
    for loss in losses:
        loss.backward()
    assert padded.embedding is not None
    assert whole.embedding is not None
    gradient = padded.embedding.weight.grad
    torch.testing.assert_close(gradient[:VOCABULARY], whole.embedding.weight.grad)
    assert not gradient[VOCABULARY:].any()


def test_fewer_rows_than_tokens_are_refused() -> None:
    config = CONFIG.model_copy(update={"vocab_rows": 49})
    for make in (lambda: build(config, VOCABULARY, 0), lambda: ModelShape.of(config, VOCABULARY)):
        with pytest.raises(
            RecipeError, match=r"vocab_rows = 49, and the vocabulary has 50 tokens\. Set .* to 50 or more"
        ):
            make()


@pytest.mark.parametrize("settings", [{"head_width": 7}, {"dim": 36, "heads": 8}])
def test_a_head_has_an_even_width(settings: dict[str, object]) -> None:
    with pytest.raises(RecipeError, match=r"must be (even|an even multiple of heads 8)"):
        parse(TrainConfig, {"model": settings}, "test")


def test_initial_weights_depend_on_the_seed_and_not_on_the_number_of_layers() -> None:
    torch.rand(17)
    first, again, other = (build(CONFIG, VOCABULARY, seed).state_dict() for seed in (3, 3, 4))
    deeper = build(CONFIG.model_copy(update={"layers": 3}), VOCABULARY, 3).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embedding.weight"], other["embedding.weight"])
    assert torch.equal(first["layers.1.attention.wq.weight"], deeper["layers.1.attention.wq.weight"])


def test_the_fused_loss_and_its_gradients_equal_cross_entropy() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = LOSS_ROWS["cpu"] + 37
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


@pytest.mark.parametrize(("gpu", "rows"), [(False, 512), (True, 4096)])
def test_as_many_logits_exist_at_a_time_as_suit_the_device_or_the_layout_says(gpu: bool, rows: int) -> None:
    assert [loss_rows(layout, gpu) for layout in (None, Layout(), Layout(loss_rows=100))] == [rows, rows, 100]
    config = SIZES["125m"]
    run = TrainConfig(model=config.model, batch_size=8, microbatch=8, precision="fp32")
    loss = memory_per_rank(None, run, ModelShape.of(config.model, config.vocab_size), 2048, gpu=gpu)["loss"]
    gradients = 2 * 4 * (8 * 2048 + config.vocab_size) * config.model.dim
    assert loss - gradients == rows * config.vocab_size * 3 * 4


def test_the_number_of_logits_at_a_time_changes_the_loss_only_by_rounding() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(rows, 16, generator=generator) for rows in (600, VOCABULARY))
    labels = torch.randint(0, VOCABULARY, (600,), generator=generator)
    whole = head_cross_entropy(hidden, weight, labels)
    assert torch.equal(head_cross_entropy(hidden, weight, labels, chunk=LOSS_ROWS["cpu"]), whole)
    torch.testing.assert_close(head_cross_entropy(hidden, weight, labels, chunk=LOSS_ROWS["cuda"]), whole)


THETA = 10_000.0
PLAIN = [THETA ** (-pair / 4) for pair in range(4)]
"""Angles of a head of eight: 1, 0.1, 0.01 and 0.001."""


def config(**scaling: object) -> ModelConfig:
    settings = {"layers": 1, "dim": 16, "heads": 2, "kv_heads": 1} | ({"rope_scaling": scaling} if scaling else {})
    return parse(TrainConfig, {"model": settings}, "test").model


def angles(**scaling: object) -> list[float]:
    return [float(angle) for angle in frequencies(config(**scaling), torch.device("cpu"))]


def test_linear_scaling_divides_all_angles() -> None:
    assert angles(kind="linear", factor=4.0) == pytest.approx([angle / 4 for angle in PLAIN])


def test_llama3_scaling_keeps_short_wavelengths_divides_long_ones_and_interpolates() -> None:
    # Over 1,000 positions the pairs turn 159.2, 15.9, 1.59 and 0.159 times: kept, kept, mixed, divided.
    share = (1000 * 0.01 / (2 * math.pi) - 1) / (4 - 1)
    mixed = share * 0.01 + (1 - share) * 0.01 / 8
    assert 0 < share < 1
    assert angles(kind="llama3", factor=8.0, original_length=1000) == pytest.approx([1, 0.1, mixed, 0.001 / 8])


def test_yarn_interpolates_over_pairs_and_scales_attention() -> None:
    # 32 turns belong to pair 0.70 and one turn to pair 2.20; rounded outwards 0 and 3: shares of 1, 2/3, 1/3, 0.
    wanted = [share * angle + (1 - share) * angle / 8 for share, angle in zip((1, 2 / 3, 1 / 3, 0), PLAIN, strict=True)]
    scaling = {"kind": "yarn", "factor": 8.0, "original_length": 1000}
    assert angles(**scaling) == pytest.approx(wanted)
    cos, _ = rotary(torch.zeros(1, 1, dtype=torch.int64), config(**scaling))
    assert cos.flatten().tolist() == pytest.approx([0.1 * math.log(8) + 1] * 4)


def test_a_model_applies_its_position_scaling() -> None:
    model = build(ModelConfig(layers=1, dim=16, heads=2, kv_heads=1), 20, 0)
    tokens, documents = torch.arange(12)[None], torch.zeros(1, 12, dtype=torch.int64)
    plain = model.hidden(tokens, documents)
    model.config = config(kind="linear", factor=2.0)
    assert not torch.allclose(model.hidden(tokens, documents)[0, -1], plain[0, -1])


def test_settings_of_other_families_are_serialized_only_if_set() -> None:
    for name, value in (QWEN | GPT_OSS).items():
        assert name not in ModelConfig().model_dump(mode="json")
        config = CONFIG.model_copy(update={name: value})
        assert config.model_dump(mode="json")[name] == value
        assert f'"{name}":' in canonical_json(config)


def test_without_scaling_the_serialized_settings_are_unchanged() -> None:
    assert "rope_scaling" not in canonical_json(ModelConfig())
    assert "rope_scaling" not in ModelConfig().model_dump(mode="json")
    scaled = config(kind="linear", factor=2.0)
    assert '"rope_scaling":{"factor":2.0,"kind":"linear"}' in canonical_json(scaled)
    assert ModelConfig.model_validate(scaled.model_dump(mode="json")) == scaled


def test_an_invalid_scaling_is_refused_by_name() -> None:
    with pytest.raises(RecipeError, match="original_length is missing"):
        config(kind="llama3", factor=8.0)
    with pytest.raises(RecipeError, match="low_freq_factor: must be below"):
        config(kind="llama3", factor=8.0, original_length=64, low_freq_factor=4.0)


def test_initial_weights_have_the_deviation_of_their_settings() -> None:
    config = ModelConfig(layers=8, dim=64, heads=4, kv_heads=4, tie_embeddings=False)

    def deviations(init: InitConfig) -> dict[str, float]:
        model = build(config, 100, 0, init)
        names = ("embedding.weight", "head.weight", "layers.0.attention.wq.weight", "layers.0.ffn.w2.weight")
        return {name.split(".")[-2]: float(model.state_dict()[name].std()) for name in names}

    assert deviations(InitConfig(std=0.006)) == pytest.approx(
        {"embedding": 0.006, "head": 0.006, "wq": 0.006, "w2": 0.006 / 4}, rel=0.05
    )
    assert deviations(InitConfig(std=0.02, scale_outputs=False))["w2"] == pytest.approx(0.02, rel=0.05)
    assert deviations(InitConfig())["head"] == 0
    weight = build(config, 100, 0, InitConfig(std=0.02, truncate=2.0)).layers["0"].attention.wq.weight
    assert 0.038 < weight.abs().max() <= 0.04
