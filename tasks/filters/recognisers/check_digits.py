"""Check digits of national identity and tax numbers.

A function takes the number without separators, in capital letters, and returns whether its check digits are valid; the
format has been matched before. Each names its source; the algorithms of ISO/IEC 7064 and Verhoeff's are shared.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate

from tasks.filters.recognisers.numbers import luhn

Check = Callable[[str], bool]


def weighted(digits: str, weights: Sequence[int]) -> int:
    """Returns the sum of the products of digits and weights, for as many as there are weights."""
    return sum(int(digit) * weight for digit, weight in zip(digits, weights, strict=False))


def varied(digits: str) -> bool:
    """Returns whether a number has different digits; one digit repeated satisfies many checks."""
    return len(set(digits)) > 1


def rest_of_11(digits: str, weights: Sequence[int]) -> int:
    """Returns the weighted sum modulo 11, 0 in place of 10."""
    return weighted(digits, weights) % 11 % 10


def is_date(digits: str, order: str = "ymd", months: Sequence[int] = (0,), days: Sequence[int] = (0,)) -> bool:
    """Returns whether six digits are a date of `order`, with two digits of the year.

    Args:
        digits: the digits; the rest is ignored.
        order: "ymd" or "dmy".
        months: what is added to the month, to mark a century or a sex.
        days: what is added to the day.

    >>> is_date("850230"), is_date("850228"), is_date("855228", months=(0, 50))
    (False, True, True)
    """
    first, month, last = int(digits[:2]), int(digits[2:4]), int(digits[4:6])
    day = last if order == "ymd" else first
    months_of = [month - offset for offset in months if 1 <= month - offset <= 12]
    longest = {2: 29, 4: 30, 6: 30, 9: 30, 11: 30}
    return any(1 <= day - offset <= longest.get(number, 31) for number in months_of for offset in days)


def mod_11_10(digits: str) -> bool:
    """Returns whether the last digit is valid (ISO/IEC 7064, MOD 11,10): Germany's IdNr, Croatia's OIB."""
    *_, rest = accumulate(map(int, digits[:-1]), lambda held, digit: ((held + digit) % 10 or 10) * 2 % 11, initial=10)
    return (rest + int(digits[-1])) % 10 == 1


_TURNS = "1576283094 5803796142 8916043527 9453126870 4286573901 2793806415 7046913258"
# Products in the dihedral group of order ten.
_PRODUCT = [[(a + b) % 5 + 5 * (b > 4) if a < 5 else (a - b) % 5 + 5 * (b < 5) for b in range(10)] for a in range(10)]
_VERHOEFF = [list(range(10)), *([int(digit) for digit in row] for row in _TURNS.split())]


def verhoeff(digits: str) -> bool:
    """Returns whether the last digit is valid (J. Verhoeff, "Error Detecting Decimal Codes", 1969): India's Aadhaar.

    >>> verhoeff("2363"), verhoeff("2364")
    (True, False)
    """
    held = 0
    for place, digit in enumerate(reversed(digits)):
        held = _PRODUCT[held][_VERHOEFF[place % 8][int(digit)]]
    return held == 0


def spain(number: str) -> bool:
    """DNI and NIE: the letter by the remainder of 23 (Ministry of the Interior, "Cálculo del dígito")."""
    digits = number[:-1].translate(str.maketrans("XYZ", "012"))
    return number[-1] == "TRWAGMYFPDXBNJZSQVHLCKE"[int(digits) % 23]


def portugal(number: str) -> bool:
    """NIF of persons: weights 9 to 2, modulo 11 (Decreto-Lei 14/2013)."""
    return number[0] in "1234" and (11 - weighted(number, range(9, 1, -1)) % 11) % 11 % 10 == int(number[8])


def france(number: str) -> bool:
    """NIR: 97 less the remainder of the first 13 digits (INSEE, "numéro d'inscription au répertoire")."""
    return 97 - int(number[:13]) % 97 == int(number[13:])


_ODD = dict(zip("0123456789ABCDEFGHIJ", (1, 0, 5, 7, 9, 13, 15, 17, 19, 21) * 2, strict=True)) | dict(
    zip("KLMNOPQRSTUVWXYZ", (2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23), strict=True)
)


def italy(number: str) -> bool:
    """Codice fiscale: the letter by odd and even values modulo 26 (Decreto ministeriale 12 March 1974)."""
    even = sum(ord(mark) - (48 if mark.isdigit() else 65) for mark in number[1:15:2])
    return (even + sum(_ODD[mark] for mark in number[:15:2])) % 26 == ord(number[15]) - 65


def germany(number: str) -> bool:
    """IdNr: ISO/IEC 7064, and one digit twice or three times (Bundeszentralamt für Steuern, "Aufbau der IdNr")."""
    counts = sorted(number.count(digit, 0, 10) for digit in set(number[:10]))
    return counts[-1] in (2, 3) and counts[-2] == 1 and mod_11_10(number)


def netherlands(number: str) -> bool:
    """BSN: the eleven test with weights 9 to 2 and -1 (Rijksdienst voor Identiteitsgegevens, "Logisch ontwerp BSN")."""
    return weighted(number, (*range(9, 1, -1), -1)) % 11 == 0 and varied(number)


def belgium(number: str) -> bool:
    """National number: 97 less the remainder, with a 2 before it since 2000 (Royal Decree of 3 April 1984)."""
    checks = (97 - int(prefix + number[:9]) % 97 for prefix in ("", "2"))
    return is_date(number, months=(0, 20, 40)) and int(number[9:]) in checks


def sweden(number: str) -> bool:
    """Personnummer: Luhn of the last ten digits; 60 is added to the day without one (Skatteverket, SKV 704)."""
    digits = number[-10:]
    return is_date(digits, days=(0, 60)) and luhn(digits)


def norway(number: str) -> bool:
    """Fødselsnummer: two check digits, modulo 11; 40 is added to the day of a D-number (Skatteetaten)."""
    first = weighted(number, (3, 7, 6, 1, 8, 9, 4, 5, 2, 1))
    second = weighted(number, (5, 4, 3, 2, 7, 6, 5, 4, 3, 2, 1))
    return is_date(number, "dmy", days=(0, 40)) and first % 11 == second % 11 == 0


def denmark(number: str) -> bool:
    """CPR: a date only; numbers since 2007 need no check digit (CPR-kontoret, "Personnumre uden kontrolciffer")."""
    return is_date(number, "dmy")


def finland(number: str) -> bool:
    """Henkilötunnus: the character by the remainder of 31 (Digi- ja väestötietovirasto)."""
    digits = number[:6] + number[7:10]
    return is_date(digits, "dmy") and number[10] == "0123456789ABCDEFHJKLMNPRSTUVWXY"[int(digits) % 31]


def poland(number: str) -> bool:
    """PESEL: weights 1, 3, 7, 9, modulo 10 (Act of 24 September 2010 on registration of the population)."""
    right = weighted(number, (1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1)) % 10 == 0
    return right and is_date(number, months=(0, 20, 40, 60, 80))


def czechia(number: str) -> bool:
    """Rodné číslo: divisible by 11; 50 is added to the month of women, 20 to series that are full (Act 133/2000)."""
    divides = int(number) % 11 == 0 or (int(number[:9]) % 11 == 10 and number[9] == "0")
    return divides and is_date(number, months=(0, 20, 50, 70))


def romania(number: str) -> bool:
    """CNP: weights 279146358279, modulo 11, 10 becomes 1 (Romania, Law 105/1996)."""
    rest = weighted(number, (2, 7, 9, 1, 4, 6, 3, 5, 8, 2, 7, 9)) % 11
    return is_date(number[1:]) and int(number[12]) == (1 if rest == 10 else rest)


def bulgaria(number: str) -> bool:
    """EGN: weights 2, 4, 8, 5, 10, 9, 7, 3, 6, modulo 11 (Bulgaria, GRAO, Ordinance RD-02-20-9)."""
    check = rest_of_11(number, (2, 4, 8, 5, 10, 9, 7, 3, 6))
    return is_date(number, months=(0, 20, 40)) and check == int(number[9])


def greece(number: str) -> bool:
    """AMKA: a date and Luhn (IDIKA)."""
    return is_date(number, "dmy") and luhn(number)


def hungary(number: str) -> bool:
    """TAJ: weights 3 and 7, modulo 10 (Hungary, Act XX of 1996)."""
    return weighted(number, (3, 7) * 4) % 10 == int(number[8])


def switzerland(number: str) -> bool:
    """AHV number: EAN-13 (Zentrale Ausgleichsstelle, "Navs13")."""
    return weighted(number, (1, 3) * 6 + (1,)) % 10 == 0


def austria(number: str) -> bool:
    """Sozialversicherungsnummer: weights 3 7 9 0 5 8 4 2 1 6, modulo 11 (Dachverband der Sozialversicherungsträger)."""
    check = weighted(number, (3, 7, 9, 0, 5, 8, 4, 2, 1, 6)) % 11
    return is_date(number[4:], "dmy", months=(0, 1, 2, 3)) and check == int(number[3])


def ireland(number: str) -> bool:
    """PPS number: the letter by weights 8 to 2, and 9 of the second letter, modulo 23 (Dept. of Social Protection)."""
    second = ord(number[8]) - 64 if len(number) == 9 and number[8] != "W" else 0
    return "WABCDEFGHIJKLMNOPQRSTUV"[(weighted(number[:7], range(8, 1, -1)) + 9 * second) % 23] == number[7]


def britain(number: str) -> bool:
    """NHS number: weights 10 to 2, modulo 11 (NHS Data Model and Dictionary, "NHS NUMBER")."""
    return weighted(number, (*range(10, 1, -1), 1)) % 11 == 0 and varied(number)


def turkey(number: str) -> bool:
    """T.C. kimlik: the tenth digit of odd and even places, the eleventh of the sum (Nüfus ve Vatandaşlık İşleri)."""
    values = [int(digit) for digit in number]
    tenth = (7 * sum(values[0:9:2]) - sum(values[1:8:2])) % 10
    return tenth == values[9] and sum(values[:10]) % 10 == values[10]


def russia(number: str) -> bool:
    """INN of persons: two check digits, modulo 11 (Federal Tax Service, order MMV-7-6/435)."""
    first = rest_of_11(number, (7, 2, 4, 10, 3, 5, 9, 4, 6, 8))
    second = rest_of_11(number, (3, 7, 2, 4, 10, 3, 5, 9, 4, 6, 8))
    return first == int(number[10]) and second == int(number[11])


def russia_pension(number: str) -> bool:
    """SNILS: weights 9 to 1, modulo 101 (Pension Fund, resolution 192p of 2006)."""
    return weighted(number, range(9, 0, -1)) % 101 % 100 == int(number[9:])


def ukraine(number: str) -> bool:
    """RNOKPP: weights -1, 5, 7, 9, 4, 6, 10, 5, 7, modulo 11 (State Tax Service, order 822 of 2017)."""
    return rest_of_11(number, (-1, 5, 7, 9, 4, 6, 10, 5, 7)) == int(number[9])


def brazil(number: str) -> bool:
    """CPF: two check digits, modulo 11 (Receita Federal)."""
    firsts = (weighted(number, range(10, 1, -1)), weighted(number, range(11, 1, -1)))
    return varied(number) and all(rest * 10 % 11 % 10 == int(number[9 + at]) for at, rest in enumerate(firsts))


def chile(number: str) -> bool:
    """RUN: modulo 11 with weights 2 to 7 from the right; those of companies are higher (Registro Civil)."""
    digits = number[:-1]
    rest = -weighted(digits[::-1], (2, 3, 4, 5, 6, 7, 2, 3)) % 11
    return int(digits) < 50_000_000 and number[-1] == "0123456789K"[rest]


def argentina(number: str) -> bool:
    """CUIL of persons: weights 5 4 3 2 7 6 5 4 3 2, modulo 11 (ANSES)."""
    rest = -weighted(number, (5, 4, 3, 2, 7, 6, 5, 4, 3, 2)) % 11
    return number[:2] in ("20", "23", "24", "27") and int(number[10]) == min(rest, 9)


_CURP = "0123456789ABCDEFGHIJKLMNÑOPQRSTUVWXYZ"


def mexico(number: str) -> bool:
    """CURP: weights 18 to 2, modulo 10 (RENAPO, "Instructivo normativo")."""
    total = sum(_CURP.index(mark) * weight for mark, weight in zip(number[:17], range(18, 1, -1), strict=True))
    return is_date(number[4:]) and -total % 10 == int(number[17])


def china(number: str) -> bool:
    """Resident identity number: ISO/IEC 7064 MOD 11-2 (GB 11643-1999), with a date and the region of GB/T 2260."""
    total = sum(int(digit) * pow(2, 17 - place, 11) for place, digit in enumerate(number[:17]))
    region, year = int(number[:2]), int(number[6:10])
    is_known = 11 <= region <= 82 and 1900 <= year <= 2099
    return is_known and is_date(number[8:]) and "10X98765432"[total % 11] == number[17]


_TAIWAN = "ABCDEFGHJKLMNPQRSTUVXYWZIO"


def taiwan(number: str) -> bool:
    """Identity card: the letter is a number from 10 on, weights 1, 9 to 1, modulo 10 (Household Registration)."""
    letter = _TAIWAN.index(number[0]) + 10
    return (letter // 10 + letter % 10 * 9 + weighted(number[1:], (8, 7, 6, 5, 4, 3, 2, 1, 1))) % 10 == 0


def hong_kong(number: str) -> bool:
    """Identity card: weights 9 to 1, a blank is 36, modulo 11 (Immigration Department)."""
    marks = number.rjust(9)
    values = [36 if mark == " " else int(mark) if mark.isdigit() else ord(mark) - 55 for mark in marks]
    return sum(value * weight for value, weight in zip(values, range(9, 0, -1), strict=True)) % 11 == 0


def korea(number: str) -> bool:
    """Resident registration number, until 2020: weights 2 to 9 and 2 to 5, modulo 11 (Ministry of the Interior)."""
    rest = (11 - weighted(number, (2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 5)) % 11) % 10
    # Foreigners' have been issued with and without an addition of 2.
    return is_date(number) and int(number[12]) in ((rest, (rest + 2) % 10) if number[6] in "5678" else (rest,))


def japan(number: str) -> bool:
    """My Number: weights 6 to 2 and 7 to 2, modulo 11 (ordinance 85 of 2014, article 5)."""
    rest = weighted(number, (6, 5, 4, 3, 2, 7, 6, 5, 4, 3, 2)) % 11
    return (0 if rest <= 1 else 11 - rest) == int(number[11])


def singapore(number: str) -> bool:
    """NRIC and FIN: the letter by weights 2 7 6 5 4 3 2, modulo 11; the tables are those in common use."""
    total = weighted(number[1:], (2, 7, 6, 5, 4, 3, 2)) + {"T": 4, "G": 4, "M": 3}.get(number[0], 0)
    table = {"S": "JZIHGFEDCBA", "T": "JZIHGFEDCBA", "M": "XWUTRQPNJLK"}.get(number[0], "XWUTRQPNMLK")
    return table[total % 11] == number[8]


def thailand(number: str) -> bool:
    """Identity number: weights 13 to 2, modulo 11 (Department of Provincial Administration)."""
    return (11 - weighted(number, range(13, 1, -1)) % 11) % 10 == int(number[12])


def dated(number: str) -> bool:
    """A date only: MyKad, whose check digit is not public, and Korea's numbers, which have had none since 2020."""
    return is_date(number)


