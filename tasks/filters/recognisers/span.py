"""Shared by all recognisers: spans with their evidence, labels of numbers, the resolution of overlapping spans."""

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple

BEFORE = 48
"""Number of characters before a number in which its label is searched: a short phrase, or the line above in a table."""

DENSE = 24
"""The same where a word takes one or two characters: in Chinese, Japanese and Korean."""

_DENSE = re.compile("[\u3041-\u30ff\u3400-\u9fff\uac00-\ud7a3]")
_AFTER = 16
_REST_OF_WORD, _MARKS = re.compile(r"[^\W\d_]*+"), re.compile(r"[\W_]*[^\w\s][\W_]*")
GOODS = (
    r"isbn|issn|ean\b|gtin|upc\b|asin\b|sku\b|part\b|parts\b|model|modell|serial|s/n|item n|product (?:code|id|n)"
    r"|artikel|batch|lot\b|barcode|patent|doi\b|pmid|pmc|arxiv|cas\b|cve\b"
)
"""Words before numbers of goods, books and papers, which may have any format."""

OTHER_NUMBERS = (
    rf"{GOODS}|order|invoice|item|product|id\b|ids\b|uuid|ref\b|refs\b|reference|case\b|ticket|account|acct|konto\b"
    r"|rechnung|bestell|kunden|kd-?nr|auftrag|commande|facture|siret|siren|référence|pedido|factura|referencia|ordine"
    r"|fattura|codice|bestelling|factuur|fatura|cnpj|cpf|price|preis|prix|tracking|timestamp|unix|epoch|hash|sha\b|commit"
    r"|version|build|coordinates|lat\b|lon\b|latitude|longitude|vat\b|ust|iban|card|karte|carte|tarjeta|transaction"
    r"|call[ -]?(?:n(?:o\b|r\b|um)|mark|sign)|callsign|shelf ?mark|signatur\b|dewey|lccn|oclc|accession|frequenc|qth\b"
    r"|customer|company n|registration|reg\b|pp?\b|pages?\b|seiten?\b|vol\b"
)
"""Words before numbers that are not personal data: those of goods, orders, files, places, times."""


class Evidence(IntEnum):
    """Evidence for personal data, the weakest first."""

    CONTEXT = 1
    """A label next to it; the format alone is ambiguous."""
    PATTERN = 2
    """A format that hardly anything else has."""
    CHECKSUM = 3
    """A valid check digit, or accepted by a parser that rejects most other text."""


class PiiSpan(NamedTuple):
    """Personal data in a text.

    Attributes:
        kind: kind of personal data, which is also the name of the placeholder.
        start: position of the first character, in code points.
        end: position after the last character.
        evidence: evidence for this kind.
    """

    kind: str
    start: int
    end: int
    evidence: Evidence


def resolve(spans: Iterable[PiiSpan], text: str) -> list[PiiSpan]:
    """Returns spans in text order, without overlap, that cover every letter and digit of the given spans.

    Of two overlapping spans, the one with the better evidence is kept: a checksum before a format, a format before a
    label. Ties are resolved in favor of the longer span, then the earlier one, then the first kind by name. The rest of
    the other span becomes a span of its own, trimmed to a letter or digit where it was cut. Adjacent spans of one kind
    are merged.

    >>> text = "call 4155552671. 12 rue de la Paix, 75002 Paris"
    >>> phone, address = PiiSpan("phone", 5, 19, Evidence.CONTEXT), PiiSpan("address", 17, 47, Evidence.PATTERN)
    >>> [(span.kind, text[span.start : span.end]) for span in resolve([phone, address], text)]
    [('phone', '4155552671'), ('address', '12 rue de la Paix, 75002 Paris')]
    """
    best_first = sorted(spans, key=lambda span: (-span.evidence, span.start - span.end, span.start, span.kind))
    merged: list[PiiSpan] = []
    for owner, start, end in _owned(best_first):
        before = merged[-1] if merged else None
        if before and before.kind == owner.kind and before.end == start:
            merged[-1] = before._replace(end=end, evidence=max(before.evidence, owner.evidence))
        else:
            merged.append(PiiSpan(owner.kind, start, end, owner.evidence))
    starts, ends = {span.start for span in best_first}, {span.end for span in best_first}
    trimmed = (_trimmed(span, text, span.start not in starts, span.end not in ends) for span in merged)
    return [span for span in trimmed if any(map(str.isalnum, text[span.start : span.end]))]


