"""Whether the text layer of a page can be read, or the page needs optical character recognition (OCR).

Pure functions over the characters of a page. Four signs, each a score from 0 to 1, of which the largest counts:
`scan` (images instead of text, or text that is not drawn or lies under an image), `unmapped` (characters without a
Unicode value), `garbled` (Latin letters whose vowels and consonants alternate as in no language: a wrong ToUnicode
map) and `mixed` (words of letters of several scripts: another such map).
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from tasks.formats.pdf.characters import Char, RawPage

NEEDS_OCR = 0.5
"""Score from which a page needs OCR."""

_VOWELS = frozenset("aeiouy")
# Of two neighbouring letters in a word so many are a vowel and a consonant: 0.59 and more in 59 languages in Latin
# script, less than 0.52 in 97 of 100 texts whose alphabet was permuted at random.
_ALTERNATING = 0.52
_SPEAKING, _MOSTLY_LETTERS, _SWITCHING = 0.57, 0.65, 0.05
_STEEPNESS = 3.0
_ENOUGH = 200
_ENOUGH_OF_WORDS = 60
_MOSTLY_LATIN = 0.6
_MIXED = 0.02
"""Share of letters between letters of other scripts from which a page needs OCR."""
_TOGETHER = (
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
"""First words of names of letters that stand side by side in words and formulas."""
_NO_SCRIPT = frozenset(("MATHEMATICAL", "MODIFIER", "MICRO", "FEMININE", "MASCULINE"))
_APART = frozenset("\\_/@#$%^&*<>=|~{}[]+0123456789")
"""Signs that make a word one of a program or an address."""
_FEW = 50


@dataclass(frozen=True)
class Health:
    """Score of a page, and whether anything is drawn on it."""

    score: float
    blank: bool = False

    @property
    def needs_ocr(self) -> bool:
        """Whether the page is to be rejected as `needs_ocr`."""
        return self.score >= NEEDS_OCR


def health(page: RawPage) -> Health:
    """Returns the score of a page: 0 for a good text layer or an empty page, 1 for a scan."""
    drawn = [char for char in page.chars if char.face is not None and char.code > 0x20]
    if not drawn:
        return Health(1.0 if page.objects else 0.0, blank=not page.objects)
    return Health(max(_scan(page, drawn), _unmapped(drawn), _garbled(page.chars), _mixed(page.chars)))


def _scan(page: RawPage, drawn: list[Char]) -> float:
    invisible = sum(char.face is not None and char.face.invisible for char in drawn) / len(drawn)
    if page.covered:
        invisible = 1.0
    if page.image_share < 0.5:
        # Invisible text without an image is nothing that a reader sees.
        return invisible
    few = max(0.0, 1 - len(drawn) / (2 * _FEW))
    return max(invisible, few)


def _unmapped(drawn: list[Char]) -> float:
    """Returns twice the share of characters that stand for no letter, 1 at most.

    A font without a map may still have the letters at their places in ASCII: its characters count if they make no
    language.
    """
    unknown = [char for char in drawn if char.unmapped and not _no_letter(char.code)]
    bad = sum(_no_letter(char.code) for char in drawn)
    return min(1.0, 2 * (bad + (0 if _speaks(unknown) else len(unknown))) / len(drawn))


def _speaks(unknown: list[Char]) -> bool:
    """Returns whether characters are mostly letters of ASCII that alternate as in words, in words of one case."""
    pairs, alternating = _neighbours(unknown)
    letters = sum(chr(char.code).isalpha() and char.code < 0x80 for char in unknown)
    switches = sum(chr(one.code).islower() and chr(after.code).isupper() for one, after in pairwise(unknown))
    return (
        pairs >= _ENOUGH_OF_WORDS
        and alternating >= _SPEAKING * pairs
        and letters >= _MOSTLY_LETTERS * len(unknown)
        and switches < _SWITCHING * pairs
    )


def _no_letter(code: int) -> bool:
    if code in (0x02, 0xAD, 0xFFFE):
        return False  # hyphens at line ends
    return (
        code == 0xFFFD
        or code > 0x10FFFF
        or (code > 0x7E and unicodedata.category(chr(code)) in ("Co", "Cn", "Cc", "Cs"))
    )


def _garbled(chars: Sequence[Char]) -> float:
    """Returns how far letters are from any language in Latin script; 0 for a page with few of them.

    `NEEDS_OCR` is reached where less than `_ALTERNATING` of all neighbours in words are a vowel and a consonant. Names
    of programs are no language either, so a page with enough other words is judged by these.
    """
    letters = sum(char.code > 0x40 and chr(char.code).isalpha() for char in chars)
    latin = sum(bool(_letter(char.code)) for char in chars)
    pairs, alternating = _neighbours(chars)
    if pairs < _ENOUGH or latin < _MOSTLY_LATIN * letters:
        return 0.0
    worst = _ALTERNATING - alternating / pairs
    if worst > 0:
        pairs, alternating = _neighbours(_words_alone(chars))
        if pairs >= _ENOUGH_OF_WORDS:
            worst = min(worst, _ALTERNATING - alternating / pairs)
    return min(1.0, max(0.0, NEEDS_OCR + _STEEPNESS * worst))


def _neighbours(chars: Sequence[Char]) -> tuple[int, int]:
    """Returns how many neighbouring letters there are, and how many of them are a vowel and a consonant."""
    pairs = alternating = 0
    before: bool | None = None
    for char in chars:
        letter = _letter(char.code)
        now = letter in _VOWELS if letter else None
        if now is not None and before is not None:
            pairs += 1
            alternating += now != before
        before = now
    return pairs, alternating


def _words_alone(chars: Sequence[Char]) -> list[Char]:
    """Returns the characters with what is between two spaces left out where it has signs of programs in it."""
    kept: list[Char] = []
    word: list[Char] = []
    for char in (*chars, None):
        if char is None or char.code <= 0x20:
            if not any(chr(one.code) in _APART for one in word):
                kept += word
            word = []
        if char is not None:
            word.append(char)
    return kept


def _mixed(chars: Sequence[Char]) -> float:
    """Returns how often a letter stands between letters of other scripts; `NEEDS_OCR` for `_MIXED` of all letters."""
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
    """Returns the script of a letter by its name, one name for those that stand side by side; "" for other signs."""
    if not chr(code).isalpha():
        return ""
    name = re.split("[ -]", unicodedata.name(chr(code), ""), maxsplit=1)[0]
    return (
        ""
        if name in ("MATHEMATICAL", "MODIFIER", "MICRO", "FEMININE", "MASCULINE")
        else "LATIN"
        if name in _TOGETHER
        else name
    )


@cache
def _letter(code: int) -> str:
    """Returns the letter a to z that a character is, without its accents, or ""."""
    if code > 0x1EFF:
        return ""
    letter = unicodedata.normalize("NFD", chr(code))[:1].lower()
    return letter if "a" <= letter <= "z" else ""
