"""Health of a page's text layer: whether it is usable, or the page needs optical character recognition (OCR).

Pure functions over the characters of a page. The score is the maximum of four signals from 0 to 1: `scan` (images
instead of text, or text that is invisible or covered by an image), `unmapped` (characters without a Unicode value),
`garbled` (Latin letters whose vowels and consonants alternate less than in any language, from a wrong ToUnicode map)
and `mixed` (words with letters of several scripts, from another kind of wrong map).
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import groupby, pairwise

from tasks.formats.pdf.characters import Char, RawPage

NEEDS_OCR = 0.5
"""Score from which a page needs OCR."""

_VOWELS = frozenset("aeiouy")
# Minimum share of adjacent letters in words that are a vowel and a consonant: at least 0.59 in 59 languages in Latin
# script, less than 0.52 in 97 of 100 texts whose alphabet was permuted at random.
_ALTERNATING = 0.52
_SPEAKING, _MOSTLY_LETTERS, _SWITCHING = 0.57, 0.65, 0.05
_CLEARLY, _SOME_LETTERS, _ENOUGH_OF_CODE = 0.63, 0.4, 120
"""The same for code and formulas, which have fewer letters: a higher share of alternating pairs, and more pairs."""
_STEEPNESS = 3.0
_ENOUGH = 200
_ENOUGH_OF_WORDS = 60
_MOSTLY_LATIN = 0.6
_MIXED = 0.02
"""Share of letters between letters of other scripts at which a page needs OCR."""
_COMPATIBLE_SCRIPTS = (
    "LATIN",
    "GREEK",
    "CJK",
    "IDEOGRAPHIC",
    "HIRAGANA",
    "KATAKANA",
    "HANGUL",
    "BOPOMOFO",
    "FULLWIDTH",
    "HALFWIDTH",
)
"""First words of the Unicode names of letters whose scripts mix in words and formulas."""
_DINGBATS = range(0x2701, 0x27C0)
_NO_SCRIPT = frozenset(("MATHEMATICAL", "MODIFIER", "MICRO", "FEMININE", "MASCULINE"))
_CODE_SIGNS = frozenset("\\_/@#$%^&*<>=|~{}[]+0123456789")
"""Characters of words that are code or addresses."""
_NUMBER = re.compile(r"[-+(\[]?[$€£]?\d+(?:[.,:/-]\d+)*[%)\],.;:]?")
_SPACE = Char(0x20, 0, 0, 0, 0, None)
_FEW = 50
_LEADERS = 4


def health(page: RawPage) -> float:
    """Returns the OCR score of a page: 0 for a good text layer or an empty page, 1 for a scan."""
    drawn = [char for char in page.chars if char.face is not None and char.code > 0x20]
    if not drawn:
        return 1.0 if page.objects else 0.0
    return max(_scan(page, drawn), _unmapped(page.chars, drawn), _garbled(page.chars), _mixed(page.chars))


def _scan(page: RawPage, drawn: list[Char]) -> float:
    invisible = sum(char.face is not None and char.face.invisible for char in drawn) / len(drawn)
    if page.covered:
        invisible = 1.0
    if page.image_share < 0.5:
        # A reader does not see invisible text without an image.
        return invisible
    few = max(0.0, 1 - len(drawn) / (2 * _FEW))
    return max(invisible, few)


def _unmapped(chars: Sequence[Char], drawn: list[Char]) -> float:
    """Returns twice the share of characters without a valid Unicode value, at most 1.

    A font without a map may still use ASCII codes, so its characters count only if they are neither numbers nor
    resemble language. Numbers are whole words: in text of wrong codes, digits are next to other characters.
    """
    unknown = [
        [char for char in word if char.unmapped and char.face is not None and not _is_unreadable(char.code)]
        for word in _without_leaders(_words(chars))
        if not _NUMBER.fullmatch("".join(chr(char.code) for char in word))
    ]
    bad = sum(_is_unreadable(char.code) for char in drawn)
    return min(1.0, 2 * (bad + (0 if _resembles_language(unknown) else sum(map(len, unknown)))) / len(drawn))


def _without_leaders(words: Iterable[list[Char]]) -> Iterator[list[Char]]:
    """Yields the words without rows of one character each, all the same, such as the dots of a table of contents."""
    for code, equal in groupby(words, key=lambda word: word[0].code if len(word) == 1 else 0):
        row = list(equal)
        if code == 0 or len(row) < _LEADERS:
            yield from row


def _words(chars: Sequence[Char]) -> Iterator[list[Char]]:
    """Yields the characters between spaces."""
    word: list[Char] = []
    for char in chars:
        if char.code > 0x20:
            word.append(char)
        elif word:
            yield word
            word = []
    if word:
        yield word


def _resembles_language(words: Sequence[list[Char]]) -> bool:
    """Returns whether words are mostly ASCII letters that alternate as in words, in words of one case.

    Code and lists of formulas have fewer letters, and must have more pairs that alternate more clearly.
    """
    unknown = [char for word in words for char in word]
    pairs, alternating = _count_pairs([char for word in words for char in (*word, _SPACE)])
    letters = sum(chr(char.code).isalpha() and char.code < 0x80 for char in unknown)
    switches = sum(
        chr(before.code).islower() and chr(after.code).isupper() for word in words for before, after in pairwise(word)
    )
    if switches >= _SWITCHING * pairs:
        return False
    if letters >= _MOSTLY_LETTERS * len(unknown):
        return pairs >= _ENOUGH_OF_WORDS and alternating >= _SPEAKING * pairs
    clearly = pairs >= _ENOUGH_OF_CODE and alternating >= _CLEARLY * pairs
    return clearly and letters >= _SOME_LETTERS * len(unknown)


def _is_unreadable(code: int) -> bool:
    if code in (0x02, 0xAD, 0xFFFE):
        return False  # hyphens at line ends
    return (
        code == 0xFFFD
        or code > 0x10FFFF
        or (code > 0x7E and unicodedata.category(chr(code)) in ("Co", "Cn", "Cc", "Cs"))
    )


def _garbled(chars: Sequence[Char]) -> float:
    """Returns how unlike any language in Latin script the letters are; 0 for a page with few Latin letters.

    The score is `NEEDS_OCR` if a share of `_ALTERNATING` of all adjacent letters in words are a vowel and a consonant,
    and grows as the share falls. Identifiers in code do not resemble language either, so they are ignored on a page
    with enough other words.
    """
    letters = sum(char.code > 0x40 and chr(char.code).isalpha() for char in chars)
    latin = sum(bool(_base_letter(char.code)) for char in chars)
    pairs, alternating = _count_pairs(chars)
    if pairs < _ENOUGH or latin < _MOSTLY_LATIN * letters:
        return 0.0
    worst = _ALTERNATING - alternating / pairs
    if worst > 0:
        pairs, alternating = _count_pairs(_without_code_words(chars))
        if pairs >= _ENOUGH_OF_WORDS:
            worst = min(worst, _ALTERNATING - alternating / pairs)
    return min(1.0, max(0.0, NEEDS_OCR + _STEEPNESS * worst))


def _count_pairs(chars: Sequence[Char]) -> tuple[int, int]:
    """Returns the number of pairs of adjacent letters, and of those that are a vowel and a consonant."""
    pairs = alternating = 0
    before: bool | None = None
    for char in chars:
        letter = _base_letter(char.code)
        is_vowel = letter in _VOWELS if letter else None
        if is_vowel is not None and before is not None:
            pairs += 1
            alternating += is_vowel != before
        before = is_vowel
    return pairs, alternating


def _without_code_words(chars: Sequence[Char]) -> list[Char]:
    """Returns the characters without spaces and words that contain code characters, each word with a space after it."""
    words = (word for word in _words(chars) if not any(chr(letter.code) in _CODE_SIGNS for letter in word))
    return [char for word in words for char in (*word, _SPACE)]


def _mixed(chars: Sequence[Char]) -> float:
    """Returns the score for letters between letters of other scripts; `NEEDS_OCR` if they are `_MIXED` of all."""
    inner = lone = 0
    first = middle = ""
    for char in chars:
        last = _script(char.code) if char.face is not None else ""
        if first and middle and last:
            inner += 1
            lone += first != middle != last
        first, middle = middle, last
    return min(1.0, NEEDS_OCR * lone / (_MIXED * inner)) if inner >= _FEW else 0.0


@cache
def _script(code: int) -> str:
    """Returns the script of a letter by its Unicode name ("LATIN" for all compatible scripts), or "".

    Dingbats in words are letters of a wrong map, a script of their own.
    """
    if code in _DINGBATS:
        return "DINGBAT"
    if not chr(code).isalpha():
        return ""
    name = re.split("[ -]", unicodedata.name(chr(code), ""), maxsplit=1)[0]
    if name in _NO_SCRIPT:
        return ""
    return "LATIN" if name in _COMPATIBLE_SCRIPTS else name


@cache
def _base_letter(code: int) -> str:
    """Returns the base letter a to z of a character, without accents, or ""."""
    if code > 0x1EFF:
        return ""
    letter = unicodedata.normalize("NFD", chr(code))[:1].lower()
    return letter if "a" <= letter <= "z" else ""
