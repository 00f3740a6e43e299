"""Contract of tasks.formats.documents.structure: two texts from the blocks of a document."""

import time

from hypothesis import given
from hypothesis import strategies as st

from tasks.formats.documents.structure import CELL, LINE, Block, markdown, plain, without_marks
from tasks.formats.documents.text import clean_code

MANUAL = [
    Block("heading", "Doors", 2),
    Block("paragraph", "They open."),
    Block("item", "pull", gap=LINE),
    Block("item", "turn\nslowly", 1, 3, gap=LINE),
    Block("quote", "No.\nNever."),
    Block("term", "hinge"),
    Block("definition", "what it hangs on", gap=LINE),
    Block("caption", "Masses"),
    Block("table", rows=(("Part", "Mass"), ("Hinge | pin", "3 kg"), ("Lock", ""))),
    Block("formula", "$$F = ma$$"),
    Block("code", "def f():\n    return 1\n\n\n# ```", language="python"),
    Block("paragraph", "left"),
    Block("paragraph", "right", gap=CELL),
]


def test_markdown_has_the_marks_of_each_kind() -> None:
    assert markdown(MANUAL) == (
        "## Doors\n\nThey open.\n- pull\n  3. turn\n     slowly\n\n> No.\n> Never.\n\nhinge\n: what it hangs on\n\n"
        "Masses\n\n| Part | Mass |\n| --- | --- |\n| Hinge \\| pin | 3 kg |\n| Lock |  |\n\n$$F = ma$$\n\n"
        "````python\ndef f():\n    return 1\n\n\n# ```\n````\n\nleft\tright"
    )


def test_plain_text_has_no_marks() -> None:
    assert plain(MANUAL) == (
        "Doors\n\nThey open.\npull\nturn\nslowly\n\nNo.\nNever.\n\nhinge\nwhat it hangs on\n\nMasses\n\n"
        "Part\tMass\nHinge | pin\t3 kg\nLock\n\n$$F = ma$$\n\ndef f():\n    return 1\n\n\n# ```\n\nleft\tright"
    )


def test_a_table_without_a_header_has_an_empty_one_and_no_line_in_plain_text() -> None:
    table = Block("table", rows=(("a", "b"), ("c",)), header=False)
    assert markdown([table]) == "|  |  |\n| --- | --- |\n| a | b |\n| c |  |"
    assert plain([table]) == without_marks(markdown([table])) == "a\tb\nc"


WORDS = st.text("abc é字|`#1.-", min_size=1, max_size=12).map(lambda text: f"w{text.strip()}w")
TEXTS = st.lists(WORDS, min_size=1, max_size=3).map("\n".join)
ROWS = st.lists(st.lists(WORDS, min_size=1, max_size=3).map(tuple), min_size=1, max_size=3).map(tuple)
BLOCKS = st.lists(
    st.one_of(
        st.builds(Block, st.sampled_from(["paragraph", "term", "definition", "caption"]), TEXTS, gap=st.integers(1, 2)),
        st.builds(Block, st.just("quote"), TEXTS),
        st.builds(Block, st.just("heading"), WORDS, st.integers(1, 6)),
        st.builds(Block, st.just("item"), TEXTS, st.integers(0, 4), st.none() | st.integers(1, 99), gap=st.just(LINE)),
        st.builds(Block, st.just("code"), st.text("ab`#|- \n", max_size=20).map(clean_code), language=st.just("c")),
        st.builds(Block, st.just("table"), rows=ROWS, header=st.booleans()),
    )
)


@given(BLOCKS)
def test_the_text_without_marks_is_the_plain_text(blocks: list[Block]) -> None:
    assert without_marks(markdown(blocks)) == plain(blocks)


def test_marks_are_removed_in_linear_time() -> None:
    for odd in ("| " * 200_000, "`" * 400_000, "```\n" * 100_000, "> " * 200_000, "# " * 200_000, "1." * 200_000):
        start = time.process_time()
        without_marks(odd + "\n" + odd)
        assert time.process_time() - start < 5
