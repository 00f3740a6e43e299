r"""Postal addresses with a postcode of Brazil, Portugal, India, Mexico, Poland, Turkey, Indonesia.

Evidence is a postcode, and before it a type of street and a house number. An address begins at the street or, in India,
where numbers and names come first, at the beginning of its line or clause. `_BEFORE` characters before a postcode are
examined, and repetitions are possessive or a few characters long.

Sources: the address formats of the Universal Postal Union (S42, "Postal addressing systems in member countries"), those
of Correios (CEP), Poczta Polska (PNA) and India Post (PIN).
"""

import re
from collections.abc import Iterator, Sequence

from tasks.filters.recognisers.span import Evidence, PiiSpan

_BEFORE = 140
"""Characters before a postcode in which the street is searched."""

_UP = "A-ZÀ-ÖØ-ÞĀ-Ž"
_PLACE = rf"[{_UP}İ][\w'’-]{{1,30}}+(?:[ -][{_UP}İ][\w'’-]{{1,30}}+){{0,2}}"
POSTCODES = re.compile(
    r"[0-9](?:"
    r"(?P<BR>[0-9]{4}-[0-9]{3}(?![0-9-]))"
    rf"|(?P<PT>[0-9]{{3}}-[0-9]{{3}}(?=[ \n]+[{_UP}]))"
    rf"|(?P<PL>[0-9]-[0-9]{{3}}(?=[ \n]{_PLACE}))"
    r"|(?P<IN>(?<=[1-8])[0-9]{2} ?[0-9]{3}(?![0-9]))"
    r"|(?P<five>[0-9]{4}(?![0-9]))"
    r")"
)
"""From the first digit of a postcode, by country; "five": Mexico, Turkey or Indonesia."""

_MX_LABEL = re.compile(r"C\.? ?P\.?:? ?\Z")

_NUMBERED = r"[^\n0-9]{3,60}+[0-9]{1,5}"
_INDIAN_TYPES = (
    r"Road|Rd|Street|St|Marg|Nagar|Colony|Lane|Sector|Layout|Society|Chowk|Cross|Block|Phase|Enclave|Vihar|Bazaa?r|Gali"
    r"|Salai|Puram|Circle|Estate|Complex|Plot|Floor|मार्ग|रोड|सड़क|नगर|गली|कॉलोनी|सेक्टर|चौक|बाज़ार|विहार"
)
# For each country, a street with its number; the last one in the window counts. Of India only the type of street.
_STREETS = {
    "BR": re.compile(
        rf"(?<!\w)(?:Rua|R\.|Avenida|Av\.?|Travessa|Tv\.|Praça|Pça\.?|Alameda|Al\.|Rodovia|Rod\.|Estrada|Estr\.|Largo)"
        rf" (?:{_NUMBERED}|[^\n0-9]{{3,60}}[, ][sS]/[nN])"
    ),
    "PT": re.compile(
        rf"(?<!\w)(?:Rua|R\.|Avenida|Av\.?|Travessa|Praça|Praceta|Largo|Alameda|Estrada|Calçada|Quinta) {_NUMBERED}"
    ),
    "PL": re.compile(rf"(?<!\w)(?:[Uu]l\.|[Aa]l\.|[Pp]l\.|[Oo]s\.|ulica|aleja) ?{_NUMBERED}"),
    "IN": re.compile(rf"(?<!\w)(?:{_INDIAN_TYPES})(?![A-Za-z])"),
    "MX": re.compile(
        r"(?<!\w)(?:Av\.?|Avenida|Calle|C\.|Calz\.|Calzada|Blvd\.|Boulevard|Paseo|Carretera|Prol\.|Privada|Andador)"
        rf" {_NUMBERED}"
    ),
    "TR": re.compile(
        rf"(?<!\w)(?:[{_UP}İ][\w'’.]{{1,30}}+[ ]){{1,5}}"
        r"(?:Cad(?:desi|\.)|Sok(?:ak|ağı|\.)|Sk\.|Bulv(?:arı|\.)|Blv\.|Mah(?:allesi|\.))"
        r"[^\n:;]{0,50}?No ?[:.]? ?[0-9]{1,4}"
    ),
    "ID": re.compile(rf"(?<!\w)(?:Jl\.?|Jln\.?|Jalan|Gg\.|Gang) (?=[A-Z]){_NUMBERED}"),
}
# A part of every street of the countries with unremarkable postcodes, which is searched first.
_MARKS = {"TR": ("No", "no"), "ID": ("Jl", "Jalan", "Jln", "Gg.", "Gang"), "MX": ("C.P", "C. P", "CP")}
# What stands between the street and the postcode: names, numbers, marks; no end of a sentence, at most two line ends.
_BETWEEN = re.compile(r"(?:(?!\n\n|[.!?] [^\W\d_]{2,}+ [a-z]{2,}+ )[\w\s\u0900-\u097f,.:;()/'’º°ª#&|–-]){0,110}+")
_MOST_LINES = 3
_TOWN_AFTER = {
    "PT": re.compile(rf"[ \n]+{_PLACE}"),
    "PL": re.compile(rf"[ \n]{_PLACE}"),
    "TR": re.compile(rf"[ ,]{{1,2}}{_PLACE}(?: ?/ ?{_PLACE})?"),
}
# A lower-case word before the code, or behind it where the code is a bare number, shows a sentence.
_WORD_BEFORE = re.compile(r"(\w{1,30})[^\w]{0,5}\Z")
_WORD_BEHIND = re.compile(r"[ \t]([^\W\d_]{2,30})")
_CODE_WORDS = frozenset(("cep", "kod", "pocztowy", "kode", "pos", "kodepos", "pin", "pincode", "code"))
# fmt: off
_LINKS = frozenset((
    "and", "or", "on", "in", "at", "by", "for", "from", "with", "to", "is", "was", "are", "india", "tel", "phone", "ph",
    "mob", "mobile", "email", "web", "www", "https", "http", "contact", "call", "dan", "di", "atau", "pada", "untuk",
    "telp", "hp", "indonesia",
))
# fmt: on
_VERBS = re.compile(r"(?<!\w)(?:é|foi|era|são|um|uma|que|não|tem|to|jest|był|była|było|się|który|która)(?!\w)")
_NAMED = frozenset(("BR", "PL", "ID", "IN"))
"""Countries whose codes stand behind a name, a number or a label of the code."""

