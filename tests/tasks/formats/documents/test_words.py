"""Words of scripts without spaces: where they end, what stays together, and what hostile texts cost."""

import time
import tracemalloc
import unicodedata
from concurrent.futures import ThreadPoolExecutor

import icu4py
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.filters.batch import DocumentBatch
from tasks.filters.gopher_quality import GopherQualityMeasures
from tasks.formats.documents.chunks import TEXT
from tasks.formats.documents.text import clean, normal_words
from tasks.formats.documents.words import BLOCK, WORDS, spaced, words
from tasks.stages.chunks import ChunksConfig
from tasks.stages.chunks.cut import FEW_WORDS, garbage_reason
from tasks.stages.paragraphs.passes import paragraphs


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("我爱中国人民", "我 爱 中国 人民"),
        ("東京都の大学生です", "東京 都 の 大学生 です"),
        ("สวัสดีครับผมชื่อสมชาย", "สวัสดี ครับ ผม ชื่อ สมชาย"),
        ("ປະເທດລາວ", "ປະເທດ ລາວ"),
        ("ប្រទេសកម្ពុជា", "ប្រទេស កម្ពុជា"),
        ("ကျွန်တော်သွားမယ်", "ကျွန်တော် သွား မယ်"),
        ("བོད་སྐད་ཡིན།", "བོད་ སྐད་ ཡིན།"),
        ("𠮷野家で食べる", "𠮷 野家 で 食べる"),
    ],
)
def test_words_of_each_script_are_those_of_its_dictionary(text: str, expected: str) -> None:
    assert spaced(text) == expected


def test_a_run_of_katakana_is_one_word_where_icu_cuts_it_into_letters() -> None:
    assert words("ディープラーニングとは") == ["ディープラーニング", "と", "は"]
    assert words("ｶﾞｷﾞｸﾞｹﾞｺﾞｻﾞ半角") == ["ｶﾞｷﾞｸﾞｹﾞｺﾞｻﾞ", "半角"]
    assert words("サーバーのデータベース") == ["サーバー", "の", "データベース"]


def test_punctuation_stays_at_its_word_and_other_scripts_are_apart() -> None:
    assert spaced("他说：“你好！”2024年，（AI）很Hot。") == "他 说： “你好！” 2024 年， （AI） 很 Hot。"
    assert words("我们，你们。") == ["我们，", "你们。"]


def test_marks_stay_with_their_letter() -> None:
    assert spaced("か\u3099き\u3099 葛\U000e0101城") == "か\u3099 き\u3099 葛\U000e0101 城"
    assert spaced("1\u0e34ภ") == "1\u0e34 ภ"


@pytest.mark.parametrize("text", ["plain", "naïve — “café”", "한국어 문장", "Привет", "नमस्ते", "Tiếng Việt", "😀", ""])
def test_a_text_of_spaced_scripts_is_the_same_object(text: str) -> None:
    assert spaced(text) is text
    column = pa.array([text], pa.string())
    assert DocumentBatch([text], column=column).words.counts.tolist() == [len(text.split()) + text.count("“") * 2]


@given(
    st.text(
        alphabet=st.sampled_from("我爱中国ディープーｶﾞ・ภิาໂកྲ་ကb1é 한\n。「」,(\u0301\u200d\U00020bb7\U000e0101\ud800")
    )
)
def test_only_spaces_are_added_and_no_line_depends_on_another(text: str) -> None:
    found = spaced(text)
    assert found.replace(" ", "") == text.replace(" ", "")
    assert found == "\n".join(spaced(line) for line in text.split("\n"))
    assert spaced(found) == found or "\u200d" in text


def test_a_line_longer_than_a_block_has_the_same_words_alone() -> None:
    lines = [
        unit * (size // len(unit)) for size in (BLOCK - 1, BLOCK, BLOCK + 4, 3 * BLOCK) for unit in ("中", "国人 a")
    ]
    assert spaced("\n".join(["中国", *lines])) == "\n".join(["中国", *map(spaced, lines)])


def test_words_of_cleaned_text_do_not_begin_with_a_mark() -> None:
    text = clean("ន\u17b6\u17c6ខ្លាំងគ្រឿងสู้ๆ のが゙ 葛\u3099")
    assert not [word for word in words(text) if unicodedata.category(word[0]).startswith("M")]


@pytest.mark.real_time
@pytest.mark.parametrize("unit", ["漢", "ー", "ภาษาไทย", "་", "我a", "我 ", "我，（", "我" + "\u0301" * 40, "ｶﾞ"])
def test_hostile_texts_take_linear_time(unit: str) -> None:
    def seconds(size: int) -> float:
        text, taken = unit * (size // len(unit)), []
        for _ in range(3):
            began = time.process_time()
            spaced(text)
            taken.append(time.process_time() - began)
        return min(taken)

    assert seconds(100_000) < 8 * max(seconds(25_000), 0.05)


def test_a_line_without_end_takes_memory_for_its_words_only() -> None:
    text = "漢" * 300_000
    tracemalloc.start()
    spaced(text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12 * len(text) + 200 * BLOCK


def test_threads_get_the_same_words() -> None:
    texts = ["我爱中国人民。" * 500, "สวัสดีครับ" * 500, "東京に住んでいる。" * 500] * 4
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(spaced, texts)) == [spaced(text) for text in texts]


def test_the_version_names_the_dictionaries_in_use() -> None:
    assert WORDS.startswith(f"icu {icu4py.icu_version},")


def test_filters_count_words_of_the_dictionary_and_lines_of_the_stored_text() -> None:
    text = "我爱中国人民。\n" * 3 + "Two words."
    batch = DocumentBatch([text, "plain text", "ပြီ။ ပြီ။"])
    assert batch.words.counts.tolist() == [3 * 5 + 3, 2, 4]
    assert np.diff(batch.words.line_starts).tolist() == [4, 1, 1]
    assert batch.line_columns.chars.tolist()[:4] == [7, 7, 7, 10]
    measured = GopherQualityMeasures().annotate(batch)
    assert measured.field("words").to_pylist() == [18, 2, 4]


def test_normal_words_are_counted_by_the_dictionary() -> None:
    assert normal_words("ＡＩは、人工知能です！") == ["ai", "は", "人工", "知能", "です"]


def test_chunks_and_paragraphs_count_words_of_the_dictionary() -> None:
    assert garbage_reason("我们热爱中国人民", TEXT, ChunksConfig(min_words=5)) == FEW_WORDS
    assert not garbage_reason("我们热爱中国人民", TEXT, ChunksConfig(min_words=4))
    (paragraph,) = paragraphs("我们热爱中国人民。")
    assert paragraph.normal == "我们 热爱 中国 人民"
