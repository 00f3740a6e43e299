"""Contract of masking: all matched personal data is masked, and lines are dropped only in filtered sources."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.filters.batch import DocumentBatch
from tasks.filters.catalogue import annotator
from tasks.filters.recognisers.scan import mask
from tasks.stages.consolidate.config import ConsolidateConfig
from tasks.stages.consolidate.mask import mask_texts
from tasks.stages.consolidate.rules import reasons


def span(kind: str, start: int, end: int) -> dict[str, Any]:
    return {"kind": kind, "start": start, "end": end}


@pytest.mark.parametrize(
    ("spans", "masked"),
    [
        ([], "0123456789"),
        ([span("ip", 0, 3)], "<ip>3456789"),
        ([span("ip", 7, 10), span("email", 2, 4)], "01<email>456<ip>"),
        ([span("ip", 0, 10)], "<ip>"),
        ([span("email", 2, 8), span("phone", 4, 6)], "01<email>89"),
        ([span("phone", 2, 5), span("email", 4, 9)], "01<email>9"),
        ([span("phone", 2, 5), span("phone", 5, 9)], "01<phone><phone>9"),
        ([span("a", 1, 4), span("b", 3, 6), span("c", 5, 8)], "0<a>89"),
        ([span("phone", 2, 5), span("email", 2, 5)], "01<email>56789"),
    ],
)
def test_spans_become_placeholders_and_overlapping_ones_become_one(spans: list[dict[str, Any]], masked: str) -> None:
    assert mask("0123456789", spans) == masked
    assert mask("0123456789", spans[::-1]) == masked


@pytest.mark.parametrize("bad", [span("ip", 3, 3), span("ip", -1, 2), span("ip", 8, 11), span("ip", 5, 2)])
def test_a_span_outside_the_text_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="outside the text of 10 characters"):
        mask("0123456789", [span("email", 0, 1), bad])


@given(st.text("ab\u00e9\U0001f600", max_size=30), st.data())
def test_exactly_the_masked_characters_are_removed(text: str, data: Any) -> None:
    count = data.draw(st.integers(0, 4)) if text else 0
    spans = []
    for _ in range(count):
        start = data.draw(st.integers(0, len(text) - 1))
        spans.append(span("x", start, data.draw(st.integers(start + 1, len(text)))))
    hidden = {place for one in spans for place in range(one["start"], one["end"])}
    assert mask(text, spans).replace("<x>", "") == "".join(
        letter for place, letter in enumerate(text) if place not in hidden
    )


def measured(*texts: str, error: str | None = None) -> pa.Table:
    """The results of the annotators `pii` and `c4` for some texts; null if one failed."""
    columns = {name: annotator(name, {}).annotate(DocumentBatch(list(texts))) for name in ("pii", "c4")}
    if error:
        columns = {name: pa.nulls(len(texts), column.type) for name, column in columns.items()}
    errors = pa.array([error] * len(texts), pa.string())
    return pa.table({"error": errors, "paged": [False] * len(texts), **columns})


def documents(*texts: str, source: str = "web") -> pa.Table:
    return pa.table({"id": [f"{row}" for row in range(len(texts))], "source": [source] * len(texts), "text": texts})


WITHOUT_LINES = ConsolidateConfig(filters=("c4",), drop_lines=True, limits={"c4": {"min_sentences": 1}})


def test_dropped_lines_are_removed_with_the_spans_in_them() -> None:
    text = "Home\nWrite to ann@example.org today.\nMail: bob@example.org\nThe end is near."
    found = mask_texts(WITHOUT_LINES, documents(text), measured(text), [True])
    assert found == ["Write to <email> today.\nThe end is near."]


def test_lines_are_dropped_only_from_filtered_sources() -> None:
    code = "def f(x):\n    return x + 1\n\nprint(f(2))"
    found, rows = measured(code), documents(code, source="code")
    assert reasons(WITHOUT_LINES, rows.column("source"), found, np.zeros(rows.num_rows, np.bool_)) == [[]]
    assert mask_texts(WITHOUT_LINES, rows, found, [True]) == [code]
    (everywhere,) = mask_texts(WITHOUT_LINES.model_copy(update={"sources": None}), rows, found, [True])
    assert everywhere != code


def test_a_text_that_passes_never_loses_all_its_lines() -> None:
    with pytest.raises(ValueError, match="min_sentences"):
        ConsolidateConfig(filters=("c4",), drop_lines=True, limits={"c4": {"min_sentences": 0}})
    texts = ("Home\nAbout", "Home\nThere is one sentence here.")
    found, rows = measured(*texts), documents(*texts)
    stays = [not why for why in reasons(WITHOUT_LINES, rows.column("source"), found, np.zeros(rows.num_rows, np.bool_))]
    assert stays == [False, True]
    assert mask_texts(WITHOUT_LINES, rows, found, stays) == ["Home\nAbout", "There is one sentence here."]


def test_a_text_without_a_pii_search_is_not_shown() -> None:
    text = "Write to ann@example.org today."
    found, rows = measured(text, error="boom"), documents(text)
    assert mask_texts(ConsolidateConfig(), rows, found, [False]) == [""]
    assert mask_texts(ConsolidateConfig(mask_pii=False), rows, found, [False]) == [text]
