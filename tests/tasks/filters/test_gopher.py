"""Contract of Gopher's rules: a kept and a dropped text for each; words are counted as in datatrove."""

import io
import json
import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from tasks.filters import UNDETERMINED
from tasks.filters.batch import DocumentBatch
from tasks.filters.counting.ngrams import repeated_characters
from tasks.filters.gopher_quality import GopherQuality
from tasks.filters.gopher_repetition import DUPLICATE, TOP, GopherRepetition

PROSE = (
    "the river ran down to a valley of stones and people that have lived with it for long years know where its water "
    "turns cold each autumn before snow begins falling upon every roof while smoke rises from small chimneys near old "
    "mills whose wheels stopped moving when roads came through these hills bringing cars noise visitors money"
)
"""58 different words, stop words among them."""

WORDS = PROSE.split()

ENGLISH = ("short_mean_word", "long_mean_word", "stop_words")
"""Reasons of the rules on English words."""


def quality(text: str, language: str = "en", **limits: object) -> str | None:
    return GopherQuality(**limits).verdict(text, language=language)


def repetition(text: str, **limits: object) -> str | None:
    return GopherRepetition(**limits).verdict(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (PROSE, None),
        (" ".join(WORDS[:50]), None),
        (" ".join(WORDS[:49]), "few_words"),
        (" ".join(WORDS[:49]) + " ... !", "few_words"),
        ("the of " * 30 + "word " * 99_940, None),
        ("the of " * 30 + "word " * 99_941, "many_words"),
        (PROSE + " #" * 6, None),
        (PROSE + " #" * 7, "hashes"),
        (PROSE + " so ..." * 7 + " yes", None),
        (PROSE + " so..." * 9 + " yes", "ellipses"),
        ("\n".join(f"-{word}" for word in WORDS[:-7]) + "\nthe\nof\n" + "\n".join(WORDS[-7:]), None),
        ("\n".join(f"-{word}" for word in WORDS), "bullets"),
        (PROSE.replace(" of ", " of\n").replace(" to ", " to\n").replace(" for ", " for\n") + "...", None),
        (PROSE.replace(" years ", " years...\n"), "ellipsis_lines"),
        (PROSE + " 12" * 14, None),
        (PROSE + " 12" * 15, "few_letters"),
        (PROSE + " it" * 60, None),
        ("an ox at " * 30, "short_mean_word"),
        ("the and " + "wonderful " * 60, None),
        ("the and " + "extraordinary " * 60, "long_mean_word"),
        ("Lorem ipsum dolor sit amet consectetur adipiscing elit. " * 9 + "the of", None),
        ("Lorem ipsum dolor sit amet consectetur adipiscing elit. " * 9 + "the the The", "stop_words"),
    ],
)
def test_each_quality_rule_has_its_limit_and_those_on_english_words_apply_to_english_alone(
    text: str, reason: str | None
) -> None:
    dropped = reason and f"gopher_quality_{reason}"
    assert quality(text, "en") == dropped
    assert quality(text, UNDETERMINED) == dropped
    assert quality(text, "de") == (None if reason in ENGLISH else dropped)


def test_quality_limits_are_settings() -> None:
    assert quality("the cat and the dog", min_words=5) is None
    assert quality(PROSE, min_stop_words=9) == "gopher_quality_stop_words"


# The web pages are in many languages, so the rules on English words are excluded.
@pytest.mark.parametrize(
    ("domain", "texts", "language", "share"), [("speech", 67, "en", 1.0), ("web", 114, "many", 0.8)]
)
def test_edited_prose_passes_all_rules(shared_data: Path, domain: str, texts: int, language: str, share: float) -> None:
    with pa.CompressedInputStream(pa.OSFile(str(shared_data / "text_domains" / f"{domain}.jsonl.zst")), "zstd") as file:
        held = [json.loads(line)["text"] for line in io.BytesIO(file.read())]
    assert len(held) == texts
    assert sum(not (quality(text, language) or repetition(text)) for text in held) >= share * texts


