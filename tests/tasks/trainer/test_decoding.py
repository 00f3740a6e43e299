"""Generation with a cache of keys and values gives the same tokens as generation without it."""

import numpy as np
import pytest
import torch

from tasks.trainer.inference import Decoding, Sampling, continuation
from tasks.trainer.model.config import ModelConfig, YarnRope
from tasks.trainer.model.transformer import Transformer, build

EOS, VOCABULARY, CONTEXT = 0, 50, 24
SHAPES = {
    "shared keys": ModelConfig(layers=2, dim=32, heads=4, kv_heads=2),
    "a key for each": ModelConfig(layers=3, dim=32, heads=2, kv_heads=2, tie_embeddings=False),
    "qwen, padded": ModelConfig(
        layers=2, dim=32, heads=4, kv_heads=2, head_width=12, qkv_bias=True, qk_norm=True, vocab_rows=64
    ),
    "windows, capped, some without positions": ModelConfig(
        **{"layers": 3, "dim": 32, "heads": 4, "kv_heads": 2, "window": 6, "window_pattern": "wwf"},
        **{"window_rope_theta": 100.0, "rope_pattern": "rn", "attention_cap": 1.0, "logit_cap": 2.0},
        **{"norm_place": "both", "norm_weight": "offset", "embedding_scale": "sqrt_dim", "attention_scalar": 5.0},
    ),
    "one key, yarn": ModelConfig(
        layers=2, dim=32, heads=4, kv_heads=1, rope_scaling=YarnRope(kind="yarn", factor=4.0, original_length=8)
    ),
}


@pytest.fixture(params=SHAPES)
def model(request: pytest.FixtureRequest) -> Transformer:
    made = build(SHAPES[request.param], VOCABULARY, 3).eval()
    with torch.no_grad():  # a head that starts at zero predicts nothing
        made.head_weight.normal_(0, 0.5, generator=torch.Generator().manual_seed(1))
        if made.config.vocab_rows:  # these would be the most likely if they were tokens
            made.embedding.weight[VOCABULARY:] = 10 * made.embedding.weight[: 64 - VOCABULARY]
    return made


@torch.no_grad()
def whole(model: Transformer, tokens: list[int]) -> torch.Tensor:
    """The logits after a text, computed from all of it."""
    seen = torch.tensor([tokens])
    return model(seen, torch.zeros_like(seen))[0, -1]


def reference(model: Transformer, prompt: list[int], sampling: Sampling) -> list[int]:
    """A continuation that computes the whole context for every token."""
    generator = torch.Generator().manual_seed(sampling.seed)
    tokens = [EOS, *prompt]
    for _ in range(sampling.max_tokens):
        logits = whole(model, tokens[-CONTEXT:])
        if sampling.temperature:
            chosen = int(torch.multinomial(torch.softmax(logits / sampling.temperature, -1), 1, generator=generator))
        else:
            chosen = int(logits.argmax())
        if chosen == EOS:
            break
        tokens.append(chosen)
    return tokens[1 + len(prompt) :]


def test_batched_decoding_of_rows_of_any_length_equals_decoding_each_alone(model: Transformer) -> None:
    draw = np.random.default_rng(0)
    rows = [[EOS, *draw.integers(1, VOCABULARY, size).tolist()] for size in (7, 1, 4, 12)]
    read = Decoding(model, rows, 8)
    for step in range(8):
        expected = torch.stack([whole(model, row) for row in rows])
        torch.testing.assert_close(read.logits(), expected, atol=1e-5, rtol=1e-5)
        if step == 3:
            read.keep([3, 0])
            rows = [rows[3], rows[0]]
            torch.testing.assert_close(read.logits(), expected[[3, 0]], atol=1e-5, rtol=1e-5)
        tokens = draw.integers(1, VOCABULARY, len(rows)).tolist()
        read.append(tokens)
        rows = [[*row, token] for row, token in zip(rows, tokens, strict=True)]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("prompts", [5, pytest.param(20, marks=pytest.mark.soak)])
def test_decoded_tokens_are_equal_within_and_beyond_the_context(
    model: Transformer, prompts: int, temperature: float
) -> None:
    draw = np.random.default_rng(29)
    for number in range(prompts):
        prompt = draw.integers(1, VOCABULARY, draw.integers(1, 2 * CONTEXT)).tolist()
        sampling = Sampling(max_tokens=2 * CONTEXT, temperature=temperature, seed=number)
        assert continuation(model, prompt, EOS, CONTEXT, sampling) == reference(model, prompt, sampling)
