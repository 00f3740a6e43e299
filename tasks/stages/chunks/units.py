"""Units: what a chunk is put together from. A block that fits the budget is one, a larger one is several.

Pure functions. A text is divided at its lines, these at sentences, these at white space or, where there is none, at any
code point; code first at blank lines. Only blocks that do not fit are divided, and only as far as is needed.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tasks.formats.chunks import CODE, HEADING, TEXT
from tasks.stages.chunks.structure import Block

Count = Callable[[Sequence[str]], list[int]]
"""Returns the number of tokens of each of some texts."""
Span = tuple[int, int]

_BLANK = re.compile(r"\n(?:[ \t]*\n)+")
LINE = re.compile(r"\n")
"""What is between two lines."""
SENTENCE = re.compile(r"(?<=[.!?…])[\"'”’»)\]]*\s+|(?<=[。！？])")
"""What is between two sentences: white space behind a full stop or the like, nothing behind an ideographic one."""
_BYTES = 4
"""Most bytes of a code point in UTF-8, and so most tokens of a byte-level tokenizer."""


class Heading(NamedTuple):
    """A heading above a text: level, title, and the tokens of the title with a line end."""

    level: int
    title: str
    tokens: int


class Unit(NamedTuple):
    """A stretch of a text that is not divided: code points, kind, tokens of it alone, and the headings above it."""

    start: int
    end: int
    kind: str
    tokens: int
    above: tuple[Heading, ...]

    @property
    def context(self) -> int:
        """Tokens of the headings above, with the blank line behind them."""
        return sum(one.tokens for one in self.above) + 1 if self.above else 0


def units(text: str, blocks: Sequence[Block], max_tokens: int, count: Count) -> Iterator[Unit]:
    """Yields the units of a text in order, each with its context of at most `max_tokens` tokens.

    The headings above a unit are those of its sections; the outermost are left out where together they would take more
    than a quarter of the budget, or a block that fits alone would have to be divided.
    """
    sizes = count([text[one.start : one.end] for one in blocks])
    titles = iter(count([one.title for one in blocks if one.kind == HEADING]))
    path: list[Heading] = []
    above: tuple[Heading, ...] = ()
    for block, size in zip(blocks, sizes, strict=True):
        if block.kind == HEADING:
            while path and path[-1].level >= block.level:
                path.pop()
            above = _innermost(path, max_tokens // 4)
        unit = Unit(block.start, block.end, block.kind, size, above)
        room = max_tokens - unit.context
        if size <= max_tokens:  # rather without some of the headings above than divided
            yield unit if size <= room else unit._replace(above=_innermost(above, max_tokens - size - 1))
        else:
            for (start, end), tokens in _divided(text, (block.start, block.end), block.kind, room, count):
                yield Unit(start, end, block.kind, tokens, above)
        if block.kind == HEADING:
            path.append(Heading(block.level, block.title, next(titles) + 1))
            above = _innermost(path, max_tokens // 4)


def _innermost(path: Sequence[Heading], most: int) -> tuple[Heading, ...]:
    """Returns the last headings of a path that have at most `most` tokens together."""
    first, left = len(path), most
    while first and path[first - 1].tokens <= left:
        first -= 1
        left -= path[first].tokens
    return tuple(path[first:])


def _divided(text: str, whole: Span, kind: str, room: int, count: Count) -> list[tuple[Span, int]]:
    """Returns the pieces of a block that has more than `room` tokens, each with its tokens, of at most that many."""
    steps: list[Callable[[Span], Iterator[Span]]] = [
        *([lambda span: between(text, span, _BLANK)] if kind == CODE else []),
        lambda span: between(text, span, LINE),
        *([lambda span: between(text, span, SENTENCE)] if kind in (TEXT, HEADING) else []),
        lambda span: _runs(text, span, max(1, room // _BYTES - 1)),
    ]
    found: list[tuple[Span, int]] = [(whole, room + 1)]
    for step in steps:
        pieces = [
            (piece, tokens if piece == span else -1)
            for span, tokens in found
            for piece in (step(span) if tokens > room else (span,))
        ]
        sizes = iter(count([text[start:end] for (start, end), tokens in pieces if tokens < 0]))
        found = [(piece, next(sizes) if tokens < 0 else tokens) for piece, tokens in pieces]
    return found


def between(text: str, span: Span, divider: re.Pattern[str]) -> Iterator[Span]:
    """Yields the stretches of a span between the matches of a pattern, without white space at their ends.

    Indentation stays, since it means something in code.
    """
    start, end = span
    for match in divider.finditer(text, start, end):
        yield from _stripped(text, start, match.start() if match[0].isspace() else match.end())
        start = match.end()
    yield from _stripped(text, start, end)


def _stripped(text: str, start: int, end: int) -> Iterator[Span]:
    end = start + len(text[start:end].rstrip())
    if end > start:
        yield start, end


def _runs(text: str, span: Span, most: int) -> Iterator[Span]:
    """Yields stretches of at most `most` code points, which end at white space if there is any in their last half."""
    start, last = span
    while start < last:
        end = min(start + most, last)
        if end < last:
            at = max(text.rfind(sign, start + most // 2, end) for sign in " \t")
            end = at if at > start else end
        yield from _stripped(text, start, end)
        start = end
