"""The suffixes of all groups in one order, in pieces of bounded size.

Reads `spans` and `shards`. The groups are sorted each on its own; a range of the common order is a range of each of
them. Nothing is merged on disk.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.core.artifact import ArtifactFolder
from tasks.formats.tokens.shard_set import ShardSet
from tasks.formats.tokens.spans import SuffixArray, Text, group_name

_SAMPLES_PER_RANGE = 32
Key = tuple[int, ...]
"""Tokens that a range begins with, before those that it ends before."""


class Slab(NamedTuple):
    """A range of the common order: suffixes `low` .. `high` - 1 of each group."""

    low: list[int]
    high: list[int]

    @property
    def size(self) -> int:
        """Number of suffixes."""
        return sum(self.high) - sum(self.low)


class Suffixes:
    """All suffixes of the training tokens, in lexicographic order.

    Args:
        spans: an artifact of the stage spans.
        groups: number of its suffix arrays.
        shards: the shards that it was made from.
    """

    def __init__(self, spans: ArtifactFolder, groups: int, shards: ShardSet) -> None:
        self._groups = [SuffixArray.of(spans, group_name(index, groups), shards) for index in range(groups)]
        self._starts = [0, *accumulate(map(len, self._groups))]
        self.text = Text.joined(group.text for group in self._groups)
        """The tokens of all groups, one after the other; positions are places in it."""
        self.eos = shards.format.eos_id

    def __len__(self) -> int:
        """Number of suffixes."""
        return self._starts[-1]

    def bounds(self, ranges: int, width: int) -> list[Key]:
        """Returns keys of `width` tokens that divide the order into about `ranges` ranges of about equal size."""
        step = max(1, len(self) // (ranges * _SAMPLES_PER_RANGE))
        keys = sorted(
            self._key(number, suffix, width)
            for number, group in enumerate(self._groups)
            for suffix in range(step // 2, len(group), step)
        )
        return sorted({keys[len(keys) * index // ranges] for index in range(1, ranges)})

    def slab(self, first: Key | None, end: Key | None) -> Slab:
        """Returns the suffixes from one key up to another; None: from the first, up to the last."""
        low = [0] * len(self._groups) if first is None else self._edges(first, after=False)
        return Slab(low, [len(group) for group in self._groups] if end is None else self._edges(end, after=False))

    def pieces(self, slab: Slab, most: int, width: int) -> Iterator[tuple[Slab, bool]]:
        """Divides a range where the first `width` tokens change.

        Yields:
            ranges in order, and of each whether all of its suffixes begin with the same `width` tokens; others have at
            most `most` suffixes.
        """
        pending = [slab]
        while pending:
            part = pending.pop()
            if part.size <= most:
                if part.size:
                    yield part, False
                continue
            number = int(np.argmax(np.subtract(part.high, part.low)))
            key = self._key(number, (part.low[number] + part.high[number]) // 2, width)
            low, high = ([*map(int, np.clip(self._edges(key, after=after), *part))] for after in (False, True))
            same = Slab(low, high)
            if same.size > most:
                pending += [Slab(high, part.high)]
                yield from self.pieces(Slab(part.low, low), most, width)
                yield same, True
            else:
                cut = low if low != part.low else high
                pending += [Slab(cut, part.high), Slab(part.low, cut)]

    def positions(self, slab: Slab) -> NDArray[np.int64]:
        """Returns where the suffixes of a range begin in the text: group after group, each in its order."""
        return np.concatenate(
            [
                group.positions(low, high) + start
                for group, start, low, high in zip(self._groups, self._starts, slab.low, slab.high, strict=False)
            ]
        )

    def before(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the token before each position: end-of-text at the beginning of a document."""
        found = self.text.windows(np.maximum(positions - 1, 0), 1)[:, 0].astype(np.int64)
        found[positions == 0] = self.eos
        return found

    def _key(self, number: int, suffix: int, width: int) -> Key:
        group = self._groups[number]
        return tuple(group.text.read(group.position(suffix), width))

    def _edges(self, key: Sequence[int], *, after: bool) -> list[int]:
        return [group.find(key)[after] for group in self._groups]
