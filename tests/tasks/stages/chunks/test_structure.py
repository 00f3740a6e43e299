"""Contract of structure: headings, fences and tables of plain text are recognized, and every word is in a block."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.stages.chunks.structure import blocks


def seen(text: str) -> list[tuple[str, int, str]]:
    """Kind and level of each block, and its text or title."""
    return [(one.kind, one.level, one.title or text[one.start : one.end]) for one in blocks(text)]


def test_headings_code_tables_and_paragraphs_are_distinguished() -> None:
    text = "Manual\n======\nTwo lines\nof text.\n## Doors ##\n\n```py\n# no heading\n\nx\n```\nA | B\n-|-\n1 | 2\n\nEnd"
    assert seen(text) == [
        ("heading", 1, "Manual"),
        ("text", 0, "Two lines\nof text."),
        ("heading", 2, "Doors"),
        ("code", 0, "```py\n# no heading\n\nx\n```"),
        ("table", 0, "A | B\n-|-\n1 | 2"),
        ("text", 0, "End"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "#hashtag and more",
        "#include <stdio.h>",
        "two lines\nof text\n----",
        "--------\nno title above",
        "```\nnothing closes this fence",
        "one | bar\nno bar",
        "    # indented code",
    ],
)
def test_text_that_resembles_structure_is_text(text: str) -> None:
    assert [one.kind for one in blocks(text)] == ["text"]


def test_three_or_more_rows_with_tabs_or_bars_are_a_table() -> None:
    assert [one[0] for one in seen("a\tb\nc\td\ne\tf")] == ["table"]
    assert [one[0] for one in seen("a\tb\nc\td")] == ["text"]
    assert [one[0] for one in seen("before\na | b\nc | d\ne | f\nafter")] == ["text", "table", "text"]


@given(st.lists(st.sampled_from(["# a", "b", "", "===", "---", "```", "~~~~", "|x|y|", "|-|-|", "\tz", " "])))
def test_every_character_but_white_space_is_in_one_block_and_blocks_are_in_order(lines: list[str]) -> None:
    text, at = "\n".join(lines), 0
    for one in blocks(text):
        assert not text[at : one.start].strip()
        assert at <= one.start < one.end
        at = one.end
    assert not text[at:].strip()


def test_many_unclosed_code_fences_take_linear_time() -> None:
    lines = 20_000  # a pass for each would read 200 million lines and take minutes
    assert len(blocks("```open\n" * lines)) == 1
