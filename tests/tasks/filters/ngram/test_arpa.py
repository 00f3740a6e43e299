"""ARPA files: readable by other programs, read from other programs, or refused with line and cause."""

import bz2
import gzip
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tasks.core.errors import InputError
from tasks.filters.ngram.files import load_file, read_arpa, write_arpa
from tasks.filters.ngram.model import NgramModel
from tests.tasks.stages.perplexity.learning import VERSES, babble, learnt
from tests.tasks.stages.perplexity.test_estimate import table

SMALL = """\\data\\
ngram 1=5
ngram 2=4
ngram 3=2

\\1-grams:
-2.0\t<unk>
-99\t<s>\t-0.3
-1.0\t</s>
-0.7\tblue\t-0.2
-0.8\tsky\t-0.1

\\2-grams:
-0.4\t<s> blue\t-0.05
-0.3\tblue sky\t-0.15
-0.2\tsky </s>
-0.9\tsky blue\t0.1

\\3-grams:
-0.1\t<s> blue sky
-0.11\tblue sky </s>

\\end\\
"""


def written(ngrams) -> bytes:
    file = io.BytesIO()
    write_arpa(ngrams, file.write)
    return file.getvalue()


def at(folder: Path, text: str | bytes, name: str = "m.arpa") -> str:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def test_a_written_model_reads_back_bit_for_bit(tmp_path: Path) -> None:
    ngrams = learnt(babble(), 4).ngrams
    again = read_arpa(at(tmp_path, written(ngrams)))
    assert again.words == ngrams.words
    for found, wanted in zip(again.levels, ngrams.levels, strict=True):
        assert (found.rows == wanted.rows).all()
        assert (found.prob == wanted.prob).all()
        assert (found.back == wanted.back).all()


def test_files_with_other_formatting_are_read(tmp_path: Path) -> None:
    # A preface, spaces instead of tabs, missing weights, Windows line ends, blank lines, <UNK>.
    text = "made by hand\n\n" + SMALL.replace("\t", " ").replace("<unk>", "<UNK>").replace("\n\n", "\n\n\n")
    assert table(read_arpa(at(tmp_path, text.replace("\n", "\r\n")))) == table(read_arpa(at(tmp_path, SMALL, "b.arpa")))


@pytest.mark.parametrize(("ending", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".zst", None)])
def test_compressed_files_are_read(tmp_path: Path, ending: str, pack) -> None:
    packed = pack(SMALL.encode()) if pack else pa.compress(SMALL.encode(), "zstd", asbytes=True)
    assert table(read_arpa(at(tmp_path, packed, f"m.arpa{ending}"))) == table(read_arpa(at(tmp_path, SMALL)))


def test_unknown_words_get_a_hundred_zeros_where_a_file_has_no_entry_for_them(tmp_path: Path) -> None:
    text = SMALL.replace("ngram 1=5", "ngram 1=4").replace("-2.0\t<unk>\n", "")
    assert table(read_arpa(at(tmp_path, text)))[("<unk>",)] == (-100.0, 0.0)


def test_minus_infinity_is_the_format_s_logarithm_of_zero(tmp_path: Path) -> None:
    assert table(read_arpa(at(tmp_path, SMALL.replace("-99", "-inf"))))[("<s>",)][0] == -99


def test_n_grams_removed_by_pruning_are_restored_without_changing_a_score(tmp_path: Path) -> None:
    # "blue sky </s>" is kept; its first two words and its last two are not entries any more.
    text = SMALL.replace("ngram 2=4", "ngram 2=2").replace("-0.3\tblue sky\t-0.15\n", "")
    text = text.replace("-0.2\tsky </s>\n", "")
    found = table(read_arpa(at(tmp_path, text)))
    assert found[("blue", "sky")] == (pytest.approx(-0.2 - 0.8), 0.0)
    assert found[("sky", "</s>")] == (pytest.approx(-0.1 - 1.0), 0.0)
    scores = load_file(at(tmp_path, text)).score(["blue sky", "sky blue sky"])
    assert scores.log10[0] == pytest.approx(-0.4 - 0.1 - 0.11)
    assert scores.log10[1] == pytest.approx((-0.3 - 0.8) - 0.9 + (0.1 - 0.2 - 0.8) - 0.11)


