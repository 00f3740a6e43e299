"""Media type and charset of a body by its Content-Type headers, as in browsers (Fetch Standard, "extract a MIME type").

The crawler and the extraction read the same headers, so both use this function.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

HTML_TYPES = frozenset(("text/html", "application/xhtml+xml"))

# An element of a comma-separated list; commas in quoted strings do not separate.
_PART = re.compile(r'(?:[^",]|"[^"]*(?:"|$))+')
_TYPE = re.compile(r"(?!\*/\*)([\w!#$%&'*+.^`|~-]+/[\w!#$%&'*+.^`|~-]+)[ \t]*(?:;|$)", re.ASCII)
# Possessive, so that a header cannot cause backtracking.
_CHARSET = re.compile(r"charset\s*+=\s*+[\"']?\s*+([A-Za-z0-9_.:-]++)", re.I)


class MediaType(NamedTuple):
    """A media type.

    Attributes:
        essence: type and subtype in lower case, without parameters; "" if no header states one. Of headers without any
            valid type, the last as stated.
        charset: the parameter, or "".
    """

    essence: str
    charset: str


def media_type(values: Iterable[str]) -> MediaType:
    """Returns the last valid type of all Content-Type headers; if it has no charset, that of an equal type before it.

    Args:
        values: the headers, in their order.

    >>> media_type(["text/plain", "*/*, text/html; charset=koi8-r", "Text/HTML"])
    MediaType(essence='text/html', charset='koi8-r')
    """
    essence = charset = other = ""
    for value in values:
        for part in map(str.strip, _PART.findall(value)):
            match = _TYPE.match(part)
            if match is None:
                other = part
                continue
            stated = _CHARSET.search(part, match.end())
            same = match[1].lower() == essence
            essence = match[1].lower()
            charset = stated[1] if stated else charset if same else ""
    if essence:
        return MediaType(essence, charset)
    stated = _CHARSET.search(other)
    return MediaType(other.partition(";")[0].strip().lower(), stated[1] if stated else "")
