"""The definition of words for the n-gram model, and independence of the split from the batch."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.filters.ngram.words import BLOCK, hash_words, split, words
from tasks.formats.documents.words import spaced


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Don't panic!", [["don", "'", "t", "panic", "!"]]),
        ("Straße Éclair ŒUVRE İ", [["straße", "éclair", "œuvre", "i"]]),
        ("1,024 files in ٣٤ days", [["0", ",", "000", "files", "in", "00", "days"]]),
        ("“Quoted” ‘so’ – or «so»…", [['"', "quoted", '"', "'", "so", "'", "-", "or", '"', "so", '"', "."]]),
        ("snake_case --flag", [["snake", "_", "case", "-", "-", "flag"]]),
        ("中国人民 and ภาษาไทย", [["中国", "人民", "and", "ภาษา", "ไทย"]]),
        ("བོད་སྐད་། ཨ", [["བོད", "སྐད", "།", "ཨ"]]),
        ("हिन्दी में", [["हिन्दी", "में"]]),
        ("ＦＵＬＬ　ｗｉｄｔｈ１２", [["full", "width00"]]),
        (
            "soft\u00adhyphen zero\u200bwidth bom\ufeff emoji\u2764\ufe0f",
            [["softhyphen", "zerowidth", "bom", "emoji", "❤"]],
        ),
        ("one\n\n \t\ntwo\r\nthree\u2028four", [["one"], ["two"], ["three"], ["four"]]),
        ("\u0301accent first", [["\u0301accent", "first"]]),
        ("", []),
        (" \n\t\n\x00\x07\n", []),
    ],
)
def test_words_are_lower_case_without_digits_and_punctuation_is_separate(text: str, wanted: list[list[str]]) -> None:
    assert words(text) == wanted


def test_splitting_and_lookup_agree_for_strings_and_hashes() -> None:
    text = "The quick brown fox — naïve, 42 — 中文 हिन्दी \U0001f600"
    block = next(split([text]))
    assert (hash_words(words(text)[0]) == block.hashes).all()
    assert len(set(block.hashes.tolist())) == len(set(words(text)[0]))


def test_the_words_of_a_text_do_not_depend_on_its_batch() -> None:
    texts = ["One line.", "", "two\nlines, here", "\u200b", "x" * 10, "\n\n", "last"]
    alone = [[one.hashes.tolist() for one in split([text])] for text in texts]
    together = list(split(texts))
    assert len(together) == 1
    starts = together[0].sentences
    per_text: list[list[int]] = [[] for _ in texts]
    for owner, begin, end in zip(together[0].owner, starts, starts[1:], strict=False):
        per_text[owner] += together[0].hashes[begin:end].tolist()
    assert per_text == [[word for block in found for word in block] for found in alone]


def test_long_texts_are_split_block_by_block_without_losing_a_word() -> None:
    lines = [f"line {chr(97 + n % 26)} of many" for n in range(40_000)]
    text = "\n".join(lines)
    assert len(text) > 4 * BLOCK
    blocks = list(split(["before", text, "after"]))
    assert max(len(block.hashes) for block in blocks) <= BLOCK
    assert [word for sentence in words(text) for word in sentence] == " ".join(lines).split()
    assert len(words(text)) == len(lines)
    assert sum((block.owner == 1).sum() for block in blocks) == len(lines)


def test_many_short_texts_are_split_into_blocks_of_bounded_size() -> None:
    texts = ["one two three four five"] * (BLOCK // 10)  # 24 characters each with the end
    blocks = list(split(texts))
    assert max(len(block.hashes) for block in blocks) <= 5 * BLOCK // 24
    assert sum(len(block.hashes) for block in blocks) == 5 * len(texts)
    assert {int(owner) for block in blocks for owner in block.owner} == set(range(len(texts)))


def test_a_line_longer_than_a_block_is_cut_at_a_space() -> None:
    found = words("abcdefg " * 50_000)
    assert {word for sentence in found for word in sentence} == {"abcdefg"}
    assert sum(map(len, found)) == 50_000
    assert len(found) == 4


def test_a_word_longer_than_a_block_is_cut() -> None:
    found = [word for sentence in words("a" * (3 * BLOCK)) for word in sentence]
    assert "".join(found) == "a" * (3 * BLOCK)


def test_lone_surrogates_and_unassigned_code_points_are_handled() -> None:
    assert words("a\ud800b \U000e0fff\U0010ffff c\x00d") == [["a", "b", "c", "d"]]


@given(
    st.text(alphabet=st.sampled_from("aAé1١ .,'’\n\t中ภิक\u094d\u200b\u00ad_-–…\r\x85ｦ\u3000①½\U0001f600"), max_size=60)
)
def test_every_split_equals_that_of_a_character_by_character_reference(text: str) -> None:
    assert words(text) == by_the_rules(text)


def by_the_rules(text: str) -> list[list[str]]:
    """The rules of `tasks.filters.ngram.words`, for the characters of the test above."""
    sentences: list[list[str]] = []
    for line in spaced(text).replace("\r", "\n").replace("\x85", "\n").split("\n"):
        tokens: list[str] = []
        open_word = False
        for raw in line:
            category = unicodedata.category(raw)
            if category == "Cf":
                continue
            char = {"’": "'", "–": "-", "…": "."}.get(raw, raw)
            char = "0" if category == "Nd" else unicodedata.normalize("NFKC", char).lower()
            char = char if len(char) == 1 else raw
            mark, letter = category[0] == "M", category[0] in "LN"
            if category in ("Zs", "Cc"):
                open_word = False
                continue
            if tokens and open_word and (mark or letter):
                tokens[-1] += char
            else:
                tokens.append(char)
            open_word = mark or letter
        if tokens:
            sentences.append(tokens)
    return sentences


def test_hashes_of_different_words_differ() -> None:
    spelled = [f"{a}{b}{c}" for a in "abcdefghij" for b in "klmnopqrst" for c in "uvwxyzabcd"] + [
        "a",
        "aa",
        "aaa",
        "ba",
    ]
    assert len(np.unique(hash_words(spelled))) == len(spelled)
