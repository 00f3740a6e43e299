"""Social security numbers of the United States.

Reads runs of digits. Sources: Social Security Administration, "Social Security Number Randomization":
areas 000, 666 and 900 to 999, group 00 and serial 0000 are never issued; two numbers printed in advertising were void.
Internal Revenue Service, Internal Revenue Manual 3.21.263: taxpayers without one have a number of areas 900 to 999 and
groups 50 and above, which counts beside a label.
"""

import re
from collections.abc import Iterator

from tasks.filters.recognisers.context import OTHER_NUMBERS, Labels
from tasks.filters.recognisers.span import Evidence, Span

_SSN_FORM = re.compile(
    r"(?<![0-9A-Za-z_.+/])(?<![0-9A-Za-z]-)(?!000|666)[0-9]{3}(?P<gap>[ .-]?| - )(?!00)[0-9]{2}(?P<next>[ .-]?| - )"
    r"(?!0000)[0-9]{4}"
    r"(?![0-9A-Za-z_]|[./-][0-9])"
)
_VOID_SSNS = frozenset(("078051120", "219099999"))
_SSN_LABELS = Labels(r"ssn\b|ss ?#|social[ -]security|soc\.? sec|taxpayer|itin\b", OTHER_NUMBERS)


def find_ssns(text: str, start: int, end: int) -> Iterator[Span]:
    """Yields numbers in text[start:end]: with dashes by their format, otherwise with a label.

    >>> [text[a:b] for text in ["SSN: 123-45-6789; part 12-345-6789"] for _, a, b, _ in find_ssns(text, 0, len(text))]
    ['123-45-6789']
    """
    for found in _SSN_FORM.finditer(text, start, end):
        digits = re.sub("[ .-]", "", found.group())
        taxpayer = digits[0] == "9"
        if digits in _VOID_SSNS or (taxpayer and digits[3:5] < "50"):
            continue
        dashed = found["gap"] == found["next"] == "-" and not taxpayer
        label = _SSN_LABELS.of(text, found.start(), found.end())
        if label or (dashed and label is None):
            yield Span("ssn", found.start(), found.end(), Evidence.PATTERN if dashed else Evidence.CONTEXT)
