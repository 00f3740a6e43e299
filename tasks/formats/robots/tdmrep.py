"""tdmrep.json: reservations of a site against text and data mining.

TDM Reservation Protocol, W3C community group, final report of 2024-05-10, section "TDM File on the Origin Server": an
array of rules, of which the first whose location matches counts; locations are patterns as in robots.txt, with escapes
equal to the character they encode. A value other than 0 and 1 is ignored, as the report requires; a number written as a
string counts as the number.
"""

import json

from tasks.formats.web.robots import Pattern, equal, path_of, split

TDMREP = "/.well-known/tdmrep.json"
_STATED = ("tdm-reservation", "tdm-policy")
_MAX_VALUE = 1000


class Reservations:
    """The reservations of one tdmrep.json.

    Args:
        body: the file's bytes.

    Raises:
        ValueError: it is not a JSON array.

    >>> file = Reservations(b'[{"location": "/*.jpg$", "tdm-reservation": 0}, {"location": "/", "tdm-reservation": 1}]')
    >>> file.reserves("http://h/a"), file.reserves("http://h/a.jpg")
    (True, False)
    """

    def __init__(self, body: bytes) -> None:
        try:
            rules = json.loads(body)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        except ValueError as error:
            raise ValueError(f"it is no JSON: {error}") from None
        if not isinstance(rules, list):
            raise ValueError("it is no array")
        self._rules: list[tuple[Pattern, bool, tuple[tuple[str, str], ...]]] = []
        for rule in rules:
            location = rule.get("location") if isinstance(rule, dict) else None
            if isinstance(location, str):
                stated = tuple((name, str(rule[name])[:_MAX_VALUE]) for name in _STATED if name in rule)
                self._rules.append((_pattern(location), _is_one(rule.get("tdm-reservation")), stated))

    def reserves(self, url: str) -> bool:
        """Returns whether the file reserves `url` from mining; False where no rule matches."""
        path = equal(path_of(url))
        return next((reserved for pattern, reserved, _ in self._rules if pattern.matches(path)), False)

    def terms(self, url: str) -> tuple[tuple[str, str], ...]:
        """Returns the properties of the rule for `url`, as (property, value): reservation and policy."""
        path = equal(path_of(url))
        return next((stated for pattern, _, stated in self._rules if pattern.matches(path)), ())


def _pattern(location: str) -> Pattern:
    parts, end = split(location)
    return Pattern(tuple(map(equal, parts)), end)


def _is_one(value: object) -> bool:
    return isinstance(value, int | str) and str(value).strip() == "1"
