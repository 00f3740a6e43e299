"""Letters of texts by script and case, for language identification.

Pure functions over texts. The script of a letter is the first word of its Unicode name; Hiragana and Katakana are one
script, "KANA". Letters of scripts that are not in `SCRIPTS` count as "OTHER". What counts as a letter is
`str.isalpha`, so combining vowel signs do not.
"""

import unicodedata
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

_NAMES = (
    "OTHER LATIN GREEK CYRILLIC ARMENIAN HEBREW ARABIC DEVANAGARI BENGALI GURMUKHI GUJARATI ORIYA TAMIL TELUGU KANNADA "
    "MALAYALAM SINHALA THAI LAO TIBETAN MYANMAR GEORGIAN HANGUL ETHIOPIC KHMER HAN KANA"
)
SCRIPTS = tuple(_NAMES.split())
_OTHER_NAMES = {"CJK": "HAN", "HIRAGANA": "KANA", "KATAKANA": "KANA", "HALFWIDTH": "KANA", "FULLWIDTH": "LATIN"}

_LEAST_KANA = 0.05
"""Share of Kana above which a text with Han is Japanese."""

_NAMED, _HAN = 0x20000, slice(0x20000, 0x40000)
_PLAIN = 0x40000
"""Code points from here on are no letters."""
_CAPITAL, _KINDS = 32, 64
"""A letter has the number of its script, beginning with 1; a capital one that number and `_CAPITAL`."""
_TEXTS = 256
"""Texts that are counted at once, to bound memory: 16 bytes a character."""


@cache
def _kinds() -> NDArray[np.uint8]:
    """Returns the kind of every code point; 0 for one that is no letter. Takes about 0.1 s."""
    number = {name: place for place, name in enumerate(SCRIPTS, 1)}
    number |= {name: number[script] for name, script in _OTHER_NAMES.items()}
    kinds = np.array([chr(code).isalpha() for code in range(_PLAIN + 1)]).astype(np.uint8)
    for code in np.flatnonzero(kinds[:_NAMED]).tolist():
        char = chr(code)
        name = unicodedata.name(char, "").partition(" ")[0]
        # The ordinary letters of Cherokee are capitals to Unicode.
        kinds[code] = number.get(name, 1) + (_CAPITAL if char.isupper() and name != "CHEROKEE" else 0)
    kinds[_HAN] *= number["HAN"]
    return kinds


def letters_by_script(texts: Sequence[str]) -> NDArray[np.int64]:
    """Returns the numbers of letters of each text, shape (n_texts, 2, n_scripts): first not capital, then capital ones.

    >>> counts = letters_by_script(["Ab, Ж!"])
    >>> [counts[0, case, SCRIPTS.index(script)].item() for case in (0, 1) for script in ("LATIN", "CYRILLIC")]
    [1, 0, 1, 1]
    """
    counts = np.zeros((len(texts), _KINDS), np.int64)
    for first in range(0, len(texts), _TEXTS):
        some = texts[first : first + _TEXTS]
        codes = np.frombuffer("".join(some).encode("utf-32-le", "surrogatepass"), "<u4")
        kinds = _kinds()[np.minimum(codes, _PLAIN)]
        owners = np.repeat(np.arange(len(some)) * _KINDS, [len(text) for text in some])
        counts[first : first + len(some)] = np.bincount(owners + kinds, minlength=len(some) * _KINDS).reshape(
            -1, _KINDS
        )
    return counts.reshape(-1, 2, _CAPITAL)[:, :, 1 : len(SCRIPTS) + 1]


def main_scripts(letters: NDArray[np.int64]) -> list[str]:
    """Returns the script of most letters of each text, "KANA" of a text with some.

    Args:
        letters: of each text by script, shape (n_texts, n_scripts).
    """
    found = np.argmax(letters, axis=1)
    kana = SCRIPTS.index("KANA")
    found[letters[:, kana] > _LEAST_KANA * letters.sum(axis=1)] = kana
    return [SCRIPTS[place] for place in found]
