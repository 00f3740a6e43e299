"""Values of filters by language: shipped limits, and stop words.

Reads `limits.json` beside this file, which `sluice limits` writes from reference text
(`tasks.filters.language_limits`); writes nothing. The file has for each language the figures of its reference text,
stop words, and limits by filter; and under OTHER the limits of all languages without values, which describe no
language.

Imports no heavy module, because recipes are read at DAG parse time.
"""

import json
import unicodedata
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tasks.core.digest import sha256_of
from tasks.filters import UNDETERMINED

FILE = Path(__file__).with_name("limits.json")

_MARKS_IN = ((0, 0x3100), (0xFE10, 0xFFF0))
"""Ranges of code points with the punctuation and symbols of languages in use."""

_ETHIOPIC_SPACE = "\u1361"

ENGLISH = ("en", UNDETERMINED)
"""Languages with the general limits, which describe English. Without the annotator `language` a text is "und"."""

CHARS_PER_WORD = 10
"""Characters that count as a word at least, in languages other than English: Gopher's longest mean word."""

OTHER = "other"
"""Stands for every language without values, and for documents whose language is unsure."""

SURE = 0.4
"""Minimum score of a label for the values of its language to apply. lid.176 labels pages in languages that it lacks
(Hausa, Igbo, Maori, Yoruba) with scores of 0.06 to 0.49."""


class LanguageValues(NamedTuple):
    """The shipped values.

    Attributes:
        name: date and digest of the file, part of the fingerprints of what depends on it.
        limits: limits by filter, by language and OTHER.
        stop_words: stop words by language, lower-case.
    """

    name: str
    limits: Mapping[str, Mapping[str, Mapping[str, Any]]]
    stop_words: Mapping[str, frozenset[str]]


@cache
def shipped() -> LanguageValues:
    """Returns the values of this version of Sluice."""
    data = FILE.read_bytes()
    content = json.loads(data)
    languages: dict[str, Any] = content["languages"]
    return LanguageValues(
        name=f"{content['derived']} {sha256_of(data)[:8]}",
        limits={OTHER: content[OTHER], **{code: of["limits"] for code, of in languages.items() if code != "en"}},
        stop_words={code: frozenset(of["stop_words"]) for code, of in languages.items() if code != "en"},
    )


def require_shipped(name: str) -> str:
    """Returns the name of a set of values, if it is "" (none) or the shipped one; raises ValueError for another."""
    if name not in ("", shipped().name):
        raise ValueError(
            f'the limits of languages "{name}" are not those of this version ("{shipped().name}"): leave the setting '
            "out to use these"
        )
    return name


def plain_words(text: str) -> Iterator[str]:
    """Yields the lower-case words of a text without the punctuation and symbols around them.

    >>> list(plain_words("“Ja,” sagte er. 我爱中国人民。"))
    ['ja', 'sagte', 'er', '我', '爱', '中国', '人民']
    """
    from tasks.formats.documents.words import words

    for word in words(text.lower().replace(_ETHIOPIC_SPACE, " ")):
        plain = word if word.isalnum() else word.strip(_marks())
        if plain:
            yield plain


@cache
def _marks() -> str:
    """Returns punctuation and symbols. Vowel marks are none: they belong to the word."""
    chars = (chr(code) for first, last in _MARKS_IN for code in range(first, last))
    return "".join(char for char in chars if unicodedata.category(char)[0] in "PS")
