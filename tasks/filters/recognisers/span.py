"""What recognisers share: spans with their evidence, labels beside a number, the resolution of overlapping spans."""

import re
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple

BEFORE = 48
"""Characters before a number in which its label is searched for: a short phrase, or the line above in a table."""

_AFTER = 16
GOODS = (
    r"isbn|issn|ean\b|gtin|upc\b|asin\b|sku\b|part\b|parts\b|model|modell|serial|s/n|item n|product (?:code|id|n)"
    r"|artikel|batch|lot\b|barcode|patent|doi\b|pmid|pmc|arxiv|cas\b|cve\b"
)
"""Words before numbers of goods, books and papers, which may look like anything."""

OTHER_NUMBERS = (
    rf"{GOODS}|order|invoice|item|product|id\b|ids\b|uuid|ref\b|refs\b|reference|case\b|ticket|account|acct|konto\b"
    r"|rechnung|bestell|kunden|kd-?nr|auftrag|commande|facture|siret|siren|référence|pedido|factura|referencia|ordine"
    r"|fattura|codice|bestelling|factuur|fatura|cnpj|cpf|price|preis|prix|tracking|timestamp|unix|epoch|hash|sha\b|commit"
    r"|version|build|coordinates|lat\b|lon\b|latitude|longitude|vat\b|ust|iban|card|karte|carte|tarjeta|transaction"
    r"|call[ -]?(?:n(?:o\b|r\b|um)|mark|sign)|callsign|shelf ?mark|signatur\b|dewey|lccn|oclc|accession|frequenc|qth\b"
    r"|customer|company n|registration|reg\b|pp?\b|pages?\b|seiten?\b|vol\b"
)
"""Words before numbers that are not personal data: goods, orders, files, places, times."""


class Evidence(IntEnum):
    """Kinds of evidence for personal data, the weakest first."""

    CONTEXT = 1
    """A label beside it; the format alone is ambiguous."""
    PATTERN = 2
    """Its form is that of this kind and of little else."""
    CHECKSUM = 3
    """A check digit or a parser that refuses most other text has agreed."""


class PiiSpan(NamedTuple):
    """A stretch of text.

    Attributes:
        kind: kind of personal data; the placeholder's name.
        start: of its first character, in code points.
        end: behind its last one.
        evidence: evidence for this kind.
    """

    kind: str
    start: int
    end: int
    evidence: Evidence


def resolve(spans: Iterable[PiiSpan], text: str) -> list[PiiSpan]:
    """Returns spans in text order and without overlap, that together cover every letter and digit of the given ones.

    Where two overlap the one with the better evidence is kept: a checksum before a format, a format before a label.
    Between equals the longer one is kept, then the earlier one, then the first kind by name. Of the other, what reaches
    beyond stays a span of its own, without what is neither letter nor digit where it was cut; stretches of one kind
    that touch become one.

    >>> text = "call 4155552671. 12 rue de la Paix, 75002 Paris"
    >>> phone, address = PiiSpan("phone", 5, 19, Evidence.CONTEXT), PiiSpan("address", 17, 47, Evidence.PATTERN)
    >>> [(span.kind, text[span.start : span.end]) for span in resolve([phone, address], text)]
    [('phone', '4155552671'), ('address', '12 rue de la Paix, 75002 Paris')]
    """
    best_first = sorted(spans, key=lambda span: (-span.evidence, span.start - span.end, span.start, span.kind))
    stretches: list[PiiSpan] = []
    for owner, start, end in _owned(best_first):
        before = stretches[-1] if stretches else None
        if before and before.kind == owner.kind and before.end == start:
            stretches[-1] = before._replace(end=end, evidence=max(before.evidence, owner.evidence))
        else:
            stretches.append(PiiSpan(owner.kind, start, end, owner.evidence))
    starts, ends = {span.start for span in best_first}, {span.end for span in best_first}
    trimmed = (_trimmed(span, text, span.start not in starts, span.end not in ends) for span in stretches)
    return [span for span in trimmed if any(map(str.isalnum, text[span.start : span.end]))]


def _owned(best_first: Sequence[PiiSpan]) -> Iterator[tuple[PiiSpan, int, int]]:
    """Yields segments from one border of a span to the next, each with the best of the spans that cover it."""
    waiting = sorted(range(len(best_first)), key=lambda rank: -best_first[rank].start)
    holding: list[int] = []  # a heap of ranks; ended ones are removed only when they are first
    for start, end in pairwise(sorted({border for span in best_first for border in (span.start, span.end)})):
        while waiting and best_first[waiting[-1]].start == start:
            heappush(holding, waiting.pop())
        while holding and best_first[holding[0]].end <= start:
            heappop(holding)
        if holding:
            yield best_first[holding[0]], start, end


def _trimmed(span: PiiSpan, text: str, at_start: bool, at_end: bool) -> PiiSpan:
    start, end = span.start, span.end
    while at_start and start < end and not text[start].isalnum():
        start += 1
    while at_end and start < end and not text[end - 1].isalnum():
        end -= 1
    return span._replace(start=start, end=end)


class Labels:
    """Two sets of words: those that make a number personal, and those that make it something else.

    The last one before a number counts, or one in brackets behind it: "Call us about order 4155550123" contains two.

    Args:
        yes: words or beginnings of words in lower case, as regular expressions without groups.
        no: the same for labels against it.
    """

    def __init__(self, yes: str, no: str) -> None:
        self._label = re.compile(rf"(?<![^\W\d_])(?:(?P<yes>{yes})|(?P<no>{no}))")

    def of(self, text: str, start: int, end: int) -> bool | None:
        """Returns True or False by the nearest label of text[start:end], or None where there is none."""
        first = _window(text, start)
        before = max(0, first - 1)  # the rest of a word that was cut is not a word
        # Lower case first: ignoring case in the expression itself costs ten times as much.
        labels = [*self._label.finditer(text[before:start].lower(), first - before)]
        found = labels[-1] if labels else None
        if found is None and text[end : end + 2].lstrip()[:1] == "(":
            found = self._label.match(text[end : end + _AFTER].lower().lstrip()[1:])
        return None if found is None else found.lastgroup == "yes"


def _window(text: str, start: int) -> int:
    """Returns where the label of a number at `start` may begin: in its line, or in the line above a bare number."""
    first = max(0, start - BEFORE)
    line = text.rfind("\n", first, start) + 1
    if not line:
        return first
    if text[line:start].strip(" \t(+"):
        return line
    above = text.rfind("\n", first, line - 1) + 1 or first
    return line if any(character.isdigit() for character in text[above:line]) else above
