"""Contract of the shared split: words and punctuation of every document and line, independent of batches."""

import itertools
import random

import numpy as np
import pyarrow as pa
import pytest

from tasks.filters.batch import DocumentBatch
from tasks.filters.catalogue import annotator
from tasks.filters.counting.columns import split_chunks
from tasks.filters.counting.english import specials, tokenize, tokenize_by_rules
from tasks.filters.counting.words import Vocabulary


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
        ("+word", ["+", "word"]),
        ("+49", ["+49"]),
        ("><(((*>&", ["><(((*>", "&"]),
        ("«–:((", ["«", "–", ":(", "("]),
    ],
)
def test_a_run_of_non_spaces_is_split_into_words_and_punctuation(stretch: str, parts: list[str]) -> None:
    assert tokenize(stretch) == parts


def test_the_joined_parts_equal_the_run() -> None:
    draw = random.Random(3)
    letters = "abcXYZ019.,;:!?'\"()[]-–—/@#$%&*+<>=_~…’“”äé数😀°"
    for _ in range(5000):
        stretch = "".join(draw.choices(letters, k=draw.randint(1, 12)))
        assert "".join(tokenize(stretch)) == stretch


MARKS = "…,:;!?()[]<>_#*&'\"”“’«»『。、।§%=—–$€.-+^~/@\\|°²"
CORES = (
    "word Foo BAR x S I ä ß 的 हिन्दी 1 42 ½ १२ 10km 5pm 3D a-b 3-day well-known O'Brien dog's foo.bar End.Next 1.5 8 "
    "it's d co C# US$5 example.org a@b.org http://x.org/y p.m Ph.D o_O x... 😀 ♥x a😀b"
    " 1–2 either/or x=1 a,b ._. .<☫₹ <.<…"
)


def test_the_fast_path_strips_punctuation_like_the_rules() -> None:
    draw = random.Random(5)
    cores = [*CORES.split(), *specials()]
    for _ in range(30_000):
        before, behind = ("".join(draw.choices(MARKS, k=draw.choice((0, 0, 1, 1, 2, 3)))) for _ in range(2))
        stretch = before + draw.choice(cores) + draw.choice(("", "", "", *MARKS, *cores)) + behind
        word = stretch[:-1]
        if not (word.isalpha() and word in specials()):  # a contraction before a punctuation mark: a special rule
            assert tokenize(stretch) == tokenize_by_rules(stretch)


def test_runs_are_split_at_every_white_space() -> None:
    spaces = [chr(point) for point in range(0x110000) if chr(point).isspace()]
    texts = [f"a{space}b{space}{space}à的😀{space}" for space in spaces]
    texts += ["", " ", "\u3000", "\n\u2003\n", "âãáà\u2004ÂÃ\u200b\x85x", *("x", "", "y"), "\u2028"]
    several, found = split_chunks(pa.array(texts, pa.string()))
    assert several.to_pylist() == [stretch for text in texts for stretch in text.split()]
    assert np.diff(found.documents).tolist() == [len(text.split()) for text in texts]
    assert np.diff(found.lines).tolist() == [len(line.split()) for text in texts for line in text.split("\n")]
    assert np.diff(found.line_starts).tolist() == [len(text.split("\n")) for text in texts]
    assert split_chunks(pa.array(["lost", *texts, "lost"]).slice(1, len(texts)))[0].equals(several)


@pytest.mark.parametrize("letters", ["ab.é的😀 \u3000\n\n", "ab\n"])  # with and without white space around lines
def test_line_columns_agree_with_a_line_by_line_computation(letters: str) -> None:
    draw = random.Random(6)
    made = ("".join(draw.choices(letters, k=draw.randint(0, 40))) for _ in range(500))
    texts = ["", "\n", "\n\n", "x", *made]
    found = DocumentBatch(texts).line_columns
    lines = [text.split("\n") for text in texts]
    flat = [line for several in lines for line in several]
    assert found.raw.to_pylist() == flat
    assert found.stripped.to_pylist() == [line.strip() for line in flat]
    assert found.chars.tolist() == list(map(len, flat))
    assert found.stripped_chars.tolist() == [len(line.strip()) for line in flat]
    assert found.last.to_pylist() == [line[-1:] for line in flat]
    assert found.stripped_last.to_pylist() == [line.strip()[-1:] for line in flat]
    assert found.repeats.tolist() == [line in several[:at] for several in lines for at, line in enumerate(several)]
    stripped = [[line.strip() for line in several] for several in lines]
    again = [line in several[:at] for several in stripped for at, line in enumerate(several)]
    assert found.stripped_repeats.tolist() == again
    assert found.per_document(found.chars).tolist() == [len(text.replace("\n", "")) for text in texts]
    assert np.diff(found.starts).tolist() == list(map(len, lines))


