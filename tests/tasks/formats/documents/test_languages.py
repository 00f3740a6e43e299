"""Names of languages: those of CLDR, for every code that documents can have."""

import babel
import pytest

from tasks.filters.language import _TWO_LETTERS, code_of
from tasks.filters.pretrained import model_file
from tasks.formats.documents.languages import NAMES, SCRIPTS, language_name, language_tag


def test_every_language_that_lid_176_recognizes_has_a_name() -> None:
    fasttext = pytest.importorskip("fasttext")
    labels = fasttext.load_model(str(model_file("lid.176.ftz"))).get_labels()
    codes = {code_of(label.removeprefix("__label__")) for label in labels}
    assert len(codes) == 176
    assert codes <= NAMES.keys()
    assert {pair[4:] for pair in _TWO_LETTERS.split()} <= NAMES.keys()


def test_names_are_those_of_cldr_where_it_has_one() -> None:
    english = babel.Locale("en")
    unnamed = {code for code, name in NAMES.items() if english.languages.get(code) != name}
    assert unnamed == set(["als", "azb", "bcl", "bh", "bxr", "cbk", "diq", "dty", "eml", "gom", "mhr", "nah", "pnb"])
    assert {code for code, name in SCRIPTS.items() if english.scripts[code] != name} == {"Cans"}


@pytest.mark.parametrize(
    ("code", "name", "tag"),
    [
        ("ja", "Japanese (ja)", "ja"),
        ("zh-Hant", "Chinese, Traditional (zh-Hant)", "zh-Hant"),
        ("zh_Hans", "Chinese, Simplified (zh_Hans)", "zh-Hans"),
        ("als", "Alemannic (als)", "gsw"),
        ("als-Latn", "Alemannic, Latin (als-Latn)", "gsw-Latn"),
        ("", "no text", ""),
        ("und", "undetermined", ""),
        ("quenya", "quenya", ""),
        ('x" onload="', 'x" onload="', ""),
    ],
)
def test_a_code_gives_a_name_for_people_and_a_tag_for_browsers(code: str, name: str, tag: str) -> None:
    assert (language_name(code), language_tag(code)) == (name, tag)
