"""Contract of the shared split: words and marks of every document and line, however the documents are batched."""

import json
import random

import numpy as np
import pyarrow as pa
import pytest

from tasks.filters.batch import Batch
from tasks.filters.english import pieces
from tasks.filters.words import Vocabulary


@pytest.mark.parametrize(
    ("stretch", "parts"),
    [
        ("word", ["word"]),
        ("word,", ["word", ","]),
        ('("word")', ["(", '"', "word", '"', ")"]),
        ("don't", ["do", "n't"]),
        ("Don’t", ["Do", "n’t"]),
        ("cannot.", ["can", "not", "."]),
        ("they'd've", ["they", "'d", "'ve"]),
        ("its", ["its"]),
        ("dog's", ["dog", "'s"]),
        ("U.S.", ["U.S."]),
        ("Mr.", ["Mr."]),
        ("NASA.", ["NASA", "."]),
        ("end...", ["end", "..."]),
        ("well-known", ["well", "-", "known"]),
        ("1990-2000", ["1990", "-", "2000"]),
        ("either/or", ["either", "/", "or"]),
        ("and/or", ["and/or"]),
        ("10km", ["10", "km"]),
        ("$5,000.50", ["$", "5,000.50"]),
        ("50%", ["50", "%"]),
        ("10pm", ["10", "pm"]),
        ("https://example.org/a-b?c=d.", ["https://example.org/a-b?c=d", "."]),
        ("ann@example.org,", ["ann@example.org", ","]),
        (":-)", [":-)"]),
        ("👍👍", ["👍", "👍"]),
        ("Größe,", ["Größe", ","]),
        ("end.Next", ["end", ".", "Next"]),
    ],
)
def test_a_stretch_falls_into_words_and_marks(stretch: str, parts: list[str]) -> None:
    assert pieces(stretch) == parts


def test_joined_the_pieces_are_the_stretch() -> None:
    draw = random.Random(3)
    letters = "abcXYZ019.,;:!?'\"()[]-–—/@#$%&*+<>=_~…’“”äé数😀°"
    for _ in range(5000):
        stretch = "".join(draw.choices(letters, k=draw.randint(1, 12)))
        assert "".join(pieces(stretch)) == stretch


def slowly(text: str) -> list[str]:
    return [piece for stretch in text.split() for piece in pieces(stretch)]


TEXTS = ["One line.\n\nAnother, longer line!\n", "", "x", "\n", "  spaces \n around ", "It's the end, isn't it?"]


def test_words_lie_in_their_documents_and_lines() -> None:
    words = Batch(TEXTS).words
    lines = [line for text in TEXTS for line in text.split("\n")]
    assert words.counts.tolist() == [len(slowly(text)) for text in TEXTS]
    assert np.diff(words.lines).tolist() == [len(slowly(line)) for line in lines]
    assert np.diff(words.line_starts).tolist() == [text.count("\n") + 1 for text in TEXTS]
    assert words.lengths.tolist() == [len(piece) for text in TEXTS for piece in slowly(text)]
    assert words.owner.tolist() == [at for at, text in enumerate(TEXTS) for _ in slowly(text)]


def test_what_is_known_of_words() -> None:
    words = Batch(["the cat, 42 ... – B2 have"]).words
    assert words.known.symbol[words.ids].tolist() == [False, False, True, False, True, True, False, False]
    assert words.known.letter[words.ids].tolist() == [True, True, False, False, False, False, True, True]
    assert words.stop_words.tolist() == [2]


def test_equal_words_have_equal_hashes_in_every_process_and_after_the_tables_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import subprocess
    import sys

    code = "import json, sys, tasks.filters.batch as b; print(b.Batch(json.loads(sys.argv[1])).words.hashes.tolist())"
    command = [sys.executable, "-c", code, json.dumps(TEXTS)]
    elsewhere = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert json.loads(elsewhere) == Batch(TEXTS).words.hashes.tolist()
    monkeypatch.setattr("tasks.filters.words._MAX_STRETCHES", 2)
    vocabulary = Vocabulary()
    first = vocabulary.split(pa.array(TEXTS)).hashes.tolist()
    vocabulary.split(pa.array(["quite other words"]))
    assert vocabulary.split(pa.array(TEXTS)).hashes.tolist() == first