def slowly(text: str) -> list[str]:
    return [piece for stretch in text.split() for piece in tokenize(stretch)]


RULES = ("gopher_quality", "gopher_repetition", "c4", "fineweb", "prose_score")
TEXTS = ["One line.\n\nAnother, longer line!\n", "", "x", "\n", "  spaces \n around ", "It's the end, isn't it?"]


def test_words_are_assigned_to_their_documents_and_lines() -> None:
    words = DocumentBatch(TEXTS).words
    lines = [line for text in TEXTS for line in text.split("\n")]
    assert words.counts.tolist() == [len(slowly(text)) for text in TEXTS]
    assert np.diff(words.lines).tolist() == [len(slowly(line)) for line in lines]
    assert np.diff(words.line_starts).tolist() == [text.count("\n") + 1 for text in TEXTS]
    assert np.diff(words.ends).tolist() == [len(piece) for text in TEXTS for piece in slowly(text)]
    assert words.line_chunks.tolist() == [len(line.split()) for line in lines]


def test_word_properties_are_counted() -> None:
    words = DocumentBatch(["the cat, 42 ... – B2 have the", "", "42 的 हिन्दी ９ 😀 —」"]).words
    assert words.counts.tolist() == [9, 0, 7]
    assert words.symbols.tolist() == [3, 0, 2]
    assert words.symbol_chars.tolist() == [len(",...–"), 0, 2]
    assert words.chars.tolist() == [len("thecat,42...–B2havethe"), 0, len("42的हिन्दी９😀—」")]
    assert words.letters.tolist() == [5, 0, 2]
    assert words.stop_words.tolist() == [2, 0, 0]


def spelled(vocabulary: Vocabulary, texts: list[str]) -> list[list[int]]:
    """The words of each text, numbered in order of first occurrence."""
    words = vocabulary.split(pa.array(texts))
    several = [words.ids[begin:end].tolist() for begin, end in itertools.pairwise(words.documents)]
    return [[list(dict.fromkeys(ids)).index(one) for one in ids] for ids in several]


def test_equal_words_have_equal_ids_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    met, bare = Vocabulary(), Vocabulary()
    met.split(pa.array(["quite other words, isn't it?", *reversed(TEXTS)]))
    plainly = [[list(dict.fromkeys(slowly(text))).index(one) for one in slowly(text)] for text in TEXTS]
    assert spelled(met, TEXTS) == spelled(bare, TEXTS) == plainly
    monkeypatch.setattr("tasks.filters.counting.words._MAX_CHUNKS", 2)
    assert spelled(met, TEXTS) == plainly
    assert spelled(met, TEXTS[:1]) == plainly[:1]


def test_overflowing_words_of_a_batch_are_split_alike_but_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary, text = Vocabulary(), "one, two (three) four-and-five one, two. " * 3 + "x"
    ordinary = spelled(vocabulary, [text, *TEXTS])
    monkeypatch.setattr("tasks.filters.counting.words._MAX_NEW", 3)
    assert spelled(vocabulary, [text, *TEXTS]) == ordinary
    assert not vocabulary._numbers
    assert vocabulary.split(pa.array(["one two"])).properties.lengths.tolist() == [3, 3]


@pytest.mark.parametrize("most", [3, 500_000], ids=["not remembered", "remembered"])
def test_batch_sizes_change_no_result(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    draw = random.Random(8)
    some = ["the", "to", "b.", "c!", "...", ";", "x\n", "[1]", "q"]
    drawn = (" ".join(draw.choices(some, k=400)) for _ in range(3))
    texts = [*TEXTS, *drawn, "a\n" * 200, ")" * 300 + " a b" * 90, "a\u00a0b\u3000\n" * 99, "\n" * 50]
    whole = {name: annotator(name, {}).annotate(DocumentBatch(texts)) for name in RULES}
    small = {"columns.PORTION": 7, "words._AT_ONCE": 3, "ngrams._STEPS_AT_ONCE": 5, "ngrams._KEYS_AT_ONCE": 11}
    for where, size in {**small, "words._MAX_NEW": most}.items():
        monkeypatch.setattr(f"tasks.filters.counting.{where}", size)
    monkeypatch.setattr("tasks.filters.counting.words._vocabulary", Vocabulary())
    batch = DocumentBatch(texts)
    for name, column in whole.items():
        assert annotator(name, {}).annotate(batch).equals(column), name


def test_word_tables_are_dropped_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = Vocabulary()
    with monkeypatch.context() as patched:
        patched.setattr("tasks.filters.counting.words.tokenize", lambda _: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            vocabulary.split(pa.array(TEXTS))
    assert spelled(vocabulary, TEXTS) == spelled(Vocabulary(), TEXTS)