BAD = {
    "empty": ("", 0, r"no line \\data\\"),
    "html": ("<html>\n<body>\n", 2, r"no line \\data\\"),
    "no counts": (SMALL.replace("ngram 1=5\nngram 2=4\nngram 3=2\n", ""), 3, "the header lists 0 orders"),
    "odd count": (
        SMALL.replace("ngram 2=4", "ngram two=4"),
        3,
        'expected "ngram 2=<count>", not "ngram two=4"',
    ),
    "wrong section": (SMALL.replace("\\2-grams", "\\5-grams"), 13, r'expected \\2-grams:, not "\\5-grams:"'),
    "short section": (SMALL.replace("ngram 2=4", "ngram 2=5"), 18, "the line of a 2-gram has 3 or 4 fields, not"),
    "long section": (SMALL.replace("ngram 2=4", "ngram 2=3"), 17, r'expected \\3-grams:, not "-0.9'),
    "cut short": (SMALL[: SMALL.index("-0.11")], 20, "the file ends after 1 of 2 3-grams"),
    "no end": (SMALL.replace("\\end\\", ""), 23, r"expected \\end\\, not the end of the file"),
    "no number": (SMALL.replace("-0.9", "O.9"), 17, '"O.9" is not a number'),
    "not a number": (SMALL.replace("-0.9", "nan"), 17, '"nan" is not a number'),
    "bad weight": (SMALL.replace("-0.05", "none"), 14, '"none" is not a number'),
    "probability above one": (SMALL.replace("-0.9", "0.9"), 17, "at most 0, not"),
    "unknown word": (SMALL.replace("sky blue\t", "skye blue\t"), 17, 'the word "skye" is no 1-gram'),
    "word twice": (SMALL.replace("-0.8\tsky", "-0.8\tblue"), 11, 'the word "blue" occurs twice'),
    "weight at the top": (SMALL.replace("<s> blue sky", "<s> blue sky\t-0.1"), 20, "has 4 fields, not"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_damaged_file_is_refused_with_line_and_cause(tmp_path: Path, name: str) -> None:
    text, line, cause = BAD[name]
    with pytest.raises(InputError, match=rf"m\.arpa, line {line}: .*{cause}"):
        read_arpa(at(tmp_path, text))


def test_words_that_are_not_utf_8_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"line 11: the word .* is not UTF-8"):
        read_arpa(at(tmp_path, SMALL.encode().replace(b"-0.8\tsky", b"-0.8\ts\xffy")))


def test_a_file_without_sentence_marks_is_refused(tmp_path: Path) -> None:
    text = SMALL.replace("-1.0\t</s>", "-1.0\tend").replace("</s>", "end")
    with pytest.raises(InputError, match="has no 1-gram </s>"):
        read_arpa(at(tmp_path, text))


def test_a_duplicate_n_gram_is_named(tmp_path: Path) -> None:
    text = SMALL.replace("ngram 2=4", "ngram 2=5").replace("-0.9\tsky blue", "-0.3\tblue sky\t0\n-0.9\tsky blue")
    with pytest.raises(InputError, match='the n-gram "blue sky" occurs twice'):
        load_file(at(tmp_path, text))


@pytest.mark.parametrize("cut", [10, 200])
def test_a_truncated_gzip_file_is_refused(tmp_path: Path, cut: int) -> None:
    whole = gzip.compress(written(learnt(VERSES, 3).ngrams))
    with pytest.raises(InputError, match=r"m\.arpa\.gz"):
        read_arpa(at(tmp_path, whole[:cut], "m.arpa.gz"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no\.arpa cannot be read"):
        load_file(str(tmp_path / "no.arpa"))


def test_a_model_read_from_a_file_scores_like_the_original(tmp_path: Path) -> None:
    ngrams = learnt(babble(), 4).ngrams
    texts = babble(60, seed=4)
    assert np.array_equal(
        load_file(at(tmp_path, written(ngrams))).score(texts).log10, NgramModel.build(ngrams).score(texts).log10
    )
