r"""Identity and tax numbers of persons, by country: format, check digits (`check_digits`), label.

A check digit alone excludes nine of ten numbers, and nearly every page has more than ten. So a number needs a label
of its kind in front ("PESEL", "BSN", "身份证号"), unless its printed form and its checks together occur by chance less
than about once in ten thousand numbers of that length (`alone`): with a date, a region and a check digit (China, 18
digits), with letters in fixed places (codice fiscale, CURP, henkilötunnus), with two check digits and its own
punctuation (CPF), or with a check of two digits (NIR, Belgium, SNILS).

The forms are those of documents and forms of the countries; separators are optional only with a label.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tasks.filters.recognisers import check_digits as check
from tasks.filters.recognisers.numbers import luhn
from tasks.filters.recognisers.span import Evidence, PiiSpan, window_start


class Scheme(NamedTuple):
    """A kind of national number.

    Attributes:
        countries: ISO 3166 codes, separated by spaces.
        form: the number with its separators, as a regular expression without groups.
        check: whether the characters without separators are valid.
        label: its labels in lower case, as a regular expression without groups; "" if it needs none.
        alone: the form that needs no label; "" if there is none.
        evidence: evidence of a number with a label.
        capitals: a label that counts only in capitals, because it is also a name; "" if there is none.
    """

    countries: str
    form: str
    check: check.Check
    label: str
    alone: str = ""
    evidence: Evidence = Evidence.CHECKSUM
    capitals: str = ""


_DATE = "[0-9]{6}"
_CF = "[A-Z]{6}[0-9]{2}[A-EHLMPRST][0-9]{2}[A-Z][0-9LMNP-V]{3}[A-Z]"
_CURP = "[A-Z]{4}[0-9]{6}[HMX][A-Z]{5}[0-9A-Z][0-9]"
_HETU = "[0-3][0-9][01][0-9]{3}[-A-FU-Y][0-9]{3}[0-9A-FHJ-NPR-Y]"
# Departments 2A and 2B (Corsica) are missed: their letter is no part of a run of digits.
_NIR = "[1-47-8] [0-9]{2} (?:[0-3][0-9]|[5-9][0-9]) [0-9]{2} [0-9]{3} [0-9]{3} ?[/-]? ?[0-9]{2}"
_CHINA = "[1-8][0-9]{5}(?:19|20)[0-9]{2}[01][0-9][0-3][0-9]{4}[0-9Xx]"
# Between a label that is short or also a word and its number: the rest of its word, "number", marks.
_AT = (
    r"(?=[^\W\d_]{0,16}[\W_]{0,3}(?:(?:card|kaart|number|numbers|numero|número|numéro|num|no|nos|nr|nummer|numer|n|id"
    r"|is|szám|kod|anda|saya)(?![^\W\d_])[\W_]{0,4}){0,3}\Z)"
)
_IDENTITY = r"identity (?:card|number|no)|national id|id n(?:o|um|r)|personal (?:identification|identity) (?:number|no)"

SCHEMES = (
    Scheme(
        "ES",
        r"(?:[XYZ][ -]?)?(?:[0-9]{7,8}|[0-9]{1,2}\.[0-9]{3}\.[0-9]{3})[ -]?[A-Z]",
        check.spain,
        r"dni\b|nie\b|nif\b|d\.n\.i|n\.i\.[ef]|documento nacional",
    ),
    Scheme("PT", "[1-4][0-9]{2} ?[0-9]{3} ?[0-9]{3}", check.portugal, rf"nif\b{_AT}|contribuinte"),
    Scheme(
        "FR",
        f"{_NIR}|[1-47-8][0-9]{{14}}",
        check.france,
        r"sécurité sociale|sécu\b|nir\b|insee\b|carte vitale|n° ?ss\b",
        _NIR,
    ),
    Scheme("IT", _CF, check.italy, "", _CF),
    Scheme(
        "DE",
        "[1-9][0-9](?: ?[0-9]{3}){3}",
        check.germany,
        r"steuer-?id|steueridentifik|steuerliche id|identifikationsnummer|idnr|id-nr",
    ),
    Scheme(
        "NL",
        r"[0-9]{4}[ .]?[0-9]{2}[ .]?[0-9]{3}|[0-9]{3}[ .][0-9]{3}[ .][0-9]{3}",
        check.netherlands,
        rf"bsn(?:-?nummer)?\b{_AT}|burgerservice|sofinummer",
    ),
    Scheme(
        "BE",
        r"[0-9]{2}\.?[0-9]{2}\.?[0-9]{2}[ -]?[0-9]{3}[ .-]?[0-9]{2}",
        check.belgium,
        r"rijksregister|registre national|numéro national|nationaal nummer|insz|niss",
        r"[0-9]{2}\.[0-9]{2}\.[0-9]{2}-[0-9]{3}\.[0-9]{2}",
    ),
    Scheme(
        "SE",
        f"(?:19|20)?{_DATE}[- ]?[0-9]{{4}}",
        check.sweden,
        r"person(?:al)?nummer|personnr|pers\.? ?nr|samordningsn",
    ),
    Scheme("NO", f"{_DATE} ?[0-9]{{5}}", check.norway, r"fødselsn|foedselsn|personnummer|fnr\b|d-nummer"),
    Scheme("DK", f"{_DATE}[- ]?[0-9]{{4}}", check.denmark, r"cpr\b|cpr-|personnummer", evidence=Evidence.PATTERN),
    Scheme("FI", _HETU, check.finland, "hetu|henkilötunnus", _HETU),
    Scheme("PL", "[0-9]{11}", check.poland, f"pesel{_AT}"),
    Scheme("CZ SK", f"{_DATE}/?[0-9]{{4}}", check.czechia, r"rodn[ée] ?č|r\.? ?č\.|rč\b|birth n"),
    Scheme("RO", f"[1-9]{_DATE}[0-9]{{6}}", check.romania, rf"cnp\b{_AT}|c\.n\.p|cod numeric"),
    Scheme("BG", f"{_DATE}[0-9]{{4}}", check.bulgaria, r"егн\b|egn\b|единен граждански"),
    Scheme("GR", f"{_DATE}[0-9]{{5}}", check.greece, r"αμκα|α\.μ\.κ\.α|amka"),
    Scheme("HU", "[0-9]{3}[ -]?[0-9]{3}[ -]?[0-9]{3}", check.hungary, rf"taj\b{_AT}|taj-"),
    Scheme("HR", "[0-9]{11}", check.mod_11_10, rf"oib\b{_AT}"),
    Scheme(
        "CH",
        r"756[ .]?[0-9]{4}[ .]?[0-9]{4}[ .]?[0-9]{2}",
        check.switzerland,
        rf"ahv|avs\b{_AT}",
        r"756\.[0-9]{4}\.[0-9]{4}\.[0-9]{2}",
    ),
    Scheme(
        "AT",
        "[1-9][0-9]{3}[ /-]?[0-3][0-9][01][0-9]{3}",
        check.austria,
        "svnr|sv-?nummer|sv-nr|sozialversicherungs|vsnr",
    ),
    Scheme("IE", "[0-9]{7} ?[A-W][A-IW]?", check.ireland, rf"ppsn?\b{_AT}|personal public service"),
    Scheme("GB", "[0-9]{3}[ -]?[0-9]{3}[ -]?[0-9]{4}", check.britain, rf"nhs\b{_AT}"),
    Scheme("TR", "[1-9][0-9]{10}", check.turkey, r"kimlik|tckn|t\.?c\.? ?n(?:o|um)"),
    Scheme("RU BY KZ", "[0-9]{12}", check.russia, "инн\\b"),
    Scheme(
        "RU",
        "[0-9]{3}-[0-9]{3}-[0-9]{3}[ -][0-9]{2}|[0-9]{11}",
        check.russia_pension,
        "снилс",
        "[0-9]{3}-[0-9]{3}-[0-9]{3} [0-9]{2}",
    ),
    Scheme("UA", "[0-9]{10}", check.ukraine, r"рнокпп|іпн\b|ідентифікаційний (?:номер|код)|ипн\b"),
    Scheme(
        "BR",
        r"[0-9]{3}\.?[0-9]{3}\.?[0-9]{3}-?[0-9]{2}",
        check.brazil,
        r"cpf\b|c\.p\.f",
        r"[0-9]{3}\.[0-9]{3}\.[0-9]{3}-[0-9]{2}",
    ),
    Scheme(
        "CL",
        r"[0-9]{1,2}\.?[0-9]{3}\.?[0-9]{3}-?[0-9Kk]",
        check.chile,
        r"rut\b|run(?=[ :.]{0,2}n?[°º:])|r\.u\.[tn]|cédula",
    ),
    Scheme("AR", "[0-9]{2}-?[0-9]{8}-?[0-9]", check.argentina, rf"cui[lt]\b{_AT}"),
    Scheme("MX", _CURP, check.mexico, "", _CURP),
    Scheme("CN", _CHINA, check.china, "", _CHINA),
    Scheme("TW", "[A-Z][1289][0-9]{8}", check.taiwan, "身[分份][證证]|統一證號|居留證"),
    Scheme("HK", r"[A-Z]{1,2}[0-9]{6} ?\([0-9A]\)", check.hong_kong, "身[份分][證证]|hkid|identity card"),
    Scheme(
        "KR", f"{_DATE} ?- ?[1-8][0-9]{{6}}", check.dated, "주민(?:등록)?번호|외국인등록", evidence=Evidence.PATTERN
    ),
    Scheme("KR", f"{_DATE}-?[1-8][0-9]{{6}}", check.korea, "주민|resident registration"),
    Scheme("JP", "[0-9]{4}[ -]?[0-9]{4}[ -]?[0-9]{4}", check.japan, f"マイナンバー|個人番号|my number{_AT}"),
    Scheme(
        "IN",
        "[2-9][0-9]{3}[ -]?[0-9]{4}[ -]?[0-9]{4}",
        check.verhoeff,
        f"(?:aadh?aa?r|adhaar|uidai){_AT}|आधार|ಆಧಾರ್|ஆதார்",
    ),
    Scheme("SG", "[STFGM][0-9]{7}[A-Z]", check.singapore, rf"nric|fin n|{_IDENTITY}"),
    Scheme(
        "MY",
        f"{_DATE}-[0-9]{{2}}-[0-9]{{4}}|{_DATE}[0-9]{{6}}",
        check.dated,
        r"mykad|nric|kad pengenalan|no\.? k/?p|ic n(?:o|um)",
        evidence=Evidence.PATTERN,
    ),
    Scheme(
        "TH",
        "[1-8][ -]?[0-9]{4}[ -]?[0-9]{5}[ -]?[0-9]{2}[ -]?[0-9]",
        check.thailand,
        "บัตรประชาชน|เลขประจำตัว",
        "[1-8]-[0-9]{4}-[0-9]{5}-[0-9]{2}-[0-9]",
    ),
    Scheme(
        "ID",
        "[1-9][0-9]{15}",
        check.indonesia,
        rf"nik\b{_AT}|ktp\b{_AT}|nomor induk",
        evidence=Evidence.PATTERN,
        capitals="NIK",
    ),
    Scheme("ZA", f"{_DATE} ?[0-9]{{4}} ?[01][0-9]{{2}}", check.south_africa, rf"id:|i\.d\. n|rsa id|sa id|{_IDENTITY}"),
    Scheme("IL", "[0-9]{8}-?[0-9]", check.israel, 'ת\\.?["״]?ז|תעודת זהות|מספר זהות|teudat'),
    Scheme("SA", "[12][0-9]{9}", luhn, "رقم الهوية|الهوية الوطنية|إقامة|iqama|saudi id"),
    Scheme("AE", "784-?[0-9]{4}-?[0-9]{7}-?[0-9]", luhn, "emirates id|الهوية", "784-(?:19|20)[0-9]{2}-[0-9]{7}-[0-9]"),
    Scheme("IR", "[0-9]{3}-?[0-9]{6}-?[0-9]", check.iran, "کد ?ملی|شماره ملی|كد ملي"),
    Scheme("PK", "[1-7][0-9]{4}-[0-9]{7}-[0-9]", check.none, "cnic|nicop|شناختی", evidence=Evidence.PATTERN),
    Scheme("AU", "[0-9]{3} ?[0-9]{3} ?[0-9]{3}", check.australia, rf"tfn\b{_AT}|tax file"),
    Scheme("CA", "[1-79][0-9]{2}[ -]?[0-9]{3}[ -]?[0-9]{3}", luhn, r"sin(?= ?(?:no|num|#|:))|social insurance"),
)
"""The schemes; US social security numbers are found by `numbers.find_ssns`."""

_OPEN = r"(?<![0-9A-Za-z_])(?<![0-9A-Za-z][.,/+-])"
_CLOSE = r"(?![0-9A-Za-z_]|[./-][0-9A-Za-z])"
_ALONE = [scheme for scheme in SCHEMES if scheme.alone]
_ALONE_FORM = re.compile(
    _OPEN + "(?:" + "|".join(f"(?P<s{at}>{scheme.alone})" for at, scheme in enumerate(_ALONE)) + ")" + _CLOSE
)
_FORMS = {scheme: re.compile(f"{_OPEN}(?:{scheme.form}){_CLOSE}") for scheme in SCHEMES}
# A label begins a word, except in scripts without spaces or with prefixes.
_BEGIN = r"(?:(?<![^\W\d_])|(?=[\u0590-\uffff]))"
_LABELS = {scheme: re.compile(scheme.label) for scheme in SCHEMES if scheme.label}
_ANY_LABEL = re.compile(_BEGIN + "(?:" + "|".join(dict.fromkeys(scheme.label for scheme in _LABELS)) + ")")
_GAPS = re.compile(r"[ .()/+-]")
_NO_DIGITS = re.compile("[^0-9]*+")
_LETTERS, _LONGEST = 6, 28
"""Letters before the first digit of a number, at most (codice fiscale), and characters from it to the end."""
_SHORTEST, _TABLE = 8, 80
"""Characters from the first digit on of a number, and of a run of digits that is a table."""
_SHORTEST_LABEL = 3


def find_ids(text: str, start: int, end: int, countries: Sequence[str]) -> Iterator[PiiSpan]:
    """Yields national numbers in text[start:end], whose first digit is at `start`.

    >>> text = "PESEL 44051401359, nr 44051401359; CPF 111.444.777-35"
    >>> [text[a:b] for _, a, b, _ in find_ids(text, text.index("4"), len(text), ["PL", "BR"])]
    ['111.444.777-35', '44051401359']
    """
    if end - start >= _SHORTEST:
        for match in _ALONE_FORM.finditer(text, max(0, start - _LETTERS), end):
            scheme = _ALONE[int(str(match.lastgroup)[1:])]
            if _is_valid(scheme, match.group(), countries):
                yield PiiSpan("national_id", match.start(), match.end(), Evidence.CHECKSUM)
    for scheme in _labeled(text, start) if _SHORTEST <= end - start <= _TABLE else ():
        found = _FORMS[scheme].search(text, max(0, start - _LETTERS), min(end, start + _LONGEST))
        if found and found.start() <= start and _is_valid(scheme, found.group(), countries):
            yield PiiSpan("national_id", found.start(), found.end(), scheme.evidence)


def _is_valid(scheme: Scheme, printed: str, countries: Sequence[str]) -> bool:
    return any(country in countries for country in scheme.countries.split()) and has_valid_digits(scheme, printed)


def has_valid_digits(scheme: Scheme, printed: str) -> bool:
    """Returns whether a number of the scheme's form has valid check digits."""
    # The mark between date and number of Finland is the century.
    number = printed if scheme.check is check.finland else _GAPS.sub("", printed)
    return scheme.check(number.upper())


def _labeled(text: str, start: int) -> Iterator[Scheme]:
    """Yields the schemes of the last label before `start`, if no other number stands between them."""
    first = window_start(text, start)
    gap = _NO_DIGITS.match(text[first:start][::-1])
    first = start - gap.end() if gap else start
    if start - first < _SHORTEST_LABEL:
        return
    before = max(0, first - 1)  # shows whether the window begins inside a word
    window = (printed := text[before:start]).lower()
    labels = [*_ANY_LABEL.finditer(window, first - before)]
    if labels:
        at = labels[-1].start()
        for scheme, label in _LABELS.items():
            name = scheme.capitals
            if name and window.startswith(name.lower(), at) and not printed.startswith(name, at):
                continue
            if label.match(window, at):
                yield scheme
