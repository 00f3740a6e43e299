r"""Candidate positions in a text, and folding: a normalized form of the text for spellings that ASCII rules miss.

`find_candidates` scans a text once for all recognisers. Each alternative of its expression is a cheap necessary
condition of a recogniser's match: a false candidate costs half a microsecond, a missing one misses personal data
(`tests/tasks/filters/recognisers/test_places.py`). The expression begins with a single character class for digits and
foldable characters. `re` implements that class as a table, which it searches faster than the range of digits alone (2.7
instead of 4.2 ms per megabyte), and a second search is not needed.

A text is scanned unchanged and, if folding changes it, again in folded form; matches in either are personal data.
Folding replaces:
- full-width digits and letters, Arabic, Persian, Devanagari, Bengali and Thai digits, non-breaking spaces, dashes in
  place of a hyphen (Unicode, blocks "Halfwidth and Fullwidth Forms" and "General Punctuation");
- zero-width characters inside a word (Unicode, UAX 9 and UAX 14);
- "@" and "." spelled as words, a common obfuscation against harvesters: "jo (at) example (dot) org", "jo [at]
  example.org", "jo at example dot org". There is no standard; the formats are those of real papers, pages and
  newspapers. Without brackets, both words are required, and the word before them must not commonly precede the name of
  a site ("look at example dot com"), since " at " alone is prose;
- "@" written as "%40" (RFC 3986, section 2.1), "&#64;" (HTML) or "\u0040" (JSON);
- a word directly before or after a number ("SSN#123-45-6789", "Tel415-555-0123", "415-555-0123Fax"), which is
  separated, and the underscores of emphasis in Markdown;
- a line end inside a number: after a hyphen, an area code in brackets, or a few digits after a "+".
"""

import heapq
import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from itertools import chain
from typing import NamedTuple

from tasks.filters.recognisers.span import PiiSpan

SPACES = "\u00a0\u2000-\u200a\u202f\u205f\u3000"
DASHES = "\u2010-\u2013\u2212\u30fc"
WIDE_DIGITS = "\uff10-\uff19\u0660-\u0669\u06f0-\u06f9\u0966-\u096f\u09e6-\u09ef\u0e50-\u0e59"
"""Digits of full width, and those of Arabic, Persian, Hindi, Bengali and Thai."""

WIDE = f"{WIDE_DIGITS}\uff21-\uff3a\uff41-\uff5a\uff20\uff0b"
WIDE_MARKS = "\uff08\uff09\uff0d\uff0e"
NO_WIDTH = "\u00ad\u200b-\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff"

GAPS = r"[ .()/\u2010-\u2013-]{0,3}+"
"""Separators between the digits of a number."""

MIXED = (
    r"(?<=[A-Z][A-Z][A-Z][A-Z][0-9])(?:(?=[0-9][A-EHLMPRST][0-9]{2}[A-Z])|(?=[0-9]{5}[HMX][A-Z]{5}))"
    r"|(?=[0-9]{5}[A-FU-Y][0-9]{3}[0-9A-Y](?![0-9A-Za-z]))"
)
"""After the first digit of a national number with letters between its digits: Italy's, Mexico's, Finland's."""

