"""E-mail addresses whose "@" is spelt: "jo (at) example (dot) org", "jo [at] example.org".

Used by `folding`, at places that the scan has pointed out; whether it is an address is decided as of any other. So
people hide one from those who collect addresses, though from no reader. No standard says how; the forms are those of
real papers, pages and newspapers. Brackets it must have: " at " and " dot " without them are prose.
"""

import re
from collections.abc import Iterable, Iterator

Edit = tuple[int, int, str]

_DOT = r"(?: ?[(\[] ?(?i:dot) ?[)\]] ?)"
_WORD = r"[\w%+-]{1,64}+"
# No dot stands in a word: a run is read in one way only.
_HOST = re.compile(rf"(?P<at>[(\[] ?[aA][tT] ?[)\]] ?)(?=[^\W_]){_WORD}(?P<rest>(?:(?:\.|{_DOT}){_WORD}){{1,9}}+)")
_BEFORE = re.compile(rf"{_WORD}(?:(?:\.|{_DOT}){_WORD}){{1,9}}+\Z")
_DOTS = re.compile(_DOT)
_LONGEST = 99
"""Characters before an "@" that are looked at: 64 (RFC 5321) and some spelt dots."""


def edits(text: str, places: Iterable[int]) -> Iterator[Edit]:
    """Yields what to replace by "@" and "." where brackets open at `places`, in rising order and apart.

    >>> list(edits("jo (at) example (dot) org", [3]))
    [(2, 8, '@'), (15, 22, '.')]
    """
    done = 0
    for place in places:
        host = _HOST.match(text, place)
        end = place - (text[place - 1 : place] == " ")  # of the local part
        if host is None or not text[max(0, end - 1) : end].isalnum():
            continue
        first = max(done, end - _LONGEST)
        local = _BEFORE.search(text, first, end) if _DOTS.search(text, first, end) else None
        spelt = [*_DOTS.finditer(text, local.start(), end)] if local else []
        found = [(dot.start(), dot.end(), ".") for dot in spelt]
        found.append((end, host.end("at"), "@"))
        found += [(dot.start(), dot.end(), ".") for dot in _DOTS.finditer(text, host.start("rest"), host.end())]
        for edit in found:
            if edit[0] >= done:
                yield edit
                done = edit[1]
