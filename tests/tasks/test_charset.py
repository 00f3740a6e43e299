"""Contract of tasks.charset: the order of the HTML standard, and no failure."""

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.charset import decode, with_source

GERMAN = "<html><p>Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich</p>"
RUSSIAN = "<html><p>Съешь же ещё этих мягких французских булок, да выпей чаю, а потом ещё и ещё раз выпей чаю</p>"


def test_byte_order_mark_beats_everything() -> None:
    assert decode(codecs.BOM_UTF8 + GERMAN.encode(), "iso-8859-1") == GERMAN
    assert decode(codecs.BOM_UTF16_LE + GERMAN.encode("utf-16-le"), "utf-8") == GERMAN


def test_header_beats_meta_tag() -> None:
    page = '<meta charset="utf-8">' + RUSSIAN
    assert decode(page.encode("windows-1251"), "windows-1251") == page


def test_meta_tag_is_read_and_latin1_means_windows_1252() -> None:
    page = '<meta http-equiv=content-type content="text/html; charset=iso-8859-1"><p>“Größe” costs 5 €'
    assert decode(page.encode("windows-1252")) == page


def test_a_meta_tag_that_says_utf_16_means_utf_8() -> None:
    page = '<meta charset="utf-16">' + GERMAN
    assert decode(page.encode()) == page
    assert decode(GERMAN.encode("utf-16-le"), "utf-16") == GERMAN


@pytest.mark.parametrize("encoding", ["utf-8", "koi8-r", "windows-1251"])
def test_undeclared_text_is_recognised(encoding: str) -> None:
    assert decode((RUSSIAN * 3).encode(encoding)) == RUSSIAN * 3


def test_utf_8_is_recognised_by_a_single_letter() -> None:
    page = "<html><p>" + "plain words " * 20 + "stämma"
    assert decode(page.encode()) == page
    assert decode(("<!-- charset=koi8-r -->" + page).encode()) == "<!-- charset=koi8-r -->" + page


def test_plain_ascii_may_be_escaped_japanese() -> None:
    page = "<html><p>" + "すべての人間は、生まれながらにして自由であり" * 4
    assert decode(page.encode("iso-2022-jp")) == page


def test_a_wrong_declaration_is_ignored() -> None:
    assert decode((RUSSIAN * 3).encode("utf-8"), "ascii") == RUSSIAN * 3
    assert decode((RUSSIAN * 3).encode("koi8-r"), "utf-8") == RUSSIAN * 3


def test_one_torn_character_does_not_change_the_encoding() -> None:
    data = (RUSSIAN * 20).encode("utf-8")[:-5]
    assert decode(data, "utf-8").startswith(RUSSIAN)


@pytest.mark.parametrize("declared", [None, "utf-7", "no-such", "utf-16", "x-user-defined", "hex", "\0"])
def test_no_bytes_and_no_label_make_it_fail(declared: str | None) -> None:
    for data in (b"", b"\xff", bytes(range(256)) * 8, b"\x80" * 1000, b"\xfe\xff\xd8"):
        decode(data, declared).encode("utf-8", "surrogatepass")


LABELS = [
    None,
    "",
    "utf-8",
    "UTF8",
    "latin1",
    "windows-1251",
    "gbk",
    "shift_jis",
    "iso-2022-jp",
    "utf-16",
    "utf-7",
    "\0",
]
CODECS = ["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "cp1252", "koi8-r", "gbk", "euc-jp", "iso-2022-jp"]


@given(st.binary() | st.builds(lambda text, codec: text.encode(codec, "ignore"), st.text(), st.sampled_from(CODECS)))
def test_the_source_is_the_text_in_utf_8(data: bytes) -> None:
    for declared in LABELS:
        text, source = with_source(data, declared)
        assert source == text.encode("utf-8", "surrogatepass")
        assert text == decode(data, declared)


def test_bytes_in_utf_8_are_the_source_themselves() -> None:
    data = RUSSIAN.encode()
    assert with_source(data, "utf-8")[1] is with_source(data)[1] is data
    assert with_source(codecs.BOM_UTF8 + data)[1] == data
    assert with_source(data[:-5])[1] == decode(data[:-5]).encode()
