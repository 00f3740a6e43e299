"""Requests: the lines of a takedown's form as tombstones in canonical form. Pure functions."""

import re
from collections.abc import Callable, Container, Iterator, Sequence
from typing import TypeVar

from tasks.core.errors import InputError
from tasks.formats.documents.tombstones import DOCUMENT, DOMAIN, URL
from tasks.formats.web.canonical_url import canonical
from tasks.formats.web.domain import is_public_suffix
from tasks.formats.web.url import authority
from tasks.stages.takedown.config import TakedownConfig

_ID = re.compile(r"[0-9a-f]{32}")
_SHOWN = 120
T = TypeVar("T")


class _Wrong(ValueError):
    """Cause and remedy of a line that cannot be used."""


def requested(config: TakedownConfig) -> dict[tuple[str, str], None]:
    """Returns (kind, canonical value) of every line of a request, each once, in their order.

    Raises:
        InputError: a line is no URL, domain or document id; names the field and the line.
    """
    fields: list[tuple[str, str, Sequence[str], Callable[[str], str]]] = [
        (URL, "urls", config.urls, _url),
        (DOMAIN, "domains", config.domains, _domain),
        (DOCUMENT, "documents", config.documents, _document),
    ]
    return {
        (kind, value): None
        for kind, name, lines, check in fields
        for value in _values(f"takedown.{name}", lines, check)
    }


def to_lift(config: TakedownConfig, in_force: Container[tuple[str, str]]) -> dict[tuple[str, str], None]:
    """Returns (kind, canonical value) of every tombstone that a request lifts, each once, in their order.

    Args:
        config: the request.
        in_force: (kind, canonical value) of what is taken down.

    Raises:
        InputError: a line is no URL, domain or document id, or it is not in force; names the line.
    """

    def find(text: str) -> tuple[str, str]:
        found = _kind_of(text)
        if found not in in_force:
            raise _Wrong("is not in force", "name it as it was taken down; `python -m tasks audit --json` lists all")
        return found

    return dict.fromkeys(_values("takedown.lift", config.lift, find))


def _kind_of(text: str) -> tuple[str, str]:
    if _ID.fullmatch(text.lower()):
        return DOCUMENT, _document(text)
    return (URL, _url(text)) if "/" in text else (DOMAIN, _domain(text))


def _values(name: str, lines: Sequence[str], check: Callable[[str], T]) -> Iterator[T]:
    for number, line in enumerate(lines, 1):
        if text := line.strip():
            try:
                yield check(text)
            except _Wrong as wrong:
                cause, remedy = wrong.args
                shown = "".join(one if one.isprintable() else "?" for one in text[:_SHOWN])
                shown += "..." if len(text) > _SHOWN else ""
                raise InputError(f'{name}, line {number}: "{shown}" {cause}', remedy) from None


def _url(text: str) -> str:
    url = canonical(text)
    if url is None:
        raise _Wrong("is no http or https URL without user name and password", "write it as https://host/path")
    return url


def _domain(text: str) -> str:
    name = text.lower().rstrip(".")
    if "/" in name or (":" in name and not name.endswith("]")):
        raise _Wrong("is no bare host name", "write it without scheme, port and path, such as example.org")
    if "*" in name:
        raise _Wrong("is no host name", "write it without *: all names below a domain go with it")
    url = canonical(f"http://{name}/")
    if not name or url is None or url != f"http://{authority(url)}/":
        raise _Wrong("is no host name", "write it as example.org")
    host = authority(url)
    if is_public_suffix(host):
        raise _Wrong("is a public suffix, under which anyone can register", "name the domains below it one by one")
    return host


def _document(text: str) -> str:
    if not _ID.fullmatch(text.lower()):
        raise _Wrong("is no document id", "an id is 32 hex digits, as `python -m tasks trace` prints it")
    return text.lower()
