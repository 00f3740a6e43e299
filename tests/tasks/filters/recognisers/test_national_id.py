"""National numbers: published specimens are valid, one wrong character is not, and digits alone need a label."""

import pytest

from tasks.filters.recognisers import check_digits as check
from tasks.filters.recognisers.national_id import SCHEMES, has_valid_digits
from tasks.filters.recognisers.scan import find

# Specimens of authorities, of their documentation and of encyclopedias; none is known to belong to a person.
SPECIMENS = (
    "DNI: 12345678Z", "NIE X1234567L", "NIF: 123456789", "1 85 05 78 006 084 91", "RSSMRA85T10A562S",
    "IdNr. 86 095 742 719",
    "BSN 111222333", "85.07.30-033.28", "Personnummer: 811218-9876", "Fødselsnr. 15108695088", "131052-308T",
    "131052A308T",
    "PESEL: 44051401359", "rodné číslo 710319/2745", "CNP 1630615123457", "ЕГН 7523169263", "OIB: 33392005961",
    "756.9217.0769.85",
    "SVNR 1237 010180", "PPSN 1234567FA", "NHS number 943 476 5919", "T.C. Kimlik No: 10000000146", "ИНН 500100732259",
    "112-233-445 95", "РНОКПП 1759013776", "111.444.777-35", "RUT 12.345.678-5", "CUIL 20-12345678-6",
    "HEGG560427MVZRRL04",
    "11010519491231002X", "身分證 A123456789", "HKID A123456(3)", "マイナンバー 1234 5678 9018",
    "Aadhaar 2341 2341 2346",
    "NRIC S1234567D", "ID number 8001015009087", "תעודת זהות 123456782", "کد ملی 0499370899", "TFN 123 456 782",
    "SIN no. 130 692 544",
)  # fmt: skip


def found(text: str) -> list[str]:
    return [text[span.start : span.end] for span in find(text, ("national_id",))]


@pytest.mark.parametrize("text", SPECIMENS)
def test_a_specimen_is_found_whole_and_not_with_another_last_character(text: str) -> None:
    (number,) = found(text)
    assert text.endswith(number)
    last = max(at for at, mark in enumerate(text) if mark.isalnum())
    other = str((int(text[last]) + 1) % 10) if text[last].isdigit() else "B" if text[last] == "A" else "A"
    assert found(text[:last] + other + text[last + 1 :]) == []


@pytest.mark.parametrize(
    "text",
    [
        "44051401359",
        "Part 111222333",
        "order 811218-9876",
        "BSN vermeld bij 12 stuks: 111222333",
        "Security 12345678Z",
        "sin 130 692 544",
        "0x11010519491231002X",
        "foo_131052A308T",
    ],
)
def test_digits_with_one_check_digit_need_the_label_of_their_kind_and_no_number_before_them(text: str) -> None:
    assert found(text) == []


def test_a_number_is_not_part_of_a_longer_one() -> None:
    assert found("PESEL 440514013591") == []
    assert found("CPF 111.444.777-35-1") == []


def test_a_valid_number_with_its_label_is_no_telephone_number() -> None:
    text = "NHS number: 943-476-5919, phone 020 7946 0958"
    assert [span.kind for span in find(text)] == ["national_id", "phone"]


def test_every_scheme_without_a_label_has_a_form_that_needs_none() -> None:
    assert all(scheme.label or scheme.alone for scheme in SCHEMES)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: f"{scheme.countries} {scheme.check.__name__}")
def test_any_string_of_the_form_is_checked_without_an_error(scheme: object) -> None:
    import random

    from benchmarks.pii_world import printed
    from tasks.filters.recognisers.national_id import Scheme

    assert isinstance(scheme, Scheme)
    rng = random.Random(5)
    assert {has_valid_digits(scheme, printed(rng, scheme.form)) for _ in range(300)} <= {True, False}


def test_check_digits_of_iso_7064_and_verhoeff_detect_every_change_of_one_digit() -> None:
    for valid, test in (("86095742719", check.mod_11_10), ("234123412346", check.verhoeff)):
        assert test(valid)
        for at, digit in enumerate(valid):
            assert not any(
                test(valid[:at] + str(other) + valid[at + 1 :]) for other in range(10) if str(other) != digit
            )
