"""Whether the text layer of a page can be read, or the page needs optical character recognition (OCR).

Pure functions over the characters of a page. Three signs, each a score from 0 to 1, of which the largest counts:
`scan` (images instead of text, or text that is not drawn or lies under an image), `unmapped` (characters without a
Unicode value) and `garbled` (Latin letters whose frequencies are those of no language: a wrong ToUnicode map).
"""

import math
import unicodedata
from collections import Counter
from dataclasses import dataclass

from tasks.formats.pdf.reader import Char, RawPage

NEEDS_OCR = 0.5
"""Score from which a page needs OCR."""

# Letters per 1,000, the mean of English, German, French, Spanish and Italian in round numbers: in all of them vowels are
# frequent and j, k, q, w, x, y, z rare, which is all that is used.
_LETTERS = dict(
    zip(
        "abcdefghijklmnopqrstuvwxyz",
        (93, 14, 36, 42, 146, 14, 15, 24, 76, 3, 6, 47, 27, 74, 67, 26, 7, 68, 72, 70, 41, 13, 10, 2, 9, 5),
        strict=True,
    )
)
_NORM = math.sqrt(sum(one * one for one in _LETTERS.values()))
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
    return Health(max(_scan(page, drawn), _unmapped(drawn), _garbled(drawn)))


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


def _garbled(drawn: list[Char]) -> float:
    """Returns how far letters are from any language in Latin script: 1 - 2 (cosine - 0.4), for 200 letters and more.

    The cosine of the letters of a page with those of five languages is above 0.85 for texts of European languages, and
    0.4 to 0.6 for a permutation of the alphabet.
    """
    counts = Counter(chr(char.code).lower() for char in drawn if char.code < 0x80)
    letters = {letter: counts[letter] for letter in _LETTERS}
    total = sum(letters.values())
    symbols = sum(counts.values()) - total
    if total + symbols < _ENOUGH or total + symbols < len(drawn) / 2:
        return 0.0
    if total < _ENOUGH:
        return 0.0
    norm = math.sqrt(sum(one * one for one in letters.values()))
    cosine = sum(_LETTERS[letter] * count for letter, count in letters.items()) / (norm * _NORM)
    return min(1.0, max(0.0, 1 - 2 * (cosine - 0.4)))
