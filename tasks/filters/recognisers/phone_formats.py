r"""National formats of telephone numbers, for countries where the format alone identifies them.

Each entry is a regular expression of digits and separators; whether such a number exists in the country's numbering
plan is checked afterwards. What is missing here (Spain's and India's nine and ten bare digits, Germany's and Italy's
open plans without brackets or dash) needs a label beside it. Sources: ITU-T E.123 (notation) and the national numbering
plans as Google's libphonenumber states them.

>>> [country for country, form in STRONG.items() if form.fullmatch("(415) 555-0123")]
['US', 'CA']
"""

import re

_NORTH_AMERICA = (
    r"(?:1[-. ]?)?\( ?[2-9][0-9]{2} ?\)[ .-]?[2-9][0-9]{2}(?: - |[-. ])[0-9]{4}"
    r"|(?:1[-.])?[2-9][0-9]{2}(?P<dash>[-.]| - )[2-9][0-9]{2}(?P=dash)[0-9]{4}"
    r"|[2-9][0-9]{2}/[2-9][0-9]{2}[-.][0-9]{4}"
    r"|1 [2-9][0-9]{2} [2-9][0-9]{2}[- ][0-9]{4}"
)
_FORMS = {
    "US": _NORTH_AMERICA,
    "CA": _NORTH_AMERICA,
    "GB": (
        r"\(?02[0-9]\)? ?[0-9]{4}[ -][0-9]{4}"
        r"|\(?01[0-9]{2,3}\)?[ -][0-9]{3,4}[ -]?[0-9]{3,4}"
        r"|07[0-9]{3}[ -][0-9]{3}[ -]?[0-9]{3}"
    ),
    "DE": r"\(0[1-9][0-9]{1,4}\) ?[0-9]{2,5}[ -]?[0-9]{2,5}|0[1-9][0-9]{1,4} ?/ ?[0-9]{3,5}[ -]?[0-9]{2,5}",
    "FR": r"0[1-9](?P<pair>[ .-])[0-9]{2}(?P=pair)[0-9]{2}(?P=pair)[0-9]{2}(?P=pair)[0-9]{2}",
    "NL": (
        r"\(?0[1-9][0-9]\)?[ -][0-9]{3} ?[0-9]{2} ?[0-9]{2}"
        r"|06[ -][0-9]{8}|06(?:[ -][0-9]{2}){4}|0[1-9][0-9]{2}-[0-9]{6}"
    ),
    "IT": r"0[1-9][0-9]{0,3}/[0-9]{4,8}|3[0-9]{2}/[0-9]{6,7}",
    "IN": r"0[1-9][0-9]{1,3}-[2-7][0-9]{5,7}",
    "BR": r"\(0?[1-9][0-9]\) ?(?:9 ?[0-9]{4}|[2-5][0-9]{3})[- ][0-9]{4}",
}
NO_END = "(?!x[0-9]{1,5}(?![0-9]))[0-9A-Za-z_%]"
"""Characters that cannot directly follow a number; "x12" can: the extension of an American line."""

# A number is also the next field of a line, the second of two with a bar between, behind the dash of a list, or, with
# its area code in brackets, behind an address without a space.
_OPEN = (
    r"(?:(?<![0-9A-Za-z_=/#@&%$€£+.,])(?<![^\s-]-)|(?<=[^0-9],)|(?<=[-.][0-9]{4}[,/])"
    r"|(?<=\.(?:com|org|net|edu|gov))(?=\())"
)
_CLOSE = rf"(?!{NO_END}|[.:-][0-9]|(?<![-.][0-9]{{4}})[,/][0-9]| ?[€$£])"
STRONG = {country: re.compile(f"{_OPEN}(?:{form}){_CLOSE}") for country, form in _FORMS.items()}
ANY = re.compile(f"{_OPEN}(?:{'|'.join(dict.fromkeys(_FORMS.values()))}){_CLOSE}")
"""The beginning of any of them: one search excludes most runs of digits, instead of one per country."""