# Written out, because `re` takes three times as long for a repeated group.
_NUMBER = (
    rf"{MIXED}|(?<=[A-Za-z][A-Za-z][0-9])(?=[0-9])|(?<=[23])(?=[0-9A-Fa-f]{{3}}:)"
    rf"|(?=[0-9]{{0,2}}+\.[0-9]{{1,3}}+\.[0-9]{{1,3}}+\.[0-9]|{f'{GAPS}[0-9]' * 6})"
)
# A postcode: of the United States or Canada, after the name of a state or province.
_POSTCODE = (
    r"(?=[0-9]{4}(?![0-9]))(?:(?<=[A-Za-z.)*#/>|%;\s]\s[0-9])|(?<=[A-Za-z.],\s[0-9])|(?<=[A-Za-z],[0-9]))"
    r"|(?<=[A-Z][0-9])(?=[A-Z][ -]?[0-9][A-Z][0-9])"
    # Of India and Poland.
    r"|(?=[0-9]{2} ?[0-9]{3}(?![0-9]))(?<=[A-Za-z\u0900-\u097f–-][ -][0-9])"
    r"|(?=[0-9]-[0-9]{3}[ \n][^\W\d_a-z])(?<=[\s(,][0-9])"
)
# A house number. A lower-case word after a number and a space is only a candidate if it is a French type of street or a
# single letter that belongs to the number. (If case is ignored, "ı" and "ſ" match "i" and "s".)
_TYPES_FR = "ru|av|b[odli]|pl|im|al|ch|qu|co|ro|sq|pa|fa|es|se|vi|ci|te"
_HOUSE = (
    r"(?<=[e.gzrm] [0-9])(?<=(?:aße|sse|tr\.|weg|atz|lee|ing|fer|amm) [0-9])"
    rf"|(?=[0-9]{{0,5}}+(?:[ ](?:[A-Z0-9 \n,;|·–ıſ]|[a-z](?![a-z])|{_TYPES_FR})|[\n,][ \nA-Z0-9]|[A-Za-z/+;|·–-]))"
    r"(?<![\w./$€£+-][0-9])(?<![0-9],[0-9])"
    r"(?:(?=[0-9]{0,4}+(?: ?[A-Za-z])?(?:[-/+][0-9]{1,4}[a-z]?)?(?: ?[,;|·–][ \n]{0,3}|[ \n]{1,3})"
    r"(?:[A-Z]{1,2}-)?[0-9]{4})"
    r"|(?=[0-9]{0,4}+(?: ?(?:bis|ter|quater))?,? (?i:ru|av|b[odl]|pl|im|al|ch|qu|co|ro|sq|pa|fa|es|se|vi|ci)[A-Za-z.])"
    r"|(?=[0-9]{0,5}+(?:-[0-9]{1,4})?[A-Za-z]?,?[ \n](?:[A-Z][\w'’. ]|[0-9]{1,3}(?:st|nd|rd|th) [A-Z])))"
)
_GLUED = (
    r"(?<=[A-Za-z=#_/.,(+-][0-9])(?<![^A-Za-z46][=#/.,-][0-9])(?=(?:[ .()/:-]{0,2}+[0-9A-Fa-f]){4})"
    r"|(?<=[0-9 )-]\n[0-9])"
)
_GLUED_BEHIND = (
    r"(?=[_A-Za-z])(?=_(?![0-9A-Za-z])|[A-Z][a-z]{2}"
    r"|(?i:fax|tel|mob|phone|cell|home|work|office|e-?mail|www|http|exp|bic))"
)
# Next to a number, or of full width: `fold` replaces these characters with ASCII if there are any.
_FOREIGN = (
    rf"(?<=[{WIDE}])|(?<=[{WIDE_MARKS}])(?=[0-9A-Za-z])|(?<=[{SPACES}])(?=[0-9(+])|(?<=[0-9][{SPACES}])"
    rf"|(?<=[0-9)][{DASHES}])(?=[0-9(])"
)
_HIDDEN = rf"(?<=[0-9A-Za-z@.+()-][{NO_WIDTH}])(?=[0-9A-Za-z@.+(){NO_WIDTH}-])"
_CODED = r"(?<=[%#xXu/][0-9])(?:(?<=%4)(?=0)|(?<=&#6)(?=4;)|(?<=&#[xX]4)(?=0;)|(?<=\\u0)(?=040)|(?<=wa\.me/[0-9]))"
_SPELT = r"(?<=[(\[]) ?[aA][tT] ?[)\]]"
# The first digit of a number, or the last digit before a word that directly follows.
_CANDIDATE = re.compile(
    rf"[0-9(\[{WIDE}{WIDE_MARKS}{SPACES}{DASHES}{NO_WIDTH}](?:(?<=[0-9])"
    f"(?:(?<![0-9][0-9])(?:(?P<coded>{_CODED})|{_NUMBER}|{_POSTCODE}|{_HOUSE}|{_GLUED})|(?<=[0-9][0-9]){_GLUED_BEHIND})"
    f"|(?<![0-9])(?:(?P<spelt>{_SPELT})|(?P<foreign>{_FOREIGN})|(?P<hidden>{_HIDDEN})))"
)

Edit = tuple[int, int, str]
_DOT = r"(?: ?[(\[] ?(?i:dot) ?[)\]] ?)"
_WORD = r"[\w%+-]{1,64}+"
# Words contain no dot, so a run matches in only one way.
_HOST = re.compile(rf"(?P<at>[(\[] ?[aA][tT] ?[)\]] ?)(?=[^\W_]){_WORD}(?P<rest>(?:(?:\.|{_DOT}){_WORD}){{1,9}}+)")

_BEFORE = re.compile(rf"{_WORD}(?:(?:\.|{_DOT}){_WORD}){{1,9}}+\Z")
_DOTS = re.compile(_DOT)
_LONGEST = 99
"""Number of characters before an "@" that are examined: 64 (RFC 5321) and some spelled dots."""

