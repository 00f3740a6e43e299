"""Contract of every file in the catalogue: its name, its documentation, and the names of its reasons."""

import doctest
import importlib
import re
from pathlib import Path

import pyarrow as pa
import pytest

from tasks.filters.base import Annotator, Filter
from tasks.filters.catalogue import CATALOGUE, annotator, filter_of, mismatch

# Required settings of annotators.
NEEDED = {"hugging_face": {"scores": {"educational": {"folder": "/models/edu", "label": "1"}}}}
FOLDER = Path(importlib.import_module("tasks.filters").__file__ or "").parent


def filters() -> list[str]:
    found = []
    for name in CATALOGUE:
        try:
            filter_of(name, {})
        except ValueError:
            continue
        found.append(name)
    return found


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_file_is_named_after_its_entry_and_cites_its_source(name: str) -> None:
    assert CATALOGUE[name] == f"tasks.filters.{name}"
    text = (FOLDER / f"{name}.py").read_text()
    assert re.search(r"Source|RFC|ISO|arXiv|Our own|own rule", text), "cite the source of the rules"
    for kind in (Annotator, Filter):
        for one in vars(importlib.import_module(CATALOGUE[name])).values():
            if isinstance(one, type) and issubclass(one, kind) and one.__module__ == CATALOGUE[name]:
                assert one.__doc__


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_column_of_an_annotator_is_a_struct(name: str) -> None:
    one = annotator(name, NEEDED.get(name, {}))
    assert isinstance(one, Annotator)
    assert pa.types.is_struct(one.type())


@pytest.mark.parametrize("name", filters())
def test_every_filter_has_examples_of_dropped_and_kept_texts(name: str) -> None:
    one = type(filter_of(name, {}))
    examples = doctest.DocTestParser().get_examples(one.__doc__ or "")
    said = "".join(example.want for example in examples)
    assert f"'{name}_" in said, "something that goes, with the filter's name first"
    assert any(not example.want and ".verdict(" in example.source for example in examples) or "False" in said, (
        "something that stays"
    )


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_examples_are_true(name: str) -> None:
    found = doctest.testmod(importlib.import_module(CATALOGUE[name]))
    assert found.failed == 0


@pytest.mark.parametrize(
    ("annotator", "method", "positive", "fits"),
    [
        ("classifier", "fasttext", "good", True),
        ("classifier", "fasttext", "", False),
        ("classifier", "signals", "good", False),
        ("topic", "fasttext", "", True),
        ("quality", "signals", "", True),
        ("quality", "fasttext", "good", False),
    ],
)
def test_an_annotator_uses_models_of_its_method_and_a_classifier_those_with_a_positive_label(
    annotator: str, method: str, positive: str, fits: bool
) -> None:
    assert (mismatch(annotator, method, positive) is None) == fits


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ValueError, match='did you mean "gopher_quality"'):
        annotator("gopher_qualty", {})
    with pytest.raises(ValueError, match='"prose_score" is no filter'):
        filter_of("prose_score", {})
