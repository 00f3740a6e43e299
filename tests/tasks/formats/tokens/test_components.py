"""Components of a mixture: weights of joint values, of groups of them, and by their sizes to a power."""

import math

import pytest

from tasks.core.errors import RecipeError
from tasks.formats.tokens.components import component_weights, largest_weights
from tasks.formats.tokens.mixture import grid_weights, repetitions

# Tokens of mC4 in millions, rounded, from small to large: two orders of magnitude, as languages are.
LANGUAGES = {"yo": 50, "sw": 1_000, "th": 11_000, "ja": 164_000, "en": 2_733_000}
JOINT = {"web+en": 700, "web+ja": 80, "web+sw": 20, "books+en": 150, "books+ja": 50}
BY = "source+language"


def test_weights_of_single_columns_are_those_of_before() -> None:
    sizes = {"web": 800, "books": 150, "code": 50}
    assert component_weights({}, sizes) == grid_weights(sizes)
    assert component_weights({"web": 0.7, "code": 0.3}, sizes) == {"books": 0.0, "code": 0.3, "web": 0.7}


@pytest.mark.parametrize("alpha", [1.0, 0.7, 0.3, 0.0])
def test_languages_are_weighted_by_the_formula_of_xlm_r(alpha: float) -> None:
    weights = component_weights({}, LANGUAGES, "language", {"language": alpha})
    total = sum(size**alpha for size in LANGUAGES.values())
    assert weights == pytest.approx({name: size**alpha / total for name, size in LANGUAGES.items()}, abs=1.1e-5)
    assert math.isclose(sum(weights.values()), 1)


def test_the_weight_of_a_source_is_divided_among_its_languages() -> None:
    natural = component_weights({"web": 0.6, "books": 0.4}, JOINT, BY)
    assert natural == {"books+en": 0.3, "books+ja": 0.1, "web+en": 0.525, "web+ja": 0.06, "web+sw": 0.015}
    equal = component_weights({"web": 0.6, "books": 0.4}, JOINT, BY, {"language": 0.0})
    assert equal == {"books+en": 0.2, "books+ja": 0.2, "web+en": 0.2, "web+ja": 0.2, "web+sw": 0.2}


def test_a_component_that_is_named_is_not_in_the_group_with_its_beginning() -> None:
    weights = component_weights({"web": 0.4, "web+ja": 0.5, "books+en": 0.1}, JOINT, BY)
    assert weights["web+ja"] == 0.5
    assert weights["web+en"] + weights["web+sw"] == pytest.approx(0.4)
    assert weights["web+en"] / weights["web+sw"] == pytest.approx(35, rel=1e-2)
    assert weights["books+ja"] == 0


def test_an_exponent_of_one_column_leaves_the_others_natural() -> None:
    weights = component_weights({}, JOINT, BY, {"language": 0.3})
    assert sum(weight for name, weight in weights.items() if name.startswith("web+")) == pytest.approx(0.8)
    by_language_first = {"+".join(reversed(name.split("+"))): size for name, size in JOINT.items()}
    turned = component_weights({}, by_language_first, "language+source", {"language": 0.3})
    total = 850**0.3 + 130**0.3 + 20**0.3
    assert turned["sw+web"] == pytest.approx(20**0.3 / total, abs=1e-5)
    assert turned["en+web"] / turned["en+books"] == pytest.approx(700 / 150, rel=1e-3)


def test_equal_shares_within_a_cap_of_epochs_are_those_of_unimax() -> None:
    """The algorithm of the paper: from the smallest on, each language gets its part of what is left, or its cap."""
    samples, cap = 500_000, 4.0
    left, expected = float(samples), {}
    for rank, (name, size) in enumerate(sorted(LANGUAGES.items(), key=lambda item: item[1])):
        expected[name] = min(left / (len(LANGUAGES) - rank), cap * size)
        left -= expected[name]
    most = largest_weights(LANGUAGES, cap, samples)
    weights = component_weights({}, LANGUAGES, "language", {"language": 0.0}, most)
    assert {name: weight * samples for name, weight in weights.items()} == pytest.approx(expected, abs=2e-5 * samples)
    assert max(repetitions(weights, LANGUAGES, samples).values()) <= cap
    assert repetitions(weights, LANGUAGES, samples)["yo"] == pytest.approx(cap, rel=1e-2)


def test_caps_that_all_bind_are_kept_in_proportion() -> None:
    most = largest_weights(LANGUAGES, 1.0, 10 * sum(LANGUAGES.values()))
    capped = component_weights({}, LANGUAGES, "language", {"language": 0.0}, most)
    assert capped["en"] == pytest.approx(grid_weights(LANGUAGES)["en"], abs=1e-3)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"webb+ja": 1.0}, r'the mixture: no source is called "webb\+ja". Did you mean "web\+ja"'),
        ({"wiki": 1.0}, 'no source is called "wiki"'),
        ({"books": 0.5, "books+en": 0.2, "books+ja": 0.3}, 'all of "books" is named with its values'),
    ],
)
def test_a_name_without_text_is_refused(weights: dict[str, float], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        component_weights(weights, JOINT, BY)