_INDIAN_TOWN = re.compile(r"(?:[A-Za-z]{3}|[\u0900-\u097f])[).,]?[ –-]{1,3}\Z")
# In India: where the address begins, after a line end, a label or a sentence.
_CLAUSE = re.compile(r"\n|[:：→•|·] ?|[a-z]{4}\. |(?<!\w)(?:at|in|address|office|is|पता|पता है)[ ]")


def find_by_postcode(text: str, starts: Sequence[int], countries: Sequence[str]) -> Iterator[PiiSpan]:
    """Yields the addresses whose postcode has its first digit at one of the ascending `starts`.

    >>> text = "Venha: Rua das Flores, 123 - Centro, São Paulo - SP, 01234-567"
    >>> [text[a:b] for _, a, b, _ in find_by_postcode(text, [text.index("01234")], ["BR"])]
    ['Rua das Flores, 123 - Centro, São Paulo - SP, 01234-567']
    """
    floor = 0  # no address extends beyond the previous postcode
    for start in starts:
        code = POSTCODES.match(text, start)
        if code is None or text[max(0, start - 1) : start].isdigit():
            continue
        form = str(code.lastgroup)
        for country in ("MX", "TR", "ID") if form == "five" else (form,):
            first = _street_start(text, max(floor, start - _BEFORE), start, country) if country in countries else None
            if first is not None and not _is_sentence(text, first, start, code.end(), country):
                town = _TOWN_AFTER[country].match(text, code.end()) if country in _TOWN_AFTER else None
                floor = town.end() if town else code.end()
                yield PiiSpan("address", first, floor, Evidence.PATTERN)
                break


def _street_start(text: str, first: int, end: int, country: str) -> int | None:
    """Returns where the street of the postcode at `end` begins; None if there is none after `first`."""
    window = text[first:end]
    if country in _MARKS and not any(mark in window for mark in _MARKS[country]):
        return None
    if country == "MX" and not _MX_LABEL.search(window):
        return None
    street = next(iter([*_STREETS[country].finditer(text, first, end)][::-1]), None)
    if street is None or _BETWEEN.fullmatch(text, street.end(), end) is None:
        return None
    start = street.start()
    if country == "IN":
        breaks = [*_CLAUSE.finditer(text, first, start)]
        start = breaks[-1].end() if breaks else first
        if start == first and first and text[first - 1].isalnum():
            return None
        while not text[start].isalnum():
            start += 1
        if not any(map(str.isdigit, text[start:end])) or not _INDIAN_TOWN.search(text, first, end):
            return None
    return start if text.count("\n", start, end) <= _MOST_LINES else None


def _is_sentence(text: str, first: int, start: int, end: int, country: str) -> bool:
    """Returns whether the number text[start:end] behind a street at `first` is an amount in a sentence."""
    if country not in _NAMED:
        return False
    before = _WORD_BEFORE.search(text, first, start)
    if before and len(before[1]) > 1 and before[1].isalpha() and before[1].islower() and before[1] not in _CODE_WORDS:
        return True
    if country in ("BR", "PL"):
        return _VERBS.search(text, first, start) is not None
    behind = _WORD_BEHIND.match(text, end)
    return behind is not None and behind[1].islower() and behind[1] not in _LINKS
