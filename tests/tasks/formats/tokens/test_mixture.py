"""A mixture: shares that sum to 1, with errors that name a remedy."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tasks.core.errors import RecipeError
from tasks.formats.tokens.mixture import GRID, Mixture, grid_weights, repetitions, replay_weights, resolve


def test_weights_that_do_not_sum_to_one_are_refused_with_the_sum_and_the_remedy() -> None:
    with pytest.raises(ValidationError) as error:
        Mixture(weights={"web": 0.8, "code": 0.4})
    assert "sum to 1.2, not to 1: divide each by 1.2, which gives code = 0.33333, web = 0.66667" in str(error.value)


def test_a_sum_within_the_tolerance_passes() -> None:
    assert Mixture(weights={"a": 1 / 3, "b": 1 / 3, "c": 0.3333333}).weights["a"] == 1 / 3


@pytest.mark.parametrize("weight", [-0.1, math.nan, math.inf])
def test_an_invalid_weight_is_refused_by_name(weight: float) -> None:
    with pytest.raises(ValidationError, match=r'weight of "code"|weights\.code'):
        Mixture(weights={"web": 1.1, "code": weight})


def test_an_unknown_source_is_refused_with_the_nearest_known_name() -> None:
    with pytest.raises(RecipeError, match=r'no source is called "wbe"\. Did you mean "web"\?'):
        Mixture(weights={"wbe": 1.0}).over(["web", "code"])
    assert Mixture(weights={"web": 1.0}).over(["web", "code"]).weights == {"web": 1.0}


@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=30))
def test_resolved_weights_sum_to_the_grid_and_keep_every_source(amounts: list[float]) -> None:
    named = {f"s{index:02d}": amount for index, amount in enumerate(amounts)}
    weights = grid_weights(named)
    parts = resolve(weights)
    assert sum(parts.values()) == GRID
    assert all(parts[source] >= 1 for source in named)
    assert parts == {source: round(weight * GRID) for source, weight in weights.items()}


def test_decimal_shares_are_resolved_exactly() -> None:
    assert resolve({"a": 0.29, "b": 0.57, "c": 0.14}) == {"a": 29_000, "b": 57_000, "c": 14_000}


def test_repetitions_count_epochs_per_source() -> None:
    assert repetitions({"a": 0.5, "b": 0.5, "c": 0.0}, {"a": 100, "b": 25}, 200) == {"a": 1.0, "b": 4.0}
    assert repetitions({"a": 1.0}, {}, 10) == {"a": math.inf}


@given(
    st.lists(st.just(0.0) | st.floats(1e-6, 1), min_size=2, max_size=12), st.integers(1, 11), st.floats(0.001, 0.999)
)
def test_replay_gives_old_sources_their_share_and_keeps_the_ratios_within_each_side(
    amounts: list[float], count: int, share: float
) -> None:
    sequences = {f"s{index:02d}": 10 + index for index in range(len(amounts))}
    weights = dict(zip(sequences, amounts, strict=True))
    old = list(sequences)[: min(count, len(amounts) - 1)]
    mixed = replay_weights(weights, sequences, old, share)
    parts = {source: round(weight * GRID) for source, weight in mixed.items()}
    assert sum(parts.values()) == GRID
    assert sum(parts[source] for source in old) == round(share * GRID)
    for side, whole in ((old, share), ([name for name in sequences if name not in old], 1 - share)):
        amount = weights if any(weights[name] for name in side) else sequences
        total = sum(amount[name] for name in side)
        assert all(abs(mixed[name] - whole * amount[name] / total) < len(amounts) / GRID for name in side)
