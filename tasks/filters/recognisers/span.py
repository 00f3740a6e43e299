"""A span of personal data, and the resolution of overlapping spans."""

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple


class Evidence(IntEnum):
    """Kinds of evidence for personal data, the weakest first."""

    CONTEXT = 1
    """A label beside it; the format alone is ambiguous."""
    PATTERN = 2
    """Its form is that of this kind and of little else."""
    CHECKSUM = 3
    """A check digit or a parser that refuses most other text has agreed."""


class Span(NamedTuple):
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


def resolve(spans: Iterable[Span], text: str) -> list[Span]:
    """Returns spans in text order and without overlap, that together cover every letter and digit of the given ones.

    Where two overlap the one with the better evidence is kept: a checksum before a format, a format before a label.
    Between equals the longer one is kept, then the earlier one, then the first kind by name. Of the other, what reaches
    beyond stays a span of its own, without what is neither letter nor digit where it was cut; stretches of one kind
    that touch become one.

    >>> text = "call 4155552671. 12 rue de la Paix, 75002 Paris"
    >>> phone, address = Span("phone", 5, 19, Evidence.CONTEXT), Span("address", 17, 47, Evidence.PATTERN)
    >>> [(span.kind, text[span.start : span.end]) for span in resolve([phone, address], text)]
    [('phone', '4155552671'), ('address', '12 rue de la Paix, 75002 Paris')]
    """
    best_first = sorted(spans, key=lambda span: (-span.evidence, span.start - span.end, span.start, span.kind))
    stretches: list[Span] = []
    for owner, start, end in _owned(best_first):
        before = stretches[-1] if stretches else None
        if before and before.kind == owner.kind and before.end == start:
            stretches[-1] = before._replace(end=end, evidence=max(before.evidence, owner.evidence))
        else:
            stretches.append(Span(owner.kind, start, end, owner.evidence))
    starts, ends = {span.start for span in best_first}, {span.end for span in best_first}
    trimmed = (_trimmed(span, text, span.start not in starts, span.end not in ends) for span in stretches)
    return [span for span in trimmed if any(map(str.isalnum, text[span.start : span.end]))]


def _owned(best_first: Sequence[Span]) -> Iterator[tuple[Span, int, int]]:
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


def _trimmed(span: Span, text: str, at_start: bool, at_end: bool) -> Span:
    start, end = span.start, span.end
    while at_start and start < end and not text[start].isalnum():
        start += 1
    while at_end and start < end and not text[end - 1].isalnum():
        end -= 1
    return span._replace(start=start, end=end)
