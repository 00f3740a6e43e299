"""Whether the text layer of a page can be read, or the page needs optical character recognition (OCR).

Pure functions over the characters of a page. Three signs, each a score from 0 to 1, of which the largest counts:
`scan` (images instead of text, or text that is not drawn or lies under an image), `unmapped` (characters without a
Unicode value) and `garbled` (Latin letters whose vowels and consonants alternate as in no language: a wrong
ToUnicode map).
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from tasks.formats.pdf.characters import Char, RawPage

NEEDS_OCR = 0.5
"""Score from which a page needs OCR."""

_VOWELS = frozenset("aeiouy")
# Of two neighbouring letters in a word so many are a vowel and a consonant: 0.59 and more in 59 languages in Latin
# script, less than 0.52 in 97 of 100 texts whose alphabet was permuted at random.
_ALTERNATING = 0.52
_STEEPNESS = 3.0
_ENOUGH = 200
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
    return Health(max(_scan(page, drawn), _unmapped(drawn), _garbled(page.chars)))


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
    """Returns twice the share of characters that stand for no letter, 1 at most."""
    bad = sum(char.unmapped or _no_letter(char.code) for char in drawn)
    return min(1.0, 2 * bad / len(drawn))


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

    `NEEDS_OCR` is reached where less than `_ALTERNATING` of all neighbours in words are a vowel and a consonant.
    """
    pairs = alternating = 0
    before: bool | None = None
    for char in chars:
        letter = _letter(char.code)
        now = letter in _VOWELS if letter else None
        if now is not None and before is not None:
            pairs += 1
            alternating += now != before
        before = now
    if pairs < _ENOUGH:
        return 0.0
    return min(1.0, max(0.0, NEEDS_OCR + _STEEPNESS * (_ALTERNATING - alternating / pairs)))


@cache
def _letter(code: int) -> str:
    """Returns the letter a to z that a character is, without its accents, or ""."""
    if code > 0x1EFF:
        return ""
    letter = unicodedata.normalize("NFD", chr(code))[:1].lower()
    return letter if "a" <= letter <= "z" else ""
