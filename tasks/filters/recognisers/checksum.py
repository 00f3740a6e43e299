"""Check digits of numbers."""

_DOUBLED = (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)


def luhn(digits: str) -> bool:
    """Returns whether the last digit is the check digit of the others (ISO/IEC 7812-1, annex B).

    >>> luhn("4111111111111111"), luhn("4111111111111112")
    (True, False)
    """
    values = [int(digit) for digit in reversed(digits)]
    return (sum(values[::2]) + sum(_DOUBLED[value] for value in values[1::2])) % 10 == 0


def mod97(iban: str) -> bool:
    """Returns whether the check digits of an IBAN without spaces are right (ISO 13616-1, by ISO/IEC 7064 MOD 97-10).

    >>> mod97("GB29NWBK60161331926819"), mod97("GB28NWBK60161331926819")
    (True, False)
    """
    return int("".join(str(int(character, 36)) for character in iban[4:] + iban[:4])) % 97 == 1