_NAME = "[A-Za-z0-9][A-Za-z0-9-]{0,62}+"
_SPOKEN = re.compile(rf" (?i:at) (?P<host>{_NAME}(?: (?:dot|DOT) {_NAME}){{1,5}}+)(?![\w@])")
DOT = " dot "
"""A text without it has no address spelled without brackets."""

_SPOKEN_DOT = re.compile(" (?:dot|DOT) ")
_LOCAL = re.compile(r"(?<![\w.+@-])[A-Za-z0-9][\w+-]{0,62}+(?:(?:\.| (?:dot|DOT) )[\w+-]{1,63}+){0,4}+\Z")
_BEFORE_SITES = re.compile(
    r"a|about|all|and|anything|are|at|available|back|be|book|both|buy|by|come|do|down|download|"
    r"everything|find|for|found|free|get|go|have|he|her|here|him|home|i|in|is|it|its|join|just|"
    r"know|listed|live|located|look|looked|looking|looks|me|more|now|of|off|on|one|online|only|"
    r"or|order|our|out|over|page|people|posted|read|see|seen|shop|site|sold|something|start|store|"
    r"stuff|that|the|their|them|there|they|things|this|those|time|today|up|us|was|watch|we|were|"
    r"work|works|you",
    re.IGNORECASE,
)

_DASH = re.compile(f"[{DASHES}]")
# Every expression begins with a character class, which makes its search fast. If one of the spaces is next to a number,
# all are folded, because a whole address may be written with them.
_PLAIN = re.compile(
    rf"[{WIDE}{WIDE_MARKS}{SPACES}{DASHES}]"
    rf"(?:(?<![{DASHES}])|(?<=[0-9){WIDE_DIGITS}\uff09][{DASHES}])(?=[0-9({WIDE_DIGITS}\uff08]))"
)

_INVISIBLE = re.compile(rf"[{NO_WIDTH}](?<=[0-9A-Za-z@.+()-][{NO_WIDTH}])[{NO_WIDTH}]{{0,7}}+(?=[0-9A-Za-z@.+()-])")
_AT = re.compile(r"%40|&#(?:64|[xX]40);|\\u0040")
_LABEL = (
    r"(?:tele(?:phone|fon|fax)|tel|phone|ph|fax|mobile?|mob|cell|handy|whatsapp|call|ssn|ip|ipv[46]|addr|host|client"
    r"|card|cc|pan|visa|mastercard|amex)"
)

# In this order: the first digit of a number directly after other text, or at the beginning of a line; the last digit
# before a word that directly follows.
_EDGES = re.compile(
    r"[0-9](?:"
    r"(?P<front>(?<=[A-Za-z=#_/.,(+-][0-9])(?<![0-9][/.,-][0-9])(?=(?:[ .()/:-]{0,2}+[0-9A-Fa-f]){4}))"
    r"|(?P<line>(?<=[0-9]-\n[0-9])|(?<=\([0-9]{3}\)\n[0-9])|(?<=[0-9 )-]\n[0-9]))"
    r"|(?P<behind>(?<=[0-9]{2})(?=_(?![0-9A-Za-z])|[A-Z][a-z]{2}|(?i:fax|tel|mob|phone|cell|home|work|office|e-?mail|www|http|exp|bic)))"
    r")"
)

_LABEL_BEFORE = re.compile(rf"(?<![A-Za-z]){_LABEL}([=#_/.,-]?)[+(]{{0,2}}\Z", re.IGNORECASE)
_TO_AT = re.compile(r"[A-Za-z0-9.$-]{1,64}+@")
_CHAT_LINK = re.compile(r"\bwa\.me/(?=[1-9][0-9]{6})")
# A number may continue after a hyphen at a line end; without a hyphen, only if its first part is too short to be a
# number.
_UNFINISHED = re.compile(r"(?:[0-9]-|\([0-9]{3}\)|\+(?:[ ().-]?[0-9]){1,6}[ -]?)\Z")

_LONGEST_LABEL = 16
# Last letters of the labels: most text before a digit is not a label, which this detects without a regular expression.
_LABEL_ENDS = (
    *("ne", "on", "ax", "el", "ph", "le", "il", "ob", "ll", "dy", "pp", "sn"),
    *("ip", "v4", "v6", "dr", "st", "nt", "rd", "cc", "an", "sa", "ex"),
)


