"""The HTTP header Link (RFC 8288): the links that a response states about its page, such as canonical URL and license.

The grammar of section 3, read leniently as in appendix B: a comma or semicolon within a quoted value or a target
separates nothing, quoted values may contain escapes, and a malformed link ends at the next comma.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.url import MAX_CRAWLED_URL

RSL_TYPE = "application/rsl+xml"
"""Media type of a license by which a `license` link points to terms for machines (RSL 1.0, 4.5 and 4.6)."""

_MAX_LINKS = 100
# Possessive repetitions: hostile input takes linear time.
_SEPARATORS = re.compile(r"[\s,]*+")
_TARGET = re.compile(rf"<([^<>]{{1,{MAX_CRAWLED_URL}}}+)>")
_PARAMETER = re.compile(r'\s*+;\s*+([^\s=;,]*+)\s*+(?:=\s*+(?:"((?:[^"\\]|\\.)*+)(?:"|\\?$)|([^;,]*+)))?+', re.S)
_ESCAPED = re.compile(r"\\(.)", re.S)


class HeaderLink(NamedTuple):
    """One link of a Link header.

    Attributes:
        target: reference as written, decoded as UTF-8 if possible.
        relations: relation types in lower case.
        type: media type in lower case, or "".
        url: canonical URL of the target; None if it is no web address.
    """

    target: str
    relations: frozenset[str]
    type: str
    url: str | None


def links_of(values: Iterable[str], url: str) -> Iterator[HeaderLink]:
    """Yields the links of Link headers whose context is the page itself, at most 100.

    Args:
        values: the headers in the order received, decoded as Latin-1.
        url: canonical URL of the page, the base of relative references (RFC 8288, 3.1 and 3.2).

    >>> [(link.url, *link.relations) for link in links_of(['</a,b>; rel="Canonical", <c>; rel=next'], "http://h/d/e")]
    [('http://h/a,b', 'canonical'), ('http://h/d/c', 'next')]
    """
    found = 0
    for target, parameters in _links(", ".join(values)):
        found += 1
        if found > _MAX_LINKS:
            return
        if "anchor" in parameters and canonical(parameters["anchor"], url) != url:
            continue  # about another resource
        relations = frozenset(parameters.get("rel", "").lower().split())
        media_type = parameters.get("type", "").partition(";")[0].strip().lower()
        yield HeaderLink(target, relations, media_type, canonical(target, url))


def _links(header: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields (target, parameters by name in lower case) of a header."""
    position = 0
    while (gap := _SEPARATORS.match(header, position)) and gap.end() < len(header):
        position = gap.end()
        match = _TARGET.match(header, position)
        if match is None:
            comma = header.find(",", position)
            position = comma if comma >= 0 else len(header)
            continue
        position = match.end()
        parameters: dict[str, str] = {}
        while (one := _PARAMETER.match(header, position)) is not None:
            position = one.end()
            value = _ESCAPED.sub(r"\1", one[2]) if one[2] is not None else (one[3] or "").strip()
            # Only the first of several applies (3.3, 3.4.1).
            parameters.setdefault(one[1].lower(), value)
        yield _decoded(match[1].strip()), parameters


def _decoded(value: str) -> str:
    """Returns a reference decoded as UTF-8, as browsers do, or else as Latin-1."""
    try:
        return value if value.isascii() else value.encode("latin-1").decode()
    except UnicodeError:
        return value
