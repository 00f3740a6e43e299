"""Accents that a page draws as characters of their own over their letters, as TeX's older fonts do.

Pure functions.
"""

import unicodedata
from collections.abc import Sequence

from tasks.formats.pdf.characters import Char

_MARKS = {
    **{0xA8: 0x308, 0xB4: 0x301, 0x60: 0x300, 0x2C6: 0x302, 0x5E: 0x302, 0x2DC: 0x303, 0x7E: 0x303, 0xB8: 0x327},
    **{0x2C7: 0x30C, 0x2DA: 0x30A, 0xAF: 0x304, 0x2D8: 0x306, 0x2D9: 0x307, 0x2DD: 0x30B},
}
"""Accents, and the marks that combine with a letter."""
_MOST = 1_000


def with_accents(chars: Sequence[Char]) -> Sequence[Char]:
    """Returns the characters with each accent on the letter that it is drawn over; one over nothing stays.

    A page with more than `_MOST` accents is left as it is: each is compared with all letters.
    """
    places = [at for at, char in enumerate(chars) if char.code in _MARKS and char.face is not None]
    if not 0 < len(places) <= _MOST:
        return chars
    found = list(chars)
    gone = set()
    for at in places:
        accent = found[at]
        under = next((to for to, char in enumerate(found) if to != at and _is_under(char, accent)), None)
        if under is not None:
            letter = found[under]
            whole = unicodedata.normalize("NFC", chr(letter.code) + chr(_MARKS[accent.code]))
            if len(whole) == 1:
                found[under] = letter._replace(code=ord(whole))
                gone.add(at)
    return [char for at, char in enumerate(found) if at not in gone]


def _is_under(letter: Char, accent: Char) -> bool:
    if letter.face is None or not accent.x0 < letter.x1 or not letter.x0 < accent.x1:
        return False
    shared = min(letter.x1, accent.x1) - max(letter.x0, accent.x0)
    beside = min(letter.y1, accent.y1) - max(letter.y0, accent.y0)
    wide = shared > 0.6 * (accent.x1 - accent.x0) and beside > 0.5 * (letter.y1 - letter.y0)
    return wide and chr(letter.code).isalpha()
