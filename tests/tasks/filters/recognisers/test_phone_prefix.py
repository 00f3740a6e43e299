"""A telephone number with a country code is found in any format; an amount of money is not."""

import pytest

from tasks.filters.recognisers.scan import find


def found(text: str) -> list[tuple[str, str]]:
    return [(span.kind, text[span.start : span.end]) for span in find(text)]


@pytest.mark.parametrize(
    "number",
    [
        "+ 44 20 7946 0123",
        "+ 1 (415) 555-0123",
        "+ 49 30 23125 123",
        "(0049) 30 23125 123",
        "(0033) 1 99 00 12 34",
        "(+49) 30 23125 123",
    ],
)
@pytest.mark.parametrize("frame", ["{}", "Office\n{}\nLondon", "Tel: {}, or", "({})", "ring {}"])
def test_an_area_code_apart_or_in_brackets_is_part_of_the_number(number: str, frame: str) -> None:
    assert found(frame.format(number)) == [("phone", number)]


@pytest.mark.parametrize(
    "text",
    [
        "3 + 44 20 7946 0123",
        "(12 + 3) + 44 20 7946 0123",
        "a profit of + 49 301 234 567 in all",
        "x = 4.419414439 + 1.497100113j",
        "\n+ 12 345 678 901\n",
        "751 + 748 - 493 - 490",
        "(007) 123 456",
    ],
)
def test_an_amount_of_money_is_not_a_telephone_number(text: str) -> None:
    assert found(text) == []
