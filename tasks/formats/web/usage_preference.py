"""Usage preferences: what Content-Usage and Content-Signal say about the training of AI models.

Both fields exist as response headers and as lines of robots.txt; `robots` reads the path patterns of the latter.

- Content-Usage (draft-ietf-aipref-attach-05 and draft-ietf-aipref-vocab-08, August and September 2026): a dictionary of
  RFC 9651, 3.2, in which `train-ai` is `y` or `n`. Unknown labels and all parameters are ignored.
- Content-Signal (contentsignals.org, Cloudflare, September 2025): `ai-train` is `yes` or `no`.

The two answers are not symmetric, because a wrong consent costs more than a lost page:

- A refusal is read wherever it is recognizable: under the label of the other field (the most frequent mistake), under
  the labels of older drafts (`train-genai`, `genai`, `ai`, `tdm`, `bots`), in any case, as `n`, `no`, `?0` or a string,
  and in a value that is no valid dictionary. One refusal outweighs any number of consents in the same value; RFC 9651
  would use the last of two equal labels.
- A consent is only the exact label and word of the field in a valid dictionary. A malformed value never permits.
"""

import re
from collections.abc import Iterator

CONTENT_USAGE, CONTENT_SIGNAL = "content-usage", "content-signal"
FIELDS = (CONTENT_SIGNAL, CONTENT_USAGE)
"""Names of the fields, in lower case."""

_CONSENTS = {CONTENT_USAGE: ("train-ai", "y"), CONTENT_SIGNAL: ("ai-train", "yes")}
_LABELS = frozenset({"train-ai", "ai-train", "train-genai", "genai", "ai", "tdm", "bots"})
_REFUSALS = frozenset({"n", "no", "?0"})

# RFC 9651, 4.2: keys, bare items, parameters and inner lists. Possessive repetitions: hostile input takes linear time.
_KEY = r"[a-z*][a-z0-9_.*-]*+"
_BARE = (
    r"(?:-?[0-9]{1,12}\.[0-9]{1,3}+|@?-?[0-9]{1,15}+|\?[01]|:[A-Za-z0-9+/=]*+:"
    r'|"(?:[ !#-\[\]-~]|\\["\\])*+"|%"(?:[ !#$&-~]|%[0-9a-f]{2})*+"'
    r"|[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*+)"
)
_PARAMETERS = rf"(?:;\ *+{_KEY}(?:={_BARE})?+)*+"
_INNER_LIST = rf"\(\ *+(?:{_BARE}{_PARAMETERS}(?:\ ++|(?=\))))*+\)"
_MEMBER = re.compile(rf"({_KEY})(?:=(?:({_BARE})|{_INNER_LIST}))?+{_PARAMETERS}")
_COMMA = re.compile(r"[ \t]*+,[ \t]*+(?=[^ \t])")

# A label and a refusing word in a value that is no dictionary.
_REFUSED_SOMEWHERE = re.compile(
    rf"(?:^|[\s,;])(?:{'|'.join(sorted(_LABELS, key=len, reverse=True))})\s{{0,9}}[=:]\s{{0,9}}[\"']?(?:no?\b|\?0)",
    re.I,
)


def training_preference(field: str, value: str) -> bool | None:
    """Returns whether a value permits the training of AI models (True), refuses it (False), or says nothing (None).

    Args:
        field: one of `FIELDS`.
        value: the value of the header, or of the line of robots.txt without its path.

    >>> training_preference("content-usage", "train-genai=y, train-ai=n;x=1")
    False
    >>> training_preference("content-usage", "train-ai=y"), training_preference("content-usage", "train-ai=y,")
    (True, None)
    """
    try:
        members = list(_members(value))
    except ValueError:
        return False if _REFUSED_SOMEWHERE.search(value) else None
    if any(label in _LABELS and word.strip('"').lower() in _REFUSALS for label, word in members):
        return False
    return True if _CONSENTS[field] in members else None


def _members(value: str) -> Iterator[tuple[str, str]]:
    """Yields (key, bare item as written) of a dictionary; "" for an inner list, "?1" without a value.

    Raises:
        ValueError: the value is no dictionary of RFC 9651.
    """
    value = value.strip(" ")
    position = 0
    while position < len(value):
        member = _MEMBER.match(value, position)
        if member is None:
            raise ValueError(f"no member at character {position}")
        yield member[1], member[2] or ("" if "(" in member[0].partition(";")[0] else "?1")
        comma = _COMMA.match(value, member.end())
        if comma is None and member.end() < len(value):
            raise ValueError(f"no comma at character {member.end()}")
        position = comma.end() if comma else len(value)