def _owned(best_first: Sequence[PiiSpan]) -> Iterator[tuple[PiiSpan, int, int]]:
    """Yields the segments between consecutive borders of spans, each with the best of the spans that cover it."""
    pending = sorted(range(len(best_first)), key=lambda rank: -best_first[rank].start)
    covering: list[int] = []  # a heap of ranks; spans that have ended are removed only when they are first
    for start, end in pairwise(sorted({border for span in best_first for border in (span.start, span.end)})):
        while pending and best_first[pending[-1]].start == start:
            heappush(covering, pending.pop())
        while covering and best_first[covering[0]].end <= start:
            heappop(covering)
        if covering:
            yield best_first[covering[0]], start, end


def _trimmed(span: PiiSpan, text: str, at_start: bool, at_end: bool) -> PiiSpan:
    start, end = span.start, span.end
    while at_start and start < end and not text[start].isalnum():
        start += 1
    while at_end and start < end and not text[end - 1].isalnum():
        end -= 1
    return span._replace(start=start, end=end)


class Labels:
    """Two sets of labels: those of personal numbers of some kind, and those of other numbers.

    The last label before a number counts, or one in brackets after it: "Call us about order 4155550123" has two before.

    Args:
        yes: labels of the kind: words or beginnings of words in lower case, as regular expressions without groups.
        no: labels of other numbers, likewise.
        joined: further labels of the kind, which may follow other letters: of scripts without spaces or with prefixes.
        joined_no: the same of other numbers.
    """

    def __init__(self, yes: str, no: str, joined: str = "", joined_no: str = "") -> None:
        self._label = re.compile(rf"(?<![^\W\d_])(?:(?P<yes>{yes})|(?P<no>{no}))")
        self._native = self._label
        if joined:
            first = f"(?=[{_first_letters(f'{joined}|{joined_no}')}])"
            self._native = re.compile(
                f"{first}(?:(?P<joined>{joined})|(?P<joined_no>{joined_no or '(?!)'}))|{self._label.pattern}"
            )

    def of(self, text: str, start: int, end: int) -> bool | None:
        """Returns whether the nearest label of text[start:end] is one of `yes`; None if there is no label."""
        first = window_start(text, start)
        before = max(0, first - 1)  # shows whether the window begins inside a word
        # The text is lower-cased, because an expression that ignores case takes ten times as long.
        window = text[before:start]
        label_form = self._label if window.isascii() else self._native  # labels in ASCII are found by both
        labels = [*label_form.finditer(window.lower(), first - before)]
        label = labels[-1] if labels else None
        if label is None and text[end : end + 2].lstrip()[:1] == "(":
            label = self._label.match(text[end : end + _AFTER].lower().lstrip()[1:])
        return None if label is None else label.lastgroup in ("yes", "joined")

    def directly_before(self, text: str, start: int) -> bool:
        """Returns whether one of `yes` stands directly before `start`, with a mark between them ("Tel.", "電話：")."""
        before = max(0, start - BEFORE)
        window = text[before:start].lower()
        labels = [*self._native.finditer(window)]
        if not labels or labels[-1].lastgroup not in ("yes", "joined"):
            return False
        end = labels[-1].end()
        if labels[-1].lastgroup == "yes":  # the beginning of a word
            end = _REST_OF_WORD.match(window, end).end()  # type: ignore[union-attr]
        return _MARKS.fullmatch(window, end) is not None


def _first_letters(labels: str) -> str:
    """Returns the letters with which labels may begin, for a class of characters.

    `re` tries all alternatives at every character; most characters are excluded by such a class. Alternatives that
    begin with a group count with all their letters.
    """
    parts = labels.split("|")
    letters = {letter for part in parts for letter in (part if part[:1] in "([" else part[:1])}
    return "".join(sorted(letter for letter in letters if letter.isalpha()))


def window_start(text: str, start: int) -> int:
    """Returns the start of the text that is searched for a label: its line or, for a bare number, the line above."""
    first = max(0, start - BEFORE)
    if not (near := text[first:start]).isascii() and _DENSE.search(near):
        first = max(0, start - DENSE)
    line = text.rfind("\n", first, start) + 1
    if not line:
        return first
    if text[line:start].strip(" \t(+"):
        return line
    above = text.rfind("\n", first, line - 1) + 1 or first
    return line if any(character.isdigit() for character in text[above:line]) else above
