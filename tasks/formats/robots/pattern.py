"""Path patterns of robots.txt: a prefix of the path, "*" for anything, "$" for the end.

A pattern and the path that it is matched against have to be in the same form: `literal` (letter by letter) or `equal`
(escapes equal to the character they encode).
"""

import re
from dataclasses import dataclass
from urllib.parse import quote

_ESCAPE = re.compile(r"%[0-9a-fA-F]{2}")
# Escapes of these are equal to the character; "$" and "*" have to be escaped in patterns to mean themselves.
_EQUAL = re.compile(r"%(?:4[1-9A-F]|5[0-9A]|6[1-9A-F]|7[0-9A]|3[0-9]|2[DEA4]|5F|7E)", re.I)
_PATH_START = re.compile(r"[/?;]")

KEEP = "!$&'()*+,-./:;=?@[\\]_~%#"
"""Characters that a URL parser does not escape in path and query."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """One pattern: `parts` are the texts between the stars; `end` means that the last one ends the path."""

    parts: tuple[str, ...]
    end: bool

    def matches(self, path: str) -> bool:
        """Returns whether the pattern matches a path of the same form."""
        first, *rest = self.parts
        if not path.startswith(first):
            return False
        if not rest:
            return not self.end or len(path) == len(first)
        last = rest.pop() if self.end else ""
        at = len(first)
        # The leftmost match of every part leaves the most room for the following ones: no backtracking, linear time.
        for part in rest:
            at = path.find(part, at)
            if at < 0:
                return False
            at += len(part)
        return not self.end or (len(path) - len(last) >= at and path.endswith(last))


def split(text: str) -> tuple[list[str], bool]:
    """Returns the texts between the stars of a pattern, not normalised yet, and whether it has an end.

    >>> split("/a/**/b*.pdf$")
    (['/a/', '/b', '.pdf'], True)
    """
    end = text.endswith("$")
    first, *rest = (text[:-1] if end else text).split("*")
    # Stars in a row are one; an empty last part is kept, as it allows a longer path.
    return [first, *(part for part in rest[:-1] if part), *rest[-1:]], end


def literal(text: str) -> str:
    """Returns the letter-by-letter form: escapes in capitals, and what a URL parser would escape, escaped."""
    if text.isascii() and "%" not in text:
        return quote(text, safe=KEEP)
    pieces = re.split(r"([^\x00-\x7f]+)", _ESCAPE.sub(lambda found: found[0].upper(), text))
    return "".join(piece if index % 2 else quote(piece, safe=KEEP) for index, piece in enumerate(pieces))


def equal(text: str) -> str:
    """Returns the form in which escapes are equal to the character they encode."""
    plain = _EQUAL.sub(lambda found: chr(int(found[0][1:], 16)), text)
    return quote(_ESCAPE.sub(lambda found: found[0].upper(), plain).encode("utf-8", "surrogatepass"), safe=KEEP)


def path_of(url: str) -> str:
    """Returns path, parameters and query of a URL, also of one without scheme or host; "/" where it has none."""
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
