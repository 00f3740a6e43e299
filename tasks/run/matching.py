"""Matching: the runs of tokens of a text that stand verbatim in the training tokens.

The rules are those of OLMoTrace (Liu et al. 2025, arXiv 2504.07096, section 3): from each token the longest run that
stands in the training text; runs within another are dropped; of the others, those are kept whose tokens are the least
probable together (product of unigram probabilities), 0.05 per token of the text. Different here: runs may begin and end
within words and contain full stops and line breaks, because a run that is as long as possible leads to fewer pages; and
a minimum length takes the place of whole words (OLMoTrace's service: minimumSpanLength 1, with whole words only).
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import ceil, log2
from typing import NamedTuple

from tokenizers import Tokenizer

from tasks.formats.tokens.spans import SpanIndex

_DENSITY = 0.05
_LEAST_KEPT = 10


class _Encoded(NamedTuple):
    """Tokens of a text in one spelling, and the range of characters of each in the text as it was given."""

    ids: list[int]
    ranges: list[tuple[int, int]]
    searched: int
    """Tokens from which a run may begin; the others are those of another spelling."""


@dataclass(frozen=True)
class Match:
    """A range of characters that stands in the training text."""

    start: int
    end: int
    runs: tuple[tuple[int, ...], ...]
    """Its tokens; two runs where the text's first word stands there with and without a space before it."""
    count: int
    """Occurrences in the training text."""
    bits: float
    """How improbable its tokens are together: the sum of -log2 of each token's share of the training tokens."""


def matches(index: SpanIndex, tokenizer: Tokenizer, text: str, min_tokens: int) -> tuple[int, list[Match]]:
    """Finds the runs of a text in the training tokens.

    Args:
        index: the suffix arrays of the training tokens.
        tokenizer: the tokenizer of the training tokens.
        text: any text.
        min_tokens: shortest run, in tokens.

    Returns:
        the number of runs, none within another, and those that are kept, the least probable first.
    """
    runs: dict[tuple[int, int], list[tuple[int, ...]]] = defaultdict(list)
    for encoded in _spellings(tokenizer, text):
        for first, end in _runs(index, encoded, min_tokens):
            where = encoded.ranges[first][0], encoded.ranges[end - 1][1]
            runs[where].append(tuple(encoded.ids[first:end]))

    @cache
    def bits_of(token: int) -> float:
        return log2(index.tokens / index.count([token]))

    found = [
        Match(start, end, tuple(runs[start, end]), sum(map(index.count, runs[start, end])),
              sum(map(bits_of, runs[start, end][0])))
        for start, end in _outermost(runs)
    ]  # fmt: skip
    found.sort(key=lambda match: (-match.bits, match.start))
    tokens = len(tokenizer.encode(text, add_special_tokens=False).ids)
    return len(found), found[: max(_LEAST_KEPT, ceil(_DENSITY * tokens))]


def _spellings(tokenizer: Tokenizer, text: str) -> Iterator[_Encoded]:
    """Yields the tokens of a text, and those that differ where a space before it is added or taken away.

    A page has a space before a word that a text begins with, and tokens contain the space before their word.
    """
    given = tokenizer.encode(text, add_special_tokens=False)
    yield _Encoded(given.ids, given.offsets, len(given.ids))
    shift = -1 if text.startswith(" ") else 1
    other = tokenizer.encode(text[1:] if shift < 0 else f" {text}", add_special_tokens=False)
    same = 0
    while same < min(len(given.ids), len(other.ids)) and given.ids[-1 - same] == other.ids[-1 - same]:
        same += 1
    ranges = [(max(first - shift, 0), end - shift) for first, end in other.offsets]
    yield _Encoded(other.ids, ranges, len(other.ids) - same)


def _runs(index: SpanIndex, encoded: _Encoded, min_tokens: int) -> Iterator[tuple[int, int]]:
    """Yields (first, end) of the longest runs of tokens, each ending after the one before it."""
    furthest = 0
    for first in range(min(encoded.searched, len(encoded.ids) - min_tokens + 1)):
        if furthest == len(encoded.ids):
            return
        end = first + index.longest(encoded.ids[first:])
        if end > furthest:
            furthest = end
            if end - first >= min_tokens:
                yield first, end


def _outermost(ranges: dict[tuple[int, int], list[tuple[int, ...]]]) -> Iterator[tuple[int, int]]:
    """Yields the ranges that lie within no other, in order."""
    furthest = -1
    for start, end in sorted(ranges, key=lambda where: (where[0], -where[1])):
        if end > furthest:
            furthest = end
            yield start, end
