"""Contract of tasks.core.config: types of a file are strict, and values without a stable fingerprint are
refused."""

import math
import tomllib
from typing import Any

import pytest
from pydantic import ValidationError

from tasks.core.config import Config, canonical_json, parse, validate_strict
from tasks.core.errors import RecipeError


class Inner(Config):
    share: float = 0.5
    cuts: tuple[float, float] = (1.0, 2.0)


class Toy(Config):
    inner: Inner = Inner()
    free: dict[str, dict[str, Any]] = {}
    names: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("inner.share = inf", "inner.share is inf"),
        ("inner.share = -inf", "inner.share is -inf"),
        ("inner.cuts = [1.0, nan]", "inner.cuts[1] is nan"),
        ("free.one = { deep = [1.0, { deeper = nan }] }", "free.one.deep[1].deeper is nan"),
        ("inner.share = 1e999", "inner.share is inf"),
    ],
)
def test_a_number_that_is_not_finite_is_refused_with_its_key(line: str, key: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse(Toy, tomllib.loads(line), "mine.toml")
    assert str(caught.value) == f"mine.toml: {key}: only finite numbers can be fingerprinted. Write a finite number."


def test_a_value_of_an_unsupported_type_is_refused_with_its_key() -> None:
    with pytest.raises(RecipeError, match=r"mine\.toml: free\.one\.at is a time, which has no deterministic encoding"):
        parse(Toy, tomllib.loads("free.one.at = 07:32:00"), "mine.toml")


def test_a_whole_number_too_large_for_a_float_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"mine\.toml: inner\.share: Input should be a finite number"):
        parse(Toy, {"inner": {"share": 10**400}}, "mine.toml")


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_settings_built_in_python_must_be_finite(value: float) -> None:
    with pytest.raises(ValidationError, match="finite"):
        Inner(share=value)


def test_a_list_becomes_a_tuple_in_the_same_order() -> None:
    found = validate_strict(Toy, {"names": ["b", "a"], "free": {"z": {}, "a": {}}})
    assert (found.names, list(found.free)) == (("b", "a"), ["z", "a"])


@pytest.mark.parametrize("wrong", ["0.5", True, [0.5], None])
def test_types_are_strict(wrong: object) -> None:
    with pytest.raises(ValidationError):
        validate_strict(Inner, {"share": wrong})


def test_a_parsed_config_can_be_encoded() -> None:
    found = parse(Toy, tomllib.loads("free.one = { at = 2026-01-02, more = [1, 2.5, true] }"), "mine.toml")
    assert '"at":"2026-01-02"' in canonical_json(found)
