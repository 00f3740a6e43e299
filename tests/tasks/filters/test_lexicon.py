from pathlib import Path

import pytest

from tasks.core.errors import InputError
from tasks.filters.base import fields
from tasks.filters.batch import DocumentBatch
from tasks.filters.lexicon import Entries, Lexicon, LexiconMeasures


def measured(path: Path, *texts: str) -> dict:
    annotator = LexiconMeasures(path=str(path))
    annotator.prepare({})
    return fields(annotator.annotate(DocumentBatch(texts)))


@pytest.fixture
def words(tmp_path: Path) -> Path:
    path = tmp_path / "words.txt"
    path.write_text("# a comment\n\nrotten\nBad Apple\ndon't panic\n馬鹿\n", encoding="utf-8")
    return path


def test_words_and_phrases_match_regardless_of_case_and_punctuation(words: Path) -> None:
    found = measured(words, "ROTTEN! A bad\napple; Don’t panic.", "Nothing of it.", "")
    assert found["hits"].tolist() == [3, 0, 0]
    assert found["share"].tolist() == pytest.approx([6 / 7, 0, 0])


def test_a_word_inside_another_word_does_not_match(words: Path) -> None:
    assert measured(words, "Rottenness, bad apples, unrotten.")["hits"].tolist() == [0]


def test_an_entry_of_a_script_without_spaces_is_a_run_of_letters(words: Path) -> None:
    assert measured(words, "彼は馬鹿だ", "馬と鹿")["hits"].tolist() == [1, 0]


def test_the_longest_entry_matches_and_counts_once() -> None:
    assert Entries(["a", "a b c", "b", "a b"]).count("a b c a b d") == (2, 5, 6)


def test_without_a_list_nothing_is_found() -> None:
    annotator = LexiconMeasures()
    annotator.prepare({})
    assert fields(annotator.annotate(DocumentBatch(["rotten"])))["hits"].tolist() == [0]
    assert annotator.external() == []
    assert Lexicon().verdict("rotten") is None


def test_count_and_share_have_separate_limits(words: Path) -> None:
    found = measured(words, "rotten " * 3, "rotten and " + "fine " * 200)
    reasons = {reason: mask.tolist() for reason, mask in Lexicon(max_hits=0).reasons(found)}
    assert reasons == {"lexicon_hits": [True, True], "lexicon_share": [True, False]}


def test_the_list_is_in_the_fingerprint(words: Path) -> None:
    assert LexiconMeasures(path=str(words)).external() == [str(words)]


@pytest.mark.parametrize(("content", "said"), [("# only this\n", "is empty"), ("fine\n***\n", "line 2 of")])
def test_an_empty_list_is_an_error(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "words.txt"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=said):
        measured(path, "text")
    with pytest.raises(InputError, match="cannot be read"):
        measured(tmp_path / "none.txt", "text")


def test_a_list_of_50_000_entries_is_searched(words: Path) -> None:
    many = Entries([f"word{number} again" for number in range(50_000)] + ["rotten"])
    assert many.count("word7 once, word7 again, rotten") == (2, 3, 5)
