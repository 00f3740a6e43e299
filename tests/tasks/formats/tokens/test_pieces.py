"""Splits: what is one piece, that pieces are the text, and that hostile text takes linear time."""

import json
import re
import time
import unicodedata
from collections import defaultdict
from itertools import product
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from tasks.formats.documents.words import has_unspaced
from tasks.formats.tokens.pieces import GPT2_EXPRESSION, PUBLISHED, expression

EXPRESSIONS = {
    "gpt2": GPT2_EXPRESSION,
    **{
        f"{split}, {digits}": expression(split, digits)  # type: ignore[arg-type]
        for split, digits in product(("llama3", "o200k"), ("single", "left", "right"))
    },
}
SPLITS = {name: pre_tokenizers.Split(Regex(regex), "isolated") for name, regex in EXPRESSIONS.items()}
ODD = st.text(st.sampled_from("aZéßǅकिต่ក្한漢字あ🙂👩\u200d\u200c\u0301\ufe0f1٣½ \n\r\t\u00a0\u3000.'/-s"), max_size=40)


def pieces(name: str, text: str) -> list[str]:
    return [piece for piece, _ in SPLITS[name].pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("digits", "expected"),
    [
        ("single", [*"1234567"]),
        ("left", ["123", "456", "7"]),
        ("right", ["1", "234", "567"]),
    ],
)
def test_digits_are_grouped_as_set(digits: str, expected: list[str]) -> None:
    for split in ("llama3", "o200k"):
        assert pieces(f"{split}, {digits}", "n=1234567!") == ["n", "=", *expected, "!"]
    assert pieces("gpt2", "n 1234567") == ["n", " 1234567"]


def test_up_to_51_digits_are_grouped_from_the_right_and_of_more_the_last_48() -> None:
    for count in (1, 3, 50, 51):
        found = pieces("llama3, right", "7" * count)
        assert [len(piece) for piece in found[1:]] == [3] * (len(found) - 1)
    lengths = [len(piece) for piece in pieces("llama3, right", "7" * 200)]
    assert lengths == [3] * 50 + [2] + [3] * 16


def test_a_word_with_combining_marks_is_one_piece_except_in_gpt2() -> None:
    text = "हिन्दी में পড়া தமிழ் ಕನ್ನಡ ภาษาไทย ខ្មែរ e\u0301te\u0301"
    for name in set(SPLITS) - {"gpt2"}:
        assert len(pieces(name, text)) == len(text.split()), name
    assert len(pieces("gpt2", text)) > 2 * len(text.split())


def test_o200k_splits_before_capitals_and_keeps_contractions_with_the_word() -> None:
    assert pieces("o200k, left", "camelCase HTTPServer don't") == ["camel", "Case", " HTTPServer", " don't"]
    assert pieces("llama3, left", "camelCase HTTPServer don't") == ["camelCase", " HTTPServer", " don", "'t"]


@given(ODD)
def test_the_pieces_of_a_text_are_the_text(text: str) -> None:
    for name in SPLITS:
        assert "".join(pieces(name, text)) == text, name


@pytest.mark.real_time
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_hostile_text_takes_linear_time(name: str) -> None:
    tokenizer = Tokenizer(models.BPE(unk_token="?", vocab={"?": 0}, merges=[], fuse_unk=True))
    tokenizer.pre_tokenizer = SPLITS[name]

    def work(text: str) -> float:
        begin = time.process_time()
        tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return time.process_time() - begin

    for unit in ("1111", "    ", "AA", "\u0301", "\r\n "):
        short = max(0.1, work(unit * 12_500))
        assert any(work(unit * 50_000) < 8 * short for _ in range(3)), unit


@pytest.mark.parametrize(("name", "unit"), [("llama3, single", " "), ("o200k, left", "A")])
def test_a_run_of_ten_million_characters_is_split(name: str, unit: str) -> None:
    tokenizer = Tokenizer(models.BPE(unk_token="?", vocab={"?": 0}, merges=[], fuse_unk=True))
    tokenizer.pre_tokenizer = SPLITS[name]
    # Oniguruma ends after 10 M steps back.
    assert tokenizer.encode_batch_fast([unit * 10_500_000], add_special_tokens=False)


@given(ODD)
def test_pieces_are_those_of_the_published_forms(text: str) -> None:
    assert len(PUBLISHED) == 2
    for ours, theirs in PUBLISHED.items():
        splits = [pre_tokenizers.Split(Regex(regex), "isolated") for regex in (ours, theirs)]
        found, expected = (split.pre_tokenize_str(text) for split in splits)
        assert found == expected


def test_words_of_every_spaced_script_have_few_pieces(shared_data: Path) -> None:
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    with pa.input_stream(shared_data / "langid" / "udhr_sentences.jsonl.zst", compression="zstd") as file:
        rows = [json.loads(line) for line in file.read().decode().splitlines()]
    for row in rows:
        if row["lang"] and not has_unspaced(row["text"]):
            text = unicodedata.normalize("NFC", row["text"])
            # Words that apostrophes and hyphens join, as in Walloon and Maltese, are several words.
            counts = [len(re.findall(r"[^\s'’-]+", text)), len(SPLITS["llama3, single"].pre_tokenize_str(text))]
            found[row["lang"]] = [sum(pair) for pair in zip(found[row["lang"]], counts, strict=False)]
    assert len(found) > 80
    ratios = {language: pieces / words for language, (words, pieces) in found.items() if words > 300}
    above = {language for language, ratio in ratios.items() if ratio > 1.3}
    assert above == {"ml"}  # old text, with joiners at the ends of words
