from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.formats.documents import text
from tasks.stages.dedup import signatures as module
from tasks.stages.dedup.signatures import batches, shingle, text_key

WORD = st.text("ab\u00e9\u4e16\U0001f600_", min_size=1, max_size=4)
TEXTS = st.lists(st.lists(WORD, max_size=12).map(" ".join), max_size=6)


def runs_of(words: list[str], size: int) -> list[tuple[str, ...]]:
    """Returns every run of `size` words; of a shorter text, all its words."""
    return [tuple(words[at : at + size]) for at in range(max(1, len(words) - size + 1))] if words else []


def per_text(texts: Sequence[str], size: int) -> list[list[int]]:
    hashes, counts = shingle(texts, size)
    assert counts.sum() == len(hashes)
    return [one.tolist() for one in np.split(hashes, np.cumsum(counts)[:-1])] if len(texts) else []


@given(TEXTS, st.integers(1, 6))
def test_shingles_agree_with_their_definition(texts: list[str], size: int) -> None:
    ours = [value for one in per_text(texts, size) for value in one]
    defined = [value for one in texts for value in runs_of(one.split(), size)]
    assert len(ours) == len(defined)
    assert len(set(ours)) == len(set(defined)) == len(set(zip(ours, defined, strict=True)))


@given(TEXTS, st.integers(1, 6))
def test_the_shingles_of_a_text_do_not_depend_on_its_batch(texts: list[str], size: int) -> None:
    assert per_text(texts, size) == [per_text([one], size)[0] for one in texts]


def test_chunks_and_words_longer_than_a_chunk_leave_no_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [" ".join(f"word{index}" for index in range(300)), "x" * 5000 + " end", "", "one two"]
    whole = per_text(texts, 5)
    monkeypatch.setattr(module, "_CHUNK", 64)
    assert per_text(texts, 5) == whole


def test_hashes_of_ordinary_words_do_not_collide_and_are_spread_evenly() -> None:
    words = [f"{index:x}" for index in range(200_000)]
    hashes, _ = shingle(words, 5)
    assert len(np.unique(hashes)) == len(words)
    assert abs(np.mean(hashes / 2.0**64) - 0.5) < 0.003
    assert abs(np.mean((hashes >> np.uint64(32)) & np.uint64(1)) - 0.5) < 0.006


def test_texts_are_processed_in_batches_of_bounded_size() -> None:
    texts = ["a" * 5, "b" * 4, "c" * 20, "", "d"]
    assert [list(run) for run in batches(texts, 9)] == [texts[:2], texts[2:3], texts[3:]]
    assert list(batches([], 9)) == []
    assert [list(run) for run in batches(["", ""], 1)] == [["", ""]]


@pytest.mark.parametrize(
    "nothing", ["\u00ad", "\u200b", "\u200d", "\u2060", "\u202e", "\ufe0f", "\u034f", "\U000e0041"]
)
def test_a_copy_with_invisible_characters_and_ligatures_is_the_same_text(nothing: str) -> None:
    plain = "The first officer filed his official report before the ship left the harbour. " * 5
    copy = f"e{nothing}".join(plain.replace("ffi", "\ufb03").replace("fi", "\ufb01").split("e"))
    one, other = text.normalise(plain), text.normalise(copy)
    assert text_key(plain, one) == text_key(copy, other)
    assert per_text([one], 5) == per_text([other], 5)
