"""RSL 1.0 (Really Simple Licensing): what a license document says about the training of AI models on a URL.

Source: RSL-SPEC-1.0 (rslstandard.org/rsl, Recommendation of 2025-12-10). `<rsl>` contains `<content url="...">`, each
with `<license>` elements. The url is a path pattern as in robots.txt, or a whole URL in which "*" may stand for any
text; empty, it means the scope of the link to the document. `<permits type="usage">` and `<prohibits type="usage">`
list uses separated by blanks (3.4.1); those that contain training are `all`, `ai-all` and `ai-train`.

The matching content with the longest url decides (3.1.1), the strictest of equal ones. It refuses training if one of
its licenses prohibits it (3.6), or if none grants it. A list of permitted uses is complete (3.5). A license grants
nothing here if it depends on something that a crawler cannot fulfil: a payment other than attribution (3.7), a token
of a license server (3.3), reports (3.12), or a class or country of the user (3.5), which is unknown. "Processors read
conservatively" (3.1.1).
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from tasks.formats.web.path_pattern import PathPattern, equivalent, path_of, split_pattern
from tasks.formats.web.url import authority

if TYPE_CHECKING:
    from lxml import etree

_TRAINING = frozenset({"all", "ai-all", "ai-train"})
_UNPAID = frozenset({"free", "attribution"})
_WHOLE_URL = re.compile(r"(?:https?:)?//([^/?#]*)(.*)", re.I | re.S)
_SEPARATOR = re.compile(r"[\s,]+")
_MAX_VALUE = 1000


@dataclass(frozen=True)
class _License:
    """One license: uses by kind of statement, and what it depends on."""

    permits: tuple[frozenset[str], ...]
    prohibits: frozenset[str]
    conditions: tuple[str, ...]

    @property
    def grants(self) -> bool:
        """Whether it permits training without a condition."""
        return not self.conditions and all(uses & _TRAINING for uses in self.permits)


@dataclass(frozen=True)
class _Content:
    """One content element: the URLs that it covers, and its licenses."""

    host: PathPattern | None
    path: PathPattern
    length: int
    licenses: tuple[_License, ...]

    def covers(self, host: str, path: str) -> bool:
        return (self.host is None or self.host.matches(host)) and self.path.matches(path)

    @property
    def permits_training(self) -> bool | None:
        if any(one.prohibits & _TRAINING for one in self.licenses):
            return False
        return any(one.grants for one in self.licenses) if self.licenses else None


class RslDocument:
    """One license document.

    Args:
        body: the bytes of the file. Entities are not expanded, and nothing is loaded from elsewhere.

    Raises:
        ValueError: the file is no XML, or not RSL.

    >>> terms = b'<license><prohibits type="usage">ai-train</prohibits></license>'
    >>> document = RslDocument(b'<rsl><content url="/news/*.html$">' + terms + b"</content></rsl>")
    >>> document.permits_training("http://h/news/a.html"), document.permits_training("http://h/")
    (False, None)
    """

    def __init__(self, body: bytes) -> None:
        from lxml import etree  # the pages of a crawl import this module, and read no license

        parser = etree.XMLParser(
            resolve_entities=False, no_network=True, load_dtd=False, remove_comments=True, remove_pis=True
        )
        try:
            root = etree.fromstring(body, parser)
        except (etree.XMLSyntaxError, ValueError) as error:
            raise ValueError(f"it is no XML: {error}") from None
        if root is None or etree.QName(root).localname != "rsl":
            raise ValueError("it is no RSL: its root is not <rsl>")
        contents = (_content(element) for element in _children(root, "content"))
        self._contents = sorted(contents, key=lambda content: -content.length)

    def permits_training(self, url: str) -> bool | None:
        """Returns whether the document permits (True) or refuses (False) training on `url`; None if it says nothing."""
        return strictest(content.permits_training for content in self._deciding(url))

    def terms(self, url: str) -> list[tuple[str, str]]:
        """Returns what the document says about `url`, as (name, uses or conditions): permits, prohibits, requires."""
        found: dict[tuple[str, str], None] = {}
        for one in (one for content in self._deciding(url) for one in content.licenses):
            permits = (("permits", uses) for uses in one.permits)
            stated = (*permits, ("prohibits", one.prohibits), ("requires", one.conditions))
            found |= {(name, " ".join(sorted(words))[:_MAX_VALUE]): None for name, words in stated if words}
        return list(found)

    def _deciding(self, url: str) -> list[_Content]:
        """Returns the contents with the longest matching url that have a license."""
        host, path = authority(url), equivalent(path_of(url))
        matching = (one for one in self._contents if one.licenses and one.covers(host, path))
        return next((list(group) for _, group in groupby(matching, key=lambda content: content.length)), [])


def strictest(answers: Iterable[bool | None]) -> bool | None:
    """Returns the strictest of several answers: False before True before None (RSL 1.0, 4.9)."""
    stated = {answer for answer in answers if answer is not None}
    return min(stated) if stated else None


def _content(element: "etree._Element") -> _Content:
    url = (element.get("url") or "").strip()
    whole = _WHOLE_URL.fullmatch(url)
    host, path = (whole[1].lower(), whole[2]) if whole else (None, url)
    if not path.startswith(("/", "*")):
        path = f"/{path}"
    server = ("server",) if (element.get("server") or "").strip() else ()
    licenses = tuple(_license(child, server) for child in _children(element, "license"))
    anchored = None if host is None else PathPattern(tuple(split_pattern(host)[0]), end=True)
    return _Content(anchored, PathPattern.of(path), len(equivalent(path)), licenses)


def _license(element: "etree._Element", conditions: tuple[str, ...]) -> _License:
    permits, prohibits = [], set[str]()
    found = [*conditions, *_payments(element)]
    if next(_children(element, "reporting"), None) is not None:
        found.append("reporting")
    for name in ("permits", "prohibits"):
        for child in _children(element, name):
            words = frozenset(filter(None, _SEPARATOR.split("".join(child.itertext()).lower())))
            kind = (child.get("type") or "usage").strip().lower()
            if kind != "usage":
                found.append(f"{kind}:{'' if name == 'permits' else 'not-'}{'+'.join(sorted(words))}")
            elif name == "permits":
                permits.append(words)
            else:
                prohibits |= words
    return _License(tuple(permits), frozenset(prohibits), tuple(dict.fromkeys(found)))


def _payments(element: "etree._Element") -> Iterator[str]:
    for child in _children(element, "payment"):
        kind = (child.get("type") or "").strip().lower()
        # Without a type the terms are those of a framework or a process that its children name.
        if kind not in _UNPAID and (kind or len(child)):
            yield f"payment:{kind or 'custom'}"


def _children(element: "etree._Element", name: str) -> "Iterator[etree._Element]":
    """Yields the children of an element with a name in its own namespace."""
    from lxml import etree

    namespace = etree.QName(element).namespace
    yield from element.iterchildren(f"{{{namespace}}}{name}" if namespace else name)
