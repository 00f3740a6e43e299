from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.consolidate.mask import mask


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
def test_a_span_that_is_no_part_of_the_text_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="outside a text of 10 characters"):
        mask("0123456789", [span("email", 0, 1), bad])


@given(st.text("ab\u00e9\U0001f600", max_size=30), st.data())
def test_no_masked_character_stays_and_no_other_is_lost(text: str, data: Any) -> None:
    count = data.draw(st.integers(0, 4)) if text else 0
    spans = []
    for _ in range(count):
        start = data.draw(st.integers(0, len(text) - 1))
        spans.append(span("x", start, data.draw(st.integers(start + 1, len(text)))))
    hidden = {place for one in spans for place in range(one["start"], one["end"])}
    assert mask(text, spans).replace("<x>", "") == "".join(
        letter for place, letter in enumerate(text) if place not in hidden
    )


def test_dropped_lines_leave_nothing_and_take_the_personal_data_in_them_along() -> None:
    import pyarrow as pa

    from tasks.consolidate.config import ConsolidateConfig
    from tasks.consolidate.mask import masked

    text = "Home\nWrite to ann@example.org today.\nMail: bob@example.org\nThe end."
    spans = [{"kind": "email", "start": 14, "end": 29}, {"kind": "email", "start": 43, "end": 58}]
    documents = pa.table({"id": ["a"], "text": [text]})
    judged = pa.table({"pii": [{"spans": spans}], "c4": [{"dropped_lines": [0, 2]}]})
    config = ConsolidateConfig(filters=("c4",), drop_lines=True)
    assert masked(config, documents, judged, pa.array([True]), None) == ["Write to <email> today.\nThe end."]
