"""Tokenizer infixes: splits inside a chunk, at hyphens between words, full stops between sentences and so on.

The rules are those of spaCy's tokenizer for English.
"""

import re
import unicodedata
from collections.abc import Iterable
from functools import cache

QUOTES = "'\"”“`‘´’‚,„»«「」『』（）〔〕【】《》〈〉〈〉⟦⟧"
_ADDRESS = re.compile(
    r"(?:[\w+\-.]{2,64}://)?(?:[^\s@]{1,256}@)?(?:[^\W_][\w\-]{0,62}\.){1,20}([^\W\d_]{2,63})(?::\d{2,5})?(?:[/?#]\S*)?\Z"
)
_ASTRAL = re.compile("[\U00010000-\U0010ffff]")


def inner(chunk: str) -> list[str]:
    """Returns the pieces of a chunk without the marks around it, in order."""
    if chunk.isalnum():
        return [chunk]
    # Pieces and separators alternate.
    found: list[str] = _infixes(_level(chunk)).split(chunk)
    if not found[0] and len(found) > 1:
        # Nothing is split off at the beginning.
        found[:3] = ["".join(found[:3])]
    if len(found) == 1:
        return found
    address = _ADDRESS.match(chunk) if "." in chunk else None
    return [chunk] if address and address[1].islower() else [piece for piece in found if piece]


def _level(chunk: str) -> int:
    """Returns the highest code point that `_infixes` must support for a chunk."""
    if chunk.isascii():
        return 0x7F
    return 0x10FFFF if _ASTRAL.search(chunk) else 0xFFFF


@cache
def symbols() -> frozenset[str]:
    """Returns dingbats, emoji and their like: Unicode's category So."""
    # There are none above the emoji; checking all code points would take half a second.
    return frozenset(chr(point) for point in range(0x80, 0x20000) if unicodedata.category(chr(point)) == "So")


@cache
def _infixes(level: int) -> re.Pattern[str]:
    """Returns the pattern at which a chunk of code points up to `level` is split inside.

    A match begins with a class of characters, for which `re` searches without trying the alternatives at each place.
    The narrower that class, the faster: in one with code points above 0xFFFF `re` checks one range after the other.
    """
    letter, quotes = r"[^\W\d_]", "".join(map(re.escape, QUOTES))
    body = _class_body(char for char in symbols() if char <= chr(level))
    upper, lower = ("A-Z", "a-z") if level == 0x7F else _cased()
    alone = f"…{body}"
    return re.compile(
        rf"([{alone}.+\-*^,–—~:<>=/](?:"
        rf"(?<=\.)\.+|(?<=[{alone}])"
        rf"|(?<=[0-9][+\-*^])(?=[0-9-])"
        rf"|(?<=[{lower}{quotes}]\.)(?=[{upper}{quotes}])"
        rf"|(?<={letter},)(?={letter})"
        rf"|(?:(?<={letter}[:<>=/~–—\-])|(?<=[0-9][:<>=/~–—\-]))"
        rf"(?:(?<=-)-|(?<=-)--|(?<=—)—|)(?={letter})))"
    )


def _class_body(chars: Iterable[str]) -> str:
    """Returns characters as the body of a regular expression's class, neighbours as ranges."""
    runs: list[list[int]] = []
    for point in sorted(map(ord, chars)):
        if runs and point == runs[-1][1] + 1:
            runs[-1][1] = point
        else:
            runs.append([point, point])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in runs)


@cache
def _cased() -> tuple[str, str]:
    """Returns regular-expression class bodies of upper-case and of lower-case letters; uncased letters are in both."""
    upper, lower = [], []
    for point in range(0x3000):
        char = chr(point)
        if char.isalpha():
            if not char.islower():
                upper.append(char)
            if not char.isupper():
                lower.append(char)
    return "".join(upper), "".join(lower)