def numbered(count: int, prefix: str = "") -> list[str]:
    """Lines that differ in every word."""
    return [f"{prefix}{'abcdefghij'[i % 10] * 3}{i} walks {i}q by {i}z" for i in range(count)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (PROSE, None),
        ("\n".join(numbered(70) + ["x"] * 31), None),
        ("\n".join(numbered(68) + ["x"] * 33), "duplicate_lines"),
        ("\n".join([*numbered(90), "y" * 250, "y" * 250]), None),
        ("\n".join([*numbered(90), "y" * 900, "y" * 900]), "duplicate_line_chars"),
        ("\n\n".join([*numbered(68, "p "), "x\n0"]), None),
        ("\n\n".join([*("\n".join(numbered(6, letter)) for letter in "pqrstu"), *["one"] * 3]), None),
        ("\n\n".join([*("\n".join(numbered(6, letter)) for letter in "pqrstu"), *["one"] * 5]), "duplicate_paragraphs"),
        (" ".join(WORDS[:30] + ["marvellous", "weather", "yes"] * 3), "top_2gram"),
    ],
)
def test_each_block_rule_has_its_limit(text: str, reason: str | None) -> None:
    given = repetition(text)
    assert given == (reason and f"gopher_repetition_{reason}"), given


def test_repeated_paragraphs_are_also_measured_in_characters() -> None:
    text = "\n\n".join([*numbered(30), "w" * 300, "w" * 300])
    share = 300 / len(text)
    assert repetition(text, max_duplicate_line_chars=1.0, max_duplicate_paragraph_chars=share) is None
    given = repetition(text, max_duplicate_line_chars=1.0, max_duplicate_paragraph_chars=share - 1e-6)
    assert given == "gopher_repetition_duplicate_paragraph_chars"


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_most_frequent_ngram_is_measured_with_its_spaces(size: int) -> None:
    gram = [f"gr{letter}m" for letter in "abcd"][:size]
    unique = [f"u{i:03d}" for i in range(200)]
    text = " ".join([*unique[:50], *gram, *unique[50:100], *gram, *unique[100:], *gram])
    chars = 3 * len(" ".join(gram))
    assert repetition(text, max_top_ngram={size: chars / len(text)}) is None
    assert repetition(text, max_top_ngram={size: chars / len(text) - 1e-6}) == f"gopher_repetition_top_{size}gram"


def duplicate_chars_slowly(words: list[str], size: int) -> int:
    seen, chars, at = set(), 0, 0
    while at < len(words) - size + 1:
        gram = tuple(words[at : at + size])
        if gram in seen:
            chars += sum(map(len, gram))
            at += size
        else:
            seen.add(gram)
            at += 1
    return chars


def top_chars_slowly(words: list[str], size: int) -> int:
    grams = Counter(tuple(words[start : start + size]) for start in range(len(words) - size + 1))
    gram, count = grams.most_common(1)[0] if grams else ((), 0)
    return count * len(" ".join(gram))


def test_the_batched_search_agrees_with_a_plain_search_per_text() -> None:
    draw = random.Random(4)
    texts = [[f"w{draw.randint(0, 16)}" for _ in range(length)] for length in (0, 3, 9, 40, 1, 200, 1000, 0, 80)]
    found = repeated_characters(DocumentBatch([" ".join(words) for words in texts]).words, TOP, DUPLICATE)
    for place, words in enumerate(texts):
        for size in TOP:
            assert found[f"top_{size}gram"][place] == top_chars_slowly(words, size), (place, size)
        for size in DUPLICATE:
            assert found[f"duplicate_{size}gram"][place] == duplicate_chars_slowly(words, size), (place, size)


def test_equal_texts_in_one_batch_do_not_count_as_repetition() -> None:
    found = repeated_characters(DocumentBatch([PROSE, PROSE]).words, TOP, DUPLICATE)
    assert [found[f"duplicate_{size}gram"].tolist() for size in DUPLICATE] == [[0, 0]] * len(DUPLICATE)
