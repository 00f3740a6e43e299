"""Contract of tasks.formats.documents.text.clean: invisible characters are removed unless they change the display."""

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.formats.documents.text import clean, normalise

# Unicode's Default_Ignorable_Code_Point, as DerivedCoreProperties.txt (version 16) lists it.
IGNORABLE = [
    *(0x00AD, 0x034F, 0x061C, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFEFF, 0xFFA0),
    *(*range(0x180B, 0x1810), *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070)),
    *(*range(0xFE00, 0xFE10), *range(0xFFF0, 0xFFF9), *range(0x1BCA0, 0x1BCA4), *range(0x1D173, 0x1D17B)),
    *range(0xE0000, 0xE1000),
]
NOTATION = {0x115F, 0x1160, 0x3164, 0xFFA0, *range(0x1BCA0, 0x1BCA4), *range(0x1D173, 0x1D17B)}
"""Letters that are not there, in Korean, and signs of shorthand and of music: kept in texts, ignored in comparison."""

SENTENCE = "The harbour master kept a ledger of every ship that called at the port between the two wars."
SHOWN = [
    "\u00ad",
    "\u200b",
    "\u200c",
    "\u200d",
    "\u2060",
    "\ufeff",
    "\u202e",
    "\u200f",
    "\u2063",
    "\ufe0f",
    "\U000e0041",
]


@pytest.mark.parametrize("point", IGNORABLE[:80] + IGNORABLE[80::97], ids=hex)
def test_invisible_characters_are_removed_and_do_not_hide_duplicates(point: int) -> None:
    strewn = chr(point).join(SENTENCE)
    assert normalise(strewn) == normalise(SENTENCE)
    if point not in NOTATION:
        assert clean(strewn) == SENTENCE


def test_every_format_character_is_kept_for_a_reason_or_removed() -> None:
    kept = {
        point
        for point in range(sys.maxunicode + 1)
        if unicodedata.category(chr(point)) == "Cf" and clean(f"a{chr(point)}b") != "ab"
    }
    # Signs before Arabic, Syriac and Indic numbers, Egyptian joiners: they are visible, or position visible characters.
    seen = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD, *range(0x13430, 0x13440)}
    assert kept == {point for point in seen | NOTATION if unicodedata.category(chr(point)) == "Cf"}


@pytest.mark.parametrize(
    "text",
    [
        "می\u200cروم",  # Persian: the joiner's absence changes the letters
        "خانه\u200cهای ما",
        "١٤٤٥ ه\u200d.",  # the Hijri year's abbreviation
        "क्\u200dष और क्\u200cष",  # Devanagari: half form, explicit virama
        "ശ്\u200dരീ",
        "ශ්\u200dරී ලංකා",
        "ក្រុម\u200cប្រឹក្សា",
        "ᠨᠢ\u180bᠭ᠎ᠠ",
        "👩\u200d💻 👨\u200d👩\u200d👧\u200d👦 🧑🏽\u200d🚀 ❤\ufe0f\u200d🔥 🏳\ufe0f\u200d🌈",
        "❤\ufe0f ☎\ufe0e ©\ufe0f 1\ufe0f\u20e3 #\ufe0f\u20e3",
        "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
        "\u05d9\u05e8\u05d5\u05e9\u05dc\u05b7\u034f\u05b4\u05dd",  # fixes the order of two points
    ],
)
def test_characters_that_change_the_appearance_of_a_text_are_kept(text: str) -> None:
    assert clean(text) == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("Auf\u200clage und Schaf\u200cfell", "Auflage und Schaffell"),
        ("می\u200c روم", "می روم"),  # at the end of a word it joins nothing
        ("می\u200c\u200cروم", "می\u200cروم"),
        ("a\u200d🔥", "a🔥"),
        ("🔥\u200d", "🔥"),
        ("A\ufe0f 1\ufe0f 葛\U000e0100城 ∩\ufe00", "A 1 葛城 ∩"),
        ("x\u180by", "xy"),
        ("🏴\U000e0041\U000e0042 a\U000e0061b\U000e007f", "🏴 ab"),
        ("e\u200b\u0301", "é"),
        ("e\u034f\u0301", "e\u034f\u0301"),
        ("Schiff\u00ad\nfahrt", "Schiff\nfahrt"),
        ("\u2067שלום\u2069, \u200eworld\u200f!", "שלום, world!"),
        ("ไทย\u200bแลนด์", "ไทยแลนด์"),
    ],
)
def test_characters_without_effect_are_removed(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned
    assert clean(cleaned) == cleaned


def test_ligatures_are_kept_in_the_text_and_ignored_in_comparison() -> None:
    text = "ﬁne oﬀers, eﬃcient ﬂow, ﬅone Ǆ № ½"
    assert clean(text) == text
    assert normalise(text) == normalise("fine offers, efficient flow, stone DŽ No 1⁄2")


PIECES = st.sampled_from(
    [*"ab 1#\n", *SHOWN, "\u200c", "\u034f", "\u180b", "م", "ی", "ᠨ", "👩", "❤", "🏴", "\u20e3", "\u0301"]
)


@given(st.text(PIECES))
def test_cleaning_is_idempotent_and_loses_nothing_else(sample: str) -> None:
    found = clean(sample)
    assert clean(found) == found
    assert normalise(found) == normalise(sample)
    dropped = {ord(character) for character in sample} - {ord(character) for character in found}
    assert dropped <= {*IGNORABLE, 0x20, 0x0A, 0x301, ord("a"), ord("b")}  # "á" may stand for "a" and its accent
