"""Contract of the consolidate settings that needs no other section of the recipe."""

from typing import Any

import pytest

from tasks.core.config import canonical_json
from tasks.stages.consolidate.config import ConsolidateConfig


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"gopher_quality": {"min_words": True}}, r"gopher_quality\.min_words: .*integer \(got True\)"),
        ({"gopher_quality": {"min_words": "30"}}, r"gopher_quality\.min_words: .*integer \(got '30'\)"),
        ({"gopher_quality": {"min_words": 30.0}}, r"gopher_quality\.min_words: .*integer \(got 30\.0\)"),
        ({"gopher_quality": {"min_letters": True}}, r"gopher_quality\.min_letters: .*number \(got True\)"),
        ({"gopher_repetition": {"max_top_ngram": {"two": 0.1}}}, r"gopher_repetition\.max_top_ngram"),
        ({"language": {"keep": "en"}}, r"language\.keep"),
    ],
)
def test_limits_are_strict_in_type(limits: dict[str, dict[str, Any]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ConsolidateConfig(limits=limits)


def test_limits_as_a_file_holds_them_are_taken() -> None:
    limits: dict[str, dict[str, Any]] = {
        "gopher_quality": {"min_words": 30, "min_letters": 1},
        "gopher_repetition": {"max_top_ngram": {"2": 0.3}},
        "language": {"keep": ["en"]},
    }
    found = ConsolidateConfig(limits=limits).limits
    assert found["gopher_quality"]["min_letters"] == 1.0
    assert found["gopher_repetition"]["max_top_ngram"] == {"2": 0.3}
    assert found["language"]["keep"] == ["en"]
    assert canonical_json(ConsolidateConfig(limits=found)) == canonical_json(ConsolidateConfig(limits=limits))


def test_limits_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match=r"classifier\.at_least\.q is inf: only finite"):
        ConsolidateConfig(filters=("classifier",), limits={"classifier": {"at_least": {"q": float("inf")}}})
