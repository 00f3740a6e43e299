"""tdmrep.json: a site's reservations from text and data mining.

The file of the TDM Reservation Protocol (W3C community group, final report of 2024-05-10, section "TDM File on the
Origin Server"): an array of rules, of which the first with a matching location applies. Locations are patterns as in
robots.txt, with escapes equivalent to the characters they encode. A site without a readable file reserves nothing.
"""

import json

from tasks.formats.web.path_pattern import PathPattern, equivalent, path_of

TDMREP = "/.well-known/tdmrep.json"
"""Path of the file."""

_TDM_PROPERTIES = ("tdm-reservation", "tdm-policy")
_MAX_VALUE = 1000


class Reservations:
    """The reservations of one tdmrep.json.

    Args:
        body: the bytes of the file.

    Raises:
        ValueError: the file is not a JSON array.

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
        self._rules: list[tuple[PathPattern, bool, tuple[tuple[str, str], ...]]] = []
        for rule in rules:
            location = rule.get("location") if isinstance(rule, dict) else None
            if isinstance(location, str):
                properties = tuple((name, str(rule[name])[:_MAX_VALUE]) for name in _TDM_PROPERTIES if name in rule)
                self._rules.append((PathPattern.of(location), _is_one(rule.get("tdm-reservation")), properties))

    def reserves(self, url: str) -> bool:
        """Returns whether the file reserves `url` from mining; False if no rule matches."""
        path = equivalent(path_of(url))
        return next((reserved for pattern, reserved, _ in self._rules if pattern.matches(path)), False)

    def terms(self, url: str) -> tuple[tuple[str, str], ...]:
        """Returns the properties of the rule for `url`, as (property, value): reservation and policy."""
        path = equivalent(path_of(url))
        return next((properties for pattern, _, properties in self._rules if pattern.matches(path)), ())


def _is_one(value: object) -> bool:
    return isinstance(value, int | str) and str(value).strip() == "1"
