"""Contract of tasks.formats.web.charset: the order of the HTML standard, and no failure."""

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.formats.web.charset import decode, decode_with_source

GERMAN = "<html><p>Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich</p>"
RUSSIAN = "<html><p>Съешь же ещё этих мягких французских булок, да выпей чаю, а потом ещё и ещё раз выпей чаю</p>"


def test_a_byte_order_mark_overrides_everything() -> None:
    assert decode(codecs.BOM_UTF8 + GERMAN.encode(), "iso-8859-1") == GERMAN
    assert decode(codecs.BOM_UTF16_LE + GERMAN.encode("utf-16-le"), "utf-8") == GERMAN


def test_the_header_overrides_the_meta_tag() -> None:
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
def test_the_encoding_of_undeclared_text_is_detected(encoding: str) -> None:
    assert decode((RUSSIAN * 3).encode(encoding)) == RUSSIAN * 3


def test_utf_8_is_detected_from_a_single_letter() -> None:
    page = "<html><p>" + "plain words " * 20 + "stämma"
    assert decode(page.encode()) == page
    assert decode(("<!-- charset=koi8-r -->" + page).encode()) == "<!-- charset=koi8-r -->" + page


def test_ascii_bytes_can_be_iso_2022_jp() -> None:
    page = "<html><p>" + "すべての人間は、生まれながらにして自由であり" * 4
    assert decode(page.encode("iso-2022-jp")) == page


def test_a_wrong_declaration_is_ignored() -> None:
    assert decode((RUSSIAN * 3).encode("utf-8"), "ascii") == RUSSIAN * 3
    assert decode((RUSSIAN * 3).encode("koi8-r"), "utf-8") == RUSSIAN * 3


@pytest.mark.parametrize("page", [GERMAN, RUSSIAN, "<p>Größe in der Straße, “quoted” and 5 € each</p>"])
@pytest.mark.parametrize("damage", [b"\x93", b"\xff", b"\xe4", b"\xf0\x9f", b"\x80"])
@pytest.mark.parametrize("declared", ["utf-8", None])
def test_damaged_characters_do_not_affect_the_rest_of_a_utf_8_page(
    page: str, damage: bytes, declared: str | None
) -> None:
    data = b"\n".join([page.encode() * 5, *[damage + page.encode()] * 3])  # half a per cent and more
    assert decode(data, declared) == data.decode("utf-8", "replace")
    assert decode(b"<meta charset=utf-8>" + data) == "<meta charset=utf-8>" + data.decode("utf-8", "replace")


WRITTEN = {
    "windows-1252": "« Été à la mer », dit-elle : « ça suffit, Noël est passé. » Où êtes-vous, garçon ?",
    "windows-1251": RUSSIAN,
    "koi8-r": RUSSIAN,
    "shift_jis": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "euc-jp": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "gbk": "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。",
    "big5": "人人生而自由，在尊嚴和權利上一律平等。他們賦有理性和良心，並應以兄弟關係的精神相對待。",
    "euc-kr": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. 인간은 천부적으로.",
}


@pytest.mark.parametrize("encoding", WRITTEN)
def test_a_utf_8_declaration_contradicted_throughout_is_ignored(encoding: str) -> None:
    page = f"<html><p>{WRITTEN[encoding]}</p>" * 5
    assert decode(page.encode(encoding), "utf-8") == page


@pytest.mark.parametrize(
    ("label", "codec", "text"),
    [
        ("shift_jis", "cp932", "①㈱～Ⅲ"),
        ("euc-kr", "cp949", "똠방각하"),
        ("gb2312", "gb18030", "€镕㐀"),
        ("windows-874", "cp874", "ไทย “…”"),
        ("big5", "big5hkscs", "嘅喺咗"),
    ],
)
def test_labels_follow_the_encoding_standard(label: str, codec: str, text: str) -> None:
    assert decode((text * 9).encode(codec), label) == text * 9


def test_an_xml_declaration_names_the_encoding_unless_a_meta_tag_does() -> None:
    page = '<?xml version="1.0" encoding="windows-1251"?><html><p>Съешь</p>'
    assert decode(page.encode("windows-1251")) == page
    assert decode(page.encode("koi8-r"), "koi8-r") == page
    tagged = page.replace("<p>", "<meta charset=koi8-r><p>")
    assert decode(tagged.encode("koi8-r")) == tagged


def test_one_truncated_character_does_not_change_the_encoding() -> None:
    data = (RUSSIAN * 20).encode("utf-8")[:-5]
    assert decode(data, "utf-8").startswith(RUSSIAN)


@pytest.mark.parametrize("declared", [None, "utf-7", "no-such", "utf-16", "x-user-defined", "hex", "\0"])
def test_decoding_never_fails(declared: str | None) -> None:
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
def test_the_source_is_the_text_encoded_as_utf_8(data: bytes) -> None:
    for declared in LABELS:
        text, source, _ = decode_with_source(data, declared)
        assert source == text.encode("utf-8", "surrogatepass")
        assert text == decode(data, declared)


def test_utf_8_bytes_are_the_source_unchanged() -> None:
    data = RUSSIAN.encode()
    assert decode_with_source(data, "utf-8")[1] is decode_with_source(data)[1] is data
    assert decode_with_source(codecs.BOM_UTF8 + data)[1] == data
    assert decode_with_source(data[:-5])[1] == decode(data[:-5]).encode()


@pytest.mark.parametrize(
    ("data", "declared", "encoding"),
    [
        (b"plain", None, "utf-8"),
        ("Москва".encode(), "utf-8", "utf-8"),
        ("Москва и область".encode("cp1251"), "windows-1251", "cp1251"),
        ("<meta charset=koi8-r>Москва".encode("koi8-r"), None, "koi8-r"),
        ("Москва".encode("utf-16"), None, "utf-8"),
        ("Москва".encode("utf-16-le"), "utf-16le", "utf-8"),
        ("日本語の文章".encode("cp932"), "shift_jis", "cp932"),
        ("中文网页".encode("gbk"), "gb2312", "gbk"),
        ("中文網頁".encode("big5"), "big5", "cp950"),
        (b"caf\xe9", "latin1", "cp1252"),
    ],
)
def test_queries_are_encoded_in_the_encoding_of_the_page(data: bytes, declared: str | None, encoding: str) -> None:
    assert codecs.lookup(decode_with_source(data, declared).encoding) == codecs.lookup(encoding)