class Candidates(NamedTuple):
    """Result of one scan of a text.

    Attributes:
        digits: ascending positions at which a number or a house number may begin, or a word directly follow one.
        spelt: ascending positions of brackets around "at".
        coded: whether there may be an "@" written with digits, or a telephone number in a link.
        foreign: whether there are characters to replace with ASCII.
        hidden: whether there may be a zero-width character inside a word.
    """

    digits: Sequence[int]
    spelt: Sequence[int]
    coded: bool
    foreign: bool
    hidden: bool


def find_candidates(text: str) -> Candidates:
    """Returns the candidate positions of a text.

    >>> list(find_candidates("In 1914, of 12 men: SSN 123-45-6789").digits)
    [24]
    >>> find_candidates("5\u00a0Elm St.").foreign, find_candidates("a%40b.de").coded
    (True, True)
    """
    digits, spelt = array("I"), array("I")  # four bytes each: every character of 16 MB may be a candidate
    kinds: set[str] = set()
    for match in _CANDIDATE.finditer(text):
        kind = match.lastgroup
        if kind:
            kinds.add(kind)
        if kind is None or kind == "coded":
            digits.append(match.start())
        elif kind == "spelt":
            spelt.append(match.start())
    return Candidates(digits, spelt, "coded" in kinds, "foreign" in kinds, "hidden" in kinds)


class FoldedText:
    """A folded text with its candidate positions, and the mapping of positions to the original text.

    Memory: the text and 8 bytes per edit, since a document of 16 MB may have an edit at every second character.

    Args:
        text: the text after replacement of single characters with ASCII.
        edits: further edits, ascending and not overlapping.
        candidates: the result of `find_candidates` for the text, if the caller has it.

    >>> from tasks.filters.recognisers.span import Evidence
    >>> folded = FoldedText("Tel#030", [(3, 4, ": ")])
    >>> folded.text, folded.back(PiiSpan("phone", 5, 8, Evidence.PATTERN))[1:3]
    ('Tel: 030', (4, 7))
    """

    def __init__(self, text: str, edits: Iterable[Edit], candidates: Candidates | None = None) -> None:
        pieces = StringIO()
        self._after = array("I")
        self._shift = array("i", [0])
        at = length = 0
        for start, end, new in edits:
            pieces.write(text[at:start])
            pieces.write(new)
            length += start - at + len(new)
            at = end
            self._after.append(length)
            self._shift.append(end - length)
        pieces.write(text[at:])
        self.text = pieces.getvalue() if self._after else text
        self.candidates = candidates if candidates and not self._after else find_candidates(self.text)

    def back(self, span: PiiSpan) -> PiiSpan:
        """Returns the span with positions in the original text."""
        return span._replace(start=self._original_position(span.start), end=self._original_position(span.end - 1) + 1)

    def _original_position(self, at: int) -> int:
        return at + self._shift[bisect_right(self._after, at)]


def fold(text: str, candidates: Candidates | None = None, dots: bool | None = None) -> FoldedText | None:
    r"""Returns the folded text, or None if there is nothing to fold.

    Args:
        text: any text.
        candidates: the result of `find_candidates` for it, if the caller has it.
        dots: whether `DOT` occurs in it, ignoring case, if the caller knows.

    >>> fold("SSN#\uff11\uff12\uff13-45-6789").text, fold("Tel415-555-0123Fax").text, fold("SSN 123-45-6789")
    ('SSN:123-45-6789', 'Tel 415-555-0123 Fax', None)
    """
    candidates = candidates or find_candidates(text)
    # Single characters are replaced with single characters, so positions do not change.
    ascii_text = _in_ascii(text) if candidates.foreign else text
    ascii_candidates = find_candidates(ascii_text) if candidates.foreign else candidates
    edits_by_form = _edits(ascii_text, ascii_candidates)
    if has_spoken_dots(text) if dots is None else dots:
        edits_by_form.append(spoken_edits(ascii_text))
    edits = edits_by_form[0] if len(edits_by_form) == 1 else heapq.merge(*edits_by_form)
    first = next(edits, None)
    if first is None:
        return FoldedText(ascii_text, (), ascii_candidates) if ascii_text != text else None
    return FoldedText(ascii_text, chain((first,), edits), ascii_candidates)


def _in_ascii(text: str) -> str:
    # `re.sub` would allocate a string for each part between two matches: up to 76 bytes per character.
    ascii_text, at = StringIO(), 0
    for match in _PLAIN.finditer(text):
        ascii_text.write(text[at : match.start()])
        ascii_text.write(_as_ascii(ord(match.group())))
        at = match.end()
    ascii_text.write(text[at:])
    return ascii_text.getvalue()