def indonesia(number: str) -> bool:
    """NIK: region and date of birth, 40 is added to the day of women; there is no check digit (Dukcapil)."""
    return 11 <= int(number[:2]) <= 97 and is_date(number[6:], "dmy", days=(0, 40))


def south_africa(number: str) -> bool:
    """Identity number: a date and Luhn (Identification Act 68 of 1997)."""
    return is_date(number) and number[10] in "01" and luhn(number)


def israel(number: str) -> bool:
    """Teudat zehut: Luhn of nine digits (Population Registry)."""
    return luhn(number.zfill(9)) and varied(number)


def iran(number: str) -> bool:
    """Kode melli: weights 10 to 2, modulo 11 (Civil Registration Organization)."""
    rest = weighted(number, range(10, 1, -1)) % 11
    return varied(number) and int(number[9]) == (rest if rest < 2 else 11 - rest)


def australia(number: str) -> bool:
    """TFN: weights 1 4 3 7 5 8 6 9 10, modulo 11 (Australian Taxation Office)."""
    return weighted(number, (1, 4, 3, 7, 5, 8, 6, 9, 10)) % 11 == 0 and varied(number)


def none(number: str) -> bool:
    """Numbers without a public check digit, such as Pakistan's CNIC: the format is all there is."""
    return varied(number)
