"""Contract of packing: nothing is lost, nothing exceeds the budget, and blocks that fit are not divided."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.formats.documents.chunks import rendered
from tasks.stages.chunks import ChunksConfig
from tasks.stages.chunks.cut import Cut, Packer, units
from tasks.stages.chunks.structure import blocks
from tests.tasks.stages.chunks.made import WORDS, count

CODE = "```python\n" + "".join(f"def f{n}(a):\n    return a + {n}\n\n" for n in range(6)) + "```"
TABLE = "| door | opens |\n|---|---|\n" + "\n".join(f"| {n} | {n + 9} |" for n in range(12))
LINES = ["# A", "## B", "### " + WORDS, WORDS, WORDS * 9, "x" * 900, "日本語。" * 90, CODE, TABLE, "", "🜚" * 70, "a\tb"]


def cut(text: str, **settings: int) -> list[Cut]:
    config = ChunksConfig(**{"max_tokens": 128, "min_tokens": 32, **settings})  # type: ignore[arg-type]
    return list(Packer(text, units(text, blocks(text), config.max_tokens, count()), config, count()).chunks())


@given(st.lists(st.sampled_from(LINES), max_size=12), st.sampled_from([64, 100, 128]), st.sampled_from([0, 16]))
def test_chunks_cover_each_character_once_except_for_overlap_within_the_budget(
    lines: list[str], most: int, overlap: int
) -> None:
    text, at = "\n".join(lines), 0
    for one in cut(text, max_tokens=most, overlap_tokens=overlap):
        assert not text[at : one.start + one.overlap].strip()
        assert one.start + one.overlap < one.end
        assert [one.tokens] == count()([rendered(one.headings, text[one.start : one.end])])
        assert one.tokens <= most
        if one.overlap:
            assert one.start < at
            (size,) = count()([text[one.start : at]])
            assert 0 < size <= overlap
        at = one.end
    assert not text[at:].strip()


def test_code_and_tables_that_fit_are_not_divided() -> None:
    text = "\n\n".join(["# Doors", WORDS * 2, CODE, WORDS, TABLE, WORDS * 4])
    parts = [text[one.start : one.end] for one in cut(text, max_tokens=max(count()([CODE, TABLE])) + 8)]
    assert len(parts) > 2
    for whole in (CODE, TABLE):
        assert sum(whole in part for part in parts) == 1


def test_a_block_as_large_as_the_budget_is_not_divided_to_fit_headings() -> None:
    text = f"# Museum\n\n## Doors\n\n{CODE}"
    (most,) = count()([CODE])
    whole = cut(text, max_tokens=most)[-1]
    assert (text[whole.start : whole.end], whole.headings, whole.tokens) == (CODE, (), most)


def test_code_is_divided_between_lines_preferably_at_blank_ones() -> None:
    parts = [CODE[one.start : one.end] for one in cut(CODE, max_tokens=64)]
    assert len(parts) > 1
    assert all(part.startswith(("```", "def f")) for part in parts)


def test_a_chunk_inside_a_section_has_its_heading_path() -> None:
    text = f"# Museum\n\n## Doors\n\n{WORDS * 20}\n\n## Windows\n\n{WORDS * 2}"
    found = cut(text, min_tokens=1)
    paths = [(one.headings, text[one.start :].startswith("#")) for one in found]
    assert paths[0] == ((), True)
    assert (("Museum", "Doors"), False) in paths
    assert (("Museum",), True) in paths, "the chunk that begins with the heading Windows"
    assert not any(text[one.start : one.end].rpartition("\n")[2].startswith("#") for one in found), "none ends with one"


def test_headings_take_at_most_a_quarter_of_the_budget_and_innermost_ones_are_kept() -> None:
    text = f"# {WORDS * 2}\n\n## Doors\n\n{WORDS * 20}"
    assert {one.headings for one in cut(text)[1:]} == {("Doors",)}


def test_short_sections_are_merged_up_to_the_minimum_size() -> None:
    text = "\n\n".join(f"# Door {n}\n\nIt opens at {n}." for n in range(12))
    assert len(cut(text, min_tokens=1)) == 12
    sizes = [one.tokens for one in cut(text, min_tokens=60)]
    assert len(sizes) < 12
    assert all(size >= 60 for size in sizes[:-1])


def test_an_overlap_starts_at_a_sentence_of_the_same_section() -> None:
    text = f"# A\n\n{WORDS * 20}\n\n# B\n\n{WORDS * 20}"
    found = cut(text, overlap_tokens=30)
    assert [one.overlap > 0 for one in found].count(True) >= 2
    for before, one in pairwise(found):
        if one.overlap:
            assert text[one.start :].startswith("The doors of")
            assert before.end > one.start >= before.start
        else:
            assert text[one.start] == "#"


@pytest.mark.parametrize("overlap", [0, 16])
def test_the_budget_holds_even_if_a_whole_has_more_tokens_than_its_parts(overlap: int) -> None:
    def more_at_seams(texts: Sequence[str]) -> list[int]:
        """Tokens of a tokenizer without a token for a word after a line end."""
        return [len(one.split()) + 5 * one.strip().count("\n") for one in texts]

    text = "\n\n".join(f"Door {n} of the museum opens at nine. It closes at {n}." for n in range(30))
    config = ChunksConfig(max_tokens=64, min_tokens=32, overlap_tokens=overlap)
    found = list(Packer(text, units(text, blocks(text), 64, more_at_seams), config, more_at_seams).chunks())
    assert [one.tokens for one in found] == more_at_seams([text[one.start : one.end] for one in found])
    assert max(one.tokens for one in found) <= 64
    assert not text[found[-1].end :].strip()
