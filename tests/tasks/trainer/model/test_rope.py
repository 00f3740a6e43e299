"""Rotary scaling: the angles are those of the published formulas, computed here by hand."""

import math

import pytest
import torch

from tasks.core.config import canonical_json, parse
from tasks.core.errors import RecipeError
from tasks.trainer.config import ModelConfig, TrainConfig
from tasks.trainer.model.transformer import build, frequencies, rotary

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


def test_llama3_keeps_short_wavelengths_divides_long_ones_and_mixes_between() -> None:
    # Over 1,000 positions the pairs turn 159.2, 15.9, 1.59 and 0.159 times: kept, kept, mixed, divided.
    share = (1000 * 0.01 / (2 * math.pi) - 1) / (4 - 1)
    mixed = share * 0.01 + (1 - share) * 0.01 / 8
    assert 0 < share < 1
    assert angles(kind="llama3", factor=8.0, original_length=1000) == pytest.approx([1, 0.1, mixed, 0.001 / 8])


def test_yarn_mixes_over_pairs_and_sharpens_attention() -> None:
    # 32 turns belong to pair 0.70 and one turn to pair 2.20; rounded outwards 0 and 3: shares of 1, 2/3, 1/3, 0.
    wanted = [share * angle + (1 - share) * angle / 8 for share, angle in zip((1, 2 / 3, 1 / 3, 0), PLAIN, strict=True)]
    scaling = {"kind": "yarn", "factor": 8.0, "original_length": 1000}
    assert angles(**scaling) == pytest.approx(wanted)
    cos, _ = rotary(torch.zeros(1, 1, dtype=torch.int64), config(**scaling))
    assert cos.flatten().tolist() == pytest.approx([0.1 * math.log(8) + 1] * 4)


def test_a_model_reads_positions_by_its_scaling() -> None:
    model = build(ModelConfig(layers=1, dim=16, heads=2, kv_heads=1), 20, 0)
    tokens, documents = torch.arange(12)[None], torch.zeros(1, 12, dtype=torch.int64)
    plain = model.hidden(tokens, documents)
    model.config = config(kind="linear", factor=2.0)
    assert not torch.allclose(model.hidden(tokens, documents)[0, -1], plain[0, -1])


def test_without_scaling_the_settings_are_written_as_before_it_existed() -> None:
    assert "rope_scaling" not in canonical_json(ModelConfig())
    assert "rope_scaling" not in ModelConfig().model_dump(mode="json")
    scaled = config(kind="linear", factor=2.0)
    assert '"rope_scaling":{"factor":2.0,"kind":"linear"}' in canonical_json(scaled)
    assert ModelConfig.model_validate(scaled.model_dump(mode="json")) == scaled


def test_a_scaling_that_cannot_be_is_refused_by_name() -> None:
    with pytest.raises(RecipeError, match="original_length is missing"):
        config(kind="llama3", factor=8.0)
    with pytest.raises(RecipeError, match="low_freq_factor: must be below"):
        config(kind="llama3", factor=8.0, original_length=64, low_freq_factor=4.0)
