"""Packing: consecutive units of a text become chunks within the budget.

A chunk takes units as long as they fit. A heading begins a new one where the chunk has `min_tokens` already, and ends
none, unless what follows does not fit behind it. The tokens of a chunk are counted on the chunk as it is rendered:
those of its units do not add up exactly.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

from tasks.formats.chunks import HEADING, TEXT, rendered
from tasks.stages.chunks.config import ChunksConfig
from tasks.stages.chunks.units import LINE, SENTENCE, Count, Unit, between

_TAILS = 16
"""Most places at which an overlap may begin that are tried."""
_TAIL_CHARACTERS = 8
"""Code points that are searched for such places, per token of the overlap."""


class Cut(NamedTuple):
    """A chunk of a text: see `tasks.formats.chunks.CHUNK`. The kind is HEADING where it has nothing else."""

    start: int
    end: int
    overlap: int
    kind: str
    headings: tuple[str, ...]
    tokens: int
    body: int
    sections: tuple[str, ...]


class _Overlap(NamedTuple):
    """A stretch before the first unit of a chunk, and its tokens."""

    start: int
    end: int
    tokens: int


class Packer:
    """Packs the units of one text.

    Args:
        text: the text.
        units: its units, each with its context within the budget.
        config: the stage's settings.
        count: counts tokens.
    """

    def __init__(self, text: str, units: Iterable[Unit], config: ChunksConfig, count: Count) -> None:
        self._text = text
        self._waiting = deque(units)
        self._config = config
        self._count = count

    def chunks(self) -> Iterator[Cut]:
        """Yields the chunks in order; each unit is in one of them."""
        last: list[Unit] = []
        while self._waiting:
            overlap = self._overlap(last, self._waiting[0])
            held = [self._waiting.popleft()]
            size = self._size(overlap, held[0])
            while self._waiting and self._joins(size, held, self._waiting[0]):
                unit = self._waiting.popleft()
                size += _gap(held[-1], unit) + unit.tokens
                held.append(unit)
            if self._waiting:
                self._give_back(held, _body(held) or len(held))
            cut = self._cut(overlap, held)
            while cut.tokens > self._config.max_tokens and (overlap or len(held) > 1):
                if not overlap:
                    self._give_back(held, _body(held[:-1]) or len(held) - 1)
                overlap = None
                cut = self._cut(overlap, held)
            yield cut
            last = held

    def _give_back(self, held: list[Unit], keep: int) -> None:
        """Leaves the first `keep` units of a chunk; the others wait for the next one."""
        self._waiting.extendleft(reversed(held[keep:]))
        del held[keep:]

    def _joins(self, size: int, held: Sequence[Unit], unit: Unit) -> bool:
        """Returns whether a unit is to stand in the chunk that has `held` and about `size` tokens."""
        if unit.kind == HEADING and _body(held) and size - held[0].context >= self._config.min_tokens:
            return False
        return size + _gap(held[-1], unit) + unit.tokens <= self._config.max_tokens

    def _size(self, overlap: _Overlap | None, unit: Unit) -> int:
        """Returns about how many tokens a chunk of one unit has."""
        return unit.context + unit.tokens + (overlap.tokens + unit.start - overlap.end if overlap else 0)

    def _cut(self, overlap: _Overlap | None, held: Sequence[Unit]) -> Cut:
        """Returns the chunk with the tokens that it has; a single unit loses headings that turn out not to fit."""
        start = overlap.start if overlap else held[0].start
        own, end = held[0].start, held[-1].end
        headings = _titles(held[0])
        first = next((unit for unit in held if unit.kind != HEADING), held[0])
        while True:
            (tokens,) = self._count([rendered(headings, self._text[start:end])])
            if tokens <= self._config.max_tokens or not headings or overlap or len(held) > 1:
                sections = headings if first is held[0] else _titles(first)
                body = 0 if first is held[0] else first.start - start
                return Cut(start, end, own - start, _kind(held), headings, tokens, body, sections)
            headings = headings[1:]

    def _overlap(self, last: Sequence[Unit], unit: Unit) -> _Overlap | None:
        """Returns the end of the chunk before that a chunk which begins with a unit repeats, or None."""
        most = self._config.overlap_tokens
        section = list(takewhile(lambda one: one.kind != HEADING and one.above == unit.above, reversed(last)))
        if not most or not section or unit.kind == HEADING:
            return None
        first, end = section[-1].start, section[0].end
        starts = self._starts(max(first, end - _TAIL_CHARACTERS * most), end, first)
        for start, tokens in zip(starts, self._count([self._text[start:end] for start in starts]), strict=True):
            overlap = _Overlap(start, end, tokens)
            if tokens <= most and self._size(overlap, unit) <= self._config.max_tokens:
                return overlap
        return None

    def _starts(self, begin: int, end: int, first: int) -> list[int]:
        """Returns where lines and sentences begin in a stretch, the last ones; `first` is the beginning of a unit."""
        lines = between(self._text, (begin, end), LINE)
        starts = [start for line in lines for start, _ in between(self._text, line, SENTENCE)]
        return (starts if begin == first else starts[1:])[-_TAILS:]


def _body(held: Sequence[Unit]) -> int:
    """Returns how many units there are up to the last one that is no heading; 0 where all are headings."""
    count = len(held)
    while count and held[count - 1].kind == HEADING:
        count -= 1
    return count


def _titles(unit: Unit) -> tuple[str, ...]:
    return tuple(one.title for one in unit.above)


def _gap(unit: Unit, following: Unit) -> int:
    """Returns about how many tokens are between two units: the number of their white space."""
    return following.start - unit.end


def _kind(held: Sequence[Unit]) -> str:
    sizes = Counter[str]()
    for one in held:
        sizes[one.kind] += one.end - one.start
    if set(sizes) == {HEADING}:
        return HEADING
    del sizes[HEADING]
    return max(sizes, key=lambda kind: (sizes[kind], kind == TEXT))
