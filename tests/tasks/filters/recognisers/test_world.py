"""Personal data of many countries: the generated sentences of `benchmarks.pii_world`, and what hints at a country."""

import time

import pytest

from benchmarks.pii_world import LABELS, drawn, missed, score
from tasks.filters.batch import DocumentBatch
from tasks.filters.pii import Pii
from tasks.filters.recognisers.regions import COUNTRIES
from tasks.filters.recognisers.scan import find


def found(text: str, hints: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    return [(span.kind, text[span.start : span.end]) for span in find(text, hints=hints)]


def test_numbers_and_addresses_of_every_country_are_found_exactly_and_wrong_ones_are_not() -> None:
    cases = drawn(rounds=1, seed=11)
    assert {case.topic.partition("_")[2] for case in cases if case.topic.startswith("national_")} == set(COUNTRIES)
    scores = score(cases)
    for topic in ("national", "international", "digits", "bare", "id", "address"):
        assert scores[topic]["exact"] >= 0.97, (topic, missed(cases))
    assert scores["negative"]["any"] == 0
    assert scores["wrong"]["any"] <= 0.03


def test_every_country_has_labels() -> None:
    assert set(LABELS) == set(COUNTRIES)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("Тел.: 8 (495) 123-45-67, ежедневно", "8 (495) 123-45-67"),
        ("電話03-1234-5678まで", "03-1234-5678"),
        ("TEL：０３－１２３４－５６７８", "０３－１２３４－５６７８"),
        ("ＴＥＬ０３（１２３４）５６７８", "０３（１２３４）５６７８"),
        ("联系电话13812345678。", "13812345678"),
        ("Büro +49 (0) 30 23125 123", "+49 (0) 30 23125 123"),
        ("هاتف: ٠٢ ٢٣٤٥٦٧٨٩", "٠٢ ٢٣٤٥٦٧٨٩"),
        ("फोन: ०९८७६५ ४३२१०", "०९८७६५ ४३२१०"),
        ("בטלפון 03-1234567", "03-1234567"),
        ("ΤΗΛ. 210 1234567", "210 1234567"),
    ],
)
def test_a_number_is_found_with_a_label_in_its_language_and_digits(text: str, number: str) -> None:
    assert found(text) == [("phone", number)]


def test_letters_around_a_number_or_the_domain_of_the_page_replace_its_label() -> None:
    assert found("本社 03-1234-5678") == [("phone", "03-1234-5678")]
    assert found("Part 03-1234-5678") == []
    assert found("Kontoret, 08-123 456 78", hints=("SE",)) == [("phone", "08-123 456 78")]
    batch = DocumentBatch(["Kontoret, 08-123 456 78"] * 2, urls=["https://a.example.se/x", "https://a.example.com/x"])
    assert Pii().annotate(batch).field("count").to_pylist() == [1, 0]


def test_a_label_counts_only_if_it_is_the_nearest() -> None:
    assert found("电话咨询请报订单号：13812345678") == []
    assert found("Телефон. ИНН 5001007322") == []


def test_a_label_of_a_dense_script_counts_within_fewer_characters() -> None:
    assert found("电话" + "很" * 10 + "1234567") == [("phone", "1234567")]
    assert found("电话" + "很" * 30 + "1234567") == []


def test_only_numbers_of_the_configured_countries_are_found() -> None:
    text = "PESEL 44051401359, CPF 111.444.777-35, ул. Ленина, д. 5, г. Москва"
    assert [span.kind for span in find(text, countries=("BR",))] == ["national_id"]


UNITS = (
    *(
        "电话1",
        "東京都あ",
        "〒150-0002 あ",
        "北京市路1号",
        "1号",
        "서울시 구 ",
        "가로 1",
        "ул. А ",
        "А ул., ",
        "г. А ",
        "شارع ا 1 ",
    ),
    *("Rua a ", "Rua a 1 01234-567 ", "ul. a 1, 00-001 Aa ", "A Road 560001 ", "Aa Aa Aa Cad. No 1 34000 ", "ABCDEF8"),
    *("ABCD123456H", "131052A308T", "PESEL 44051401359 ", "8 (495) 123-45-67 я", "٠١", "ー1", "1 University ", "TB53"),
)


@pytest.mark.real_time
def test_four_times_the_text_takes_about_four_times_the_work() -> None:
    def work(count: int) -> float:
        begin = time.process_time()
        for unit in UNITS:
            find(unit * (count // len(unit)))
        return time.process_time() - begin

    short = max(0.05, work(1_500))
    assert any(work(6_000) < 8 * short for _ in range(3))
