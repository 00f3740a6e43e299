r"""Candidate positions of personal data and of characters to fold: one scan for all recognisers.

Each alternative here is a cheap necessary condition of a recogniser's match: a false candidate costs half a
microsecond, a missing one misses personal data. `tests/tasks/filters/recognisers/test_places.py` compares them.

The text is searched for one set of characters, digits and what is folded. With the latter the set is a table, where
digits alone are a range, which `re` searches more slowly (2.7 against 4.2 ms per megabyte), and it is one search less.
"""

import re
from array import array
from collections.abc import Sequence
from typing import NamedTuple

SPACES = "\u00a0\u2000-\u200a\u202f\u205f\u3000"
DASHES = "\u2010-\u2013\u2212"
WIDE_DIGITS = "\uff10-\uff19"
WIDE = f"{WIDE_DIGITS}\uff21-\uff3a\uff41-\uff5a\uff20\uff0b"
WIDE_MARKS = "\uff08\uff09\uff0d\uff0e"
NO_WIDTH = "\u00ad\u200b-\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff"

GAPS = r"[ .()/\u2010-\u2013-]{0,3}+"
"""Separators between the digits of a number."""

# Written out seven times: a group that is repeated costs `re` three times as much.
_NUMBER = (
    r"(?<=[A-Za-z][A-Za-z][0-9])(?=[0-9])|(?<=[23])(?=[0-9A-Fa-f]{3}:)"
    rf"|(?=[0-9]{{0,2}}+\.[0-9]{{1,3}}+\.[0-9]{{1,3}}+\.[0-9]|{f'{GAPS}[0-9]' * 6})"
)
# A postcode of North America, behind the name of a state.
_POSTCODE = (
    r"(?=[0-9]{4}(?![0-9]))(?:(?<=[A-Za-z.)*#/>|%;\s]\s[0-9])|(?<=[A-Za-z.],\s[0-9])|(?<=[A-Za-z],[0-9]))"
    r"|(?<=[A-Z][0-9])(?=[A-Z][ -]?[0-9][A-Z][0-9])"
)
# A house in a street. Most numbers are followed by a space and a small word: only the French begin a street so, or a
# single letter that belongs to the number. (Where case is ignored, "ı" and "ſ" are "i" and "s".)
_TYPES_FR = "ru|av|b[odli]|pl|im|al|ch|qu|co|ro|sq|pa|fa|es|se|vi|ci|te"
_HOUSE = (
    r"(?<=[e.gzrm] [0-9])(?<=(?:aße|sse|tr\.|weg|atz|lee|ing|fer|amm) [0-9])"
    rf"|(?=[0-9]{{0,5}}+(?:[ ](?:[A-Z0-9 \n,;|·–ıſ]|[a-z](?![a-z])|{_TYPES_FR})|[\n,][ \nA-Z0-9]|[A-Za-z/+;|·–-]))"
    r"(?<![\w./$€£+-][0-9])(?<![0-9],[0-9])"
    r"(?:(?=[0-9]{0,4}+(?: ?[A-Za-z])?(?:[-/+][0-9]{1,4}[a-z]?)?(?: ?[,;|·–][ \n]{0,3}|[ \n]{1,3})"
    r"(?:[A-Z]{1,2}-)?[0-9]{4})"
    r"|(?=[0-9]{0,4}+(?: ?(?:bis|ter|quater))?,? (?i:ru|av|b[odl]|pl|im|al|ch|qu|co|ro|sq|pa|fa|es|se|vi|ci)[A-Za-z.])"
    r"|(?=[0-9]{0,5}+(?:-[0-9]{1,4})?[A-Za-z]?,?[ \n](?:[A-Z][\w'’. ]|[0-9]{1,3}(?:st|nd|rd|th) [A-Z])))"
)
_GLUED = (
    r"(?<=[A-Za-z=#_/.,(+-][0-9])(?<![^A-Za-z46][=#/.,-][0-9])(?=(?:[ .()/:-]{0,2}+[0-9A-Fa-f]){4})"
    r"|(?<=[0-9 )-]\n[0-9])"
)
_GLUED_BEHIND = (
    r"(?=[_A-Za-z])(?=_(?![0-9A-Za-z])|[A-Z][a-z]{2}"
    r"|(?i:fax|tel|mob|phone|cell|home|work|office|e-?mail|www|http|exp|bic))"
)
# Beside a number, or of full width: what `folding` replaces by ASCII once there is any.
_FOREIGN = (
    rf"(?<=[{WIDE}])|(?<=[{WIDE_MARKS}])(?=[0-9A-Za-z])|(?<=[{SPACES}])(?=[0-9(+])|(?<=[0-9][{SPACES}])"
    rf"|(?<=[0-9)][{DASHES}])(?=[0-9(])"
)
_HIDDEN = rf"(?<=[0-9A-Za-z@.+()-][{NO_WIDTH}])(?=[0-9A-Za-z@.+(){NO_WIDTH}-])"
_CODED = r"(?<=[%#xXu/][0-9])(?:(?<=%4)(?=0)|(?<=&#6)(?=4;)|(?<=&#[xX]4)(?=0;)|(?<=\\u0)(?=040)|(?<=wa\.me/[0-9]))"
_SPELT = r"(?<=[(\[]) ?[aA][tT] ?[)\]]"
# The first digit of several, or the last one of a number that a word is glued to.
_PLACE = re.compile(
    rf"[0-9(\[{WIDE}{WIDE_MARKS}{SPACES}{DASHES}{NO_WIDTH}](?:(?<=[0-9])"
    f"(?:(?<![0-9][0-9])(?:(?P<coded>{_CODED})|{_NUMBER}|{_POSTCODE}|{_HOUSE}|{_GLUED})|(?<=[0-9][0-9]){_GLUED_BEHIND})"
    f"|(?<![0-9])(?:(?P<spelt>{_SPELT})|(?P<foreign>{_FOREIGN})|(?P<hidden>{_HIDDEN})))"
)


class Places(NamedTuple):
    """Result of one scan of a text.

    Attributes:
        digits: where, in rising order, a number or a house may begin or a word may be glued to one.
        spelt: where a bracket opens around "at".
        coded: whether "@" may be written with digits, or a telephone number in a link.
        foreign: whether a character is to be written in ASCII.
        hidden: whether a zero-width character may be inside a word.
    """

    digits: Sequence[int]
    spelt: Sequence[int]
    coded: bool
    foreign: bool
    hidden: bool


def look(text: str) -> Places:
    """Returns the places of a text.

    >>> list(look("In 1914, of 12 men: SSN 123-45-6789").digits), look("5\u00a0Elm St.").foreign, look("a%40b.de").coded
    ([24], True, True)
    """
    digits, spelt = array("I"), array("I")  # four bytes each: a document of 16 MB may be all places
    others: set[str] = set()
    for found in _PLACE.finditer(text):
        other = found.lastgroup
        if other:
            others.add(other)
        if other is None or other == "coded":
            digits.append(found.start())
        elif other == "spelt":
            spelt.append(found.start())
    return Places(digits, spelt, "coded" in others, "foreign" in others, "hidden" in others)
