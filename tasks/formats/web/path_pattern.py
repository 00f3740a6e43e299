"""Path patterns of robots.txt, and of the files that borrow them: tdmrep.json and RSL licenses.

A pattern is a prefix of path and query, in which "*" stands for any text, and "$" at the end for the end of the path
(RFC 9309, 2.2.2 and 2.2.3). Two normalizations exist, because RFC 9309 and Google's parser differ: escapes are
equivalent to the characters they encode (`equivalent`), or compared as they are written (`literal`). Pattern and path
must be in the same one.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self
from urllib.parse import quote

SAFE = "!$&'()*+,-./:;=?@[\\]_~%#"
"""Characters that a URL parser does not escape in path and query."""

Normalization = Callable[[str], str]

_ESCAPE = re.compile(r"%[0-9a-fA-F]{2}")
# Escapes that are equivalent to their character; in patterns a literal "$" or "*" must be escaped.
_EQUIVALENT = re.compile(r"%(?:4[1-9A-F]|5[0-9A]|6[1-9A-F]|7[0-9A]|3[0-9]|2[DEA4]|5F|7E)", re.I)
_PATH_START = re.compile(r"[/?;]")


@dataclass(frozen=True, slots=True)
class PathPattern:
    """A path pattern: `parts` are the texts between the stars; `end` anchors the last one at the end of the path."""

    parts: tuple[str, ...]
    end: bool

    @classmethod
    def of(cls, pattern: str) -> Self:
        """Returns a pattern in the normalization `equivalent`."""
        parts, end = split_pattern(pattern)
        return cls(tuple(map(equivalent, parts)), end)

    def matches(self, path: str) -> bool:
        """Returns whether the pattern matches a path in the same normalization."""
        first, *rest = self.parts
        if not path.startswith(first):
            return False
        if not rest:
            return not self.end or len(path) == len(first)
        last = rest.pop() if self.end else ""
        position = len(first)
        # The leftmost match of each part leaves the most text for the others: linear time without backtracking.
        for part in rest:
            position = path.find(part, position)
            if position < 0:
                return False
            position += len(part)
        return not self.end or (len(path) - len(last) >= position and path.endswith(last))


def split_pattern(pattern: str) -> tuple[list[str], bool]:
    """Returns the texts between the stars of a pattern, not normalized, and whether it is anchored at the end.

    >>> split_pattern("/a/**/b*.pdf$")
    (['/a/', '/b', '.pdf'], True)
    """
    end = pattern.endswith("$")
    first, *rest = (pattern[:-1] if end else pattern).split("*")
    # Consecutive stars are equivalent to one; an empty last part is kept, because it allows a longer path.
    return [first, *(part for part in rest[:-1] if part), *rest[-1:]], end


def literal(text: str) -> str:
    """Normalizes for literal matching: escapes in upper case, and characters escaped that a URL parser would escape."""
    if text.isascii() and "%" not in text:
        return quote(text, safe=SAFE)
    pieces = re.split(r"([^\x00-\x7f]+)", _ESCAPE.sub(lambda match: match[0].upper(), text))
    return "".join(piece if index % 2 else quote(piece, safe=SAFE) for index, piece in enumerate(pieces))


def equivalent(text: str) -> str:
    """Normalizes for RFC 9309: escapes are equivalent to the characters they encode."""
    plain = _EQUIVALENT.sub(lambda match: chr(int(match[0][1:], 16)), text)
    return quote(_ESCAPE.sub(lambda match: match[0].upper(), plain).encode("utf-8", "surrogatepass"), safe=SAFE)


def path_of(url: str) -> str:
    """Returns path, parameters and query of a URL, which may lack scheme and host; "/" if it has no path."""
    start = 2 if url.startswith("//") else 0
    early = _PATH_START.search(url, start)
    scheme = url.find("://", start)
    if scheme >= 0 and not (early and early.start() < scheme):
        start = scheme + 3
    begin = _PATH_START.search(url, start)
    url = url.partition("#")[0]
    if begin is None or begin.start() >= len(url):
        return "/"
    path = url[begin.start() :]
    return path if path[0] == "/" else f"/{path}"