def _as_ascii(code: int) -> str:
    if code > 0xFF00:
        return chr(code - 0xFEE0)
    character = chr(code)
    return str(int(character)) if character.isdigit() else "-" if _DASH.match(character) else " "


def _edits(text: str, candidates: Candidates) -> list[Iterator[Edit]]:
    """Returns the edits of each form in ascending order; edits of different forms do not overlap."""
    edits = [_edges(text, candidates.digits)]
    if candidates.hidden:
        edits.append((match.start(), match.end(), "") for match in _INVISIBLE.finditer(text))
    if candidates.spelt:
        edits.append(bracket_edits(text, candidates.spelt))
    if candidates.coded:
        edits.append((match.start(), match.end(), "@") for match in _AT.finditer(text))
        edits.append((match.end(), match.end(), "+") for match in _CHAT_LINK.finditer(text))
    return edits


def _edges(text: str, digits: Iterable[int]) -> Iterator[Edit]:
    for at in digits:
        if match := _EDGES.match(text, at):
            yield from _edge(text, at, match.lastgroup)


def _edge(text: str, at: int, kind: str | None) -> Iterator[Edit]:
    if kind == "behind":
        if sum(map(str.isdigit, text[max(0, at - 14) : at + 1])) >= 6:
            yield at + 1, at + 1 + (text[at + 1] == "_"), " "
    elif kind == "line":
        if before := _UNFINISHED.search(text, max(0, at - 18), at - 1):
            yield at - 1, at, "" if before.group().endswith("-") else " "
    elif _may_be_label(text[max(0, at - 5) : at]) and (
        label := _LABEL_BEFORE.search(text, max(0, at - _LONGEST_LABEL), at)
    ):
        if text[label.start() - 1 : label.start()].isdigit() and _TO_AT.match(text, at):
            return  # inside a message ID: "h35CC1f12345@"
        start, end = label.span(1)
        yield start, end, ":" if end > start else " "
    elif text[at - 1] == "_" and not text[max(0, at - 2) : at - 1].isalnum():
        yield at - 1, at, " "


def _may_be_label(before: str) -> bool:
    """Returns whether the text before a digit ends like a label; always True if it is not ASCII."""
    return not before.isascii() or before.rstrip("+(").rstrip("=#_/.,-").lower().endswith(_LABEL_ENDS)


def bracket_edits(text: str, positions: Iterable[int]) -> Iterator[Edit]:
    """Yields edits of "(at)" at the ascending `positions` of brackets and of "(dot)" around them, ascending.

    >>> list(bracket_edits("jo (at) example (dot) org", [3]))
    [(2, 8, '@'), (15, 22, '.')]
    """
    end_of_last = 0
    for position in positions:
        host = _HOST.match(text, position)
        end = position - (text[position - 1 : position] == " ")  # of the local part
        if host is None or not text[max(0, end - 1) : end].isalnum():
            continue
        floor = max(end_of_last, end - _LONGEST)
        local = _BEFORE.search(text, floor, end) if _DOTS.search(text, floor, end) else None
        dots = [*_DOTS.finditer(text, local.start(), end)] if local else []
        edits = [(dot.start(), dot.end(), ".") for dot in dots]
        edits.append((end, host.end("at"), "@"))
        edits += [(dot.start(), dot.end(), ".") for dot in _DOTS.finditer(text, host.start("rest"), host.end())]
        for edit in edits:
            if edit[0] >= end_of_last:
                yield edit
                end_of_last = edit[1]


def has_spoken_dots(text: str) -> bool:
    """Returns whether `DOT` occurs in a text, ignoring case; for a batch, `filters.pii` uses Arrow's faster search."""
    return DOT in text or DOT.upper() in text


def spoken_edits(text: str) -> Iterator[Edit]:
    """Yields edits of addresses with the words " at " and " dot ", ascending.

    >>> list(spoken_edits("write to jo at example dot org"))
    [(11, 15, '@'), (22, 27, '.')]
    >>> list(spoken_edits("look at example dot org"))
    []
    """
    end_of_last = 0
    for match in _SPOKEN.finditer(text):
        local = _LOCAL.search(text, max(end_of_last, match.start() - _LONGEST), match.start())
        if local is None or _BEFORE_SITES.fullmatch(local.group()):
            continue
        host_start = match.start("host")
        yield from ((dot.start(), dot.end(), ".") for dot in _SPOKEN_DOT.finditer(text, local.start(), match.start()))
        yield match.start(), host_start, "@"
        yield from ((dot.start(), dot.end(), ".") for dot in _SPOKEN_DOT.finditer(text, host_start, match.end()))
        end_of_last = match.end()
