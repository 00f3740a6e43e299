"""A stretch of text that is personal data, and the rule for stretches that overlap.

Used by every recogniser and by `scan`.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple


class Evidence(IntEnum):
    """Why something is held for personal data, the weakest first."""

    CONTEXT = 1
    """A word beside it says so; the form alone could be anything."""
    PATTERN = 2
    """Its form is that of this kind and of little else."""
    CHECKSUM = 3
    """A check digit or a parser that refuses most other text has agreed."""


class Span(NamedTuple):
    """A stretch of text.

    Attributes:
        kind: what it is; the placeholder's name.
        start: of its first character, in code points.
        end: behind its last one.
        evidence: why it is held for this kind.
    """

    kind: str
    start: int
    end: int
    evidence: Evidence


def resolve(spans: Iterable[Span]) -> list[Span]:
    """Returns the spans that stand, in text order and without overlap.

    Of two that overlap the one with the better evidence stands: a checksum beats a form, a form beats a word beside
    it. Between equals the longer one stands, then the earlier one, then the first kind by name.

    >>> phone, card = Span("phone", 3, 15, Evidence.PATTERN), Span("card", 0, 19, Evidence.CHECKSUM)
    >>> [span.kind for span in resolve([phone, card])]
    ['card']
    """
    return [span for cluster in _clusters(spans) for span in _standing(cluster)]


def _clusters(spans: Iterable[Span]) -> Iterator[list[Span]]:
    """Yields groups of spans that overlap one another directly or through others."""
    cluster: list[Span] = []
    end = 0
    for span in sorted(spans, key=lambda span: (span.start, span.end, span.kind)):
        if cluster and span.start >= end:
            yield cluster
            cluster = []
        cluster.append(span)
        end = max(end, span.end) if len(cluster) > 1 else span.end
    if cluster:
        yield cluster


def _standing(cluster: list[Span]) -> list[Span]:
    if len(cluster) == 1:
        return cluster
    kept: list[Span] = []
    starts: list[int] = []
    for span in sorted(cluster, key=lambda span: (-span.evidence, span.start - span.end, span.start, span.kind)):
        place = bisect_left(starts, span.start)
        if place and kept[place - 1].end > span.start:
            continue
        if place < len(kept) and kept[place].start < span.end:
            continue
        kept.insert(place, span)
        starts.insert(place, span.start)
    return kept
