"""Maximal repeats of the training tokens: repeats that cannot be extended without occurring less often.

`Suffixes` reads `spans` and `shards`: the suffixes of all groups in one order, in pieces of bounded size. Each group is
sorted separately; a range of the common order is a range of each group, so that nothing is merged on disk.

`Runs` are runs of `width` tokens that occur more than once, with their occurrences.

Maximal repeats are the nodes of the suffix tree whose occurrences do not all follow the same token (Gusfield,
"Algorithms on Strings, Trees and Sequences", 1997, section 7.12). The tree is not built: runs of `width` tokens whose
occurrences follow different tokens are extended by `_BLOCK` tokens at a time, and the nodes between two blocks are
intervals of common prefixes (Abouelhoda, Kurtz and Ohlebusch, "Replacing suffix trees with enhanced suffix arrays", J.
Discrete Algorithms 2, 2004). Any other run is part of a longer one that occurs as often.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.core.artifact import ArtifactFolder
from tasks.formats.dedup.sorted_runs import by_key
from tasks.formats.tokens.shard import ShardSet
from tasks.formats.tokens.spans import SuffixArray, TokenText, group_name

_SAMPLES_PER_RANGE = 32

Key = tuple[int, ...]
"""First tokens of a suffix: a range of suffixes begins at one key and ends before another."""

OCCURRENCE = np.dtype([("key", "<u8"), ("count", "<u4")])
"""An occurrence of a repeated run: twice its position in the text, plus one unless it is the first occurrence; and the
number of occurrences of the run."""

_BLOCK, _MAX_BLOCK, _FEW_SUFFIXES = 64, 1 << 13, 16

MAXIMAL = np.dtype([("tokens", "<i8"), ("occurrences", "<i8"), ("position", "<i8")])
"""A maximal repeat: its length, its number of occurrences, and the position of the first one in the text."""


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
        spans: folder of an artifact of the stage spans.
        groups: number of its suffix arrays.
        shards: the shards of these suffix arrays.
    """

    def __init__(self, spans: ArtifactFolder, groups: int, shards: ShardSet) -> None:
        self._groups = [SuffixArray.of(spans, group_name(index, groups), shards) for index in range(groups)]
        self._starts = [0, *accumulate(map(len, self._groups))]
        self.text = TokenText.joined(group.text for group in self._groups)
        """The concatenated tokens of all groups, to which positions refer."""
        self.eos = shards.format.eos_id

    def __len__(self) -> int:
        """Number of suffixes."""
        return self._starts[-1]

    def bounds(self, ranges: int, width: int) -> list[Key]:
        """Returns keys of `width` tokens that divide the order into about `ranges` ranges of similar size."""
        step = max(1, len(self) // (ranges * _SAMPLES_PER_RANGE))
        keys = sorted(
            self._key(number, suffix, width)
            for number, group in enumerate(self._groups)
            for suffix in range(step // 2, len(group), step)
        )
        return sorted({keys[len(keys) * index // ranges] for index in range(1, ranges)})

    def slab(self, first: Key | None, end: Key | None) -> Slab:
        """Returns the suffixes from key `first` up to key `end`; None: from the first suffix, or up to the last."""
        low = [0] * len(self._groups) if first is None else self._edges(first, after=False)
        return Slab(low, [len(group) for group in self._groups] if end is None else self._edges(end, after=False))

    def pieces(self, slab: Slab, limit: int, width: int) -> Iterator[tuple[Slab, bool]]:
        """Divides a range at changes of the first `width` tokens.

        Yields:
            ranges in order, each with whether all of its suffixes begin with the same `width` tokens; the others have
            at most `limit` suffixes.
        """
        pending = [slab]
        while pending:
            part = pending.pop()
            if part.size <= limit:
                if part.size:
                    yield part, False
                continue
            number = int(np.argmax(np.subtract(part.high, part.low)))
            key = self._key(number, (part.low[number] + part.high[number]) // 2, width)
            low, high = ([*map(int, np.clip(self._edges(key, after=after), *part))] for after in (False, True))
            same = Slab(low, high)
            if same.size > limit:
                pending += [Slab(high, part.high)]
                yield from self.pieces(Slab(part.low, low), limit, width)
                yield same, True
            else:
                cut = low if low != part.low else high
                pending += [Slab(cut, part.high), Slab(part.low, cut)]

    def positions(self, slab: Slab) -> NDArray[np.int64]:
        """Returns the positions of the suffixes of a range in the text, group by group, each in its order."""
        return np.concatenate(
            [
                group.positions(low, high) + start
                for group, start, low, high in zip(self._groups, self._starts, slab.low, slab.high, strict=False)
            ]
        )

    def before(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the token before each position; end-of-text at the beginning of a document."""
        tokens = self.text.windows(np.maximum(positions - 1, 0), 1)[:, 0].astype(np.int64)
        tokens[positions == 0] = self.eos
        return tokens

    def _key(self, number: int, suffix: int, width: int) -> Key:
        group = self._groups[number]
        return tuple(group.text.read(group.position(suffix), width))

    def _edges(self, key: Sequence[int], *, after: bool) -> list[int]:
        return [group.find(key)[after] for group in self._groups]


class Runs(NamedTuple):
    """Repeated runs of equal length: positions of their occurrences, grouped by run."""

    positions: NDArray[np.int64]
    starts: NDArray[np.int64]
    """Index of each run's first occurrence in `positions`, shape (runs,)."""

    @property
    def counts(self) -> NDArray[np.int64]:
        """Occurrences of each run, at least 2, shape (runs,)."""
        return np.diff(np.append(self.starts, len(self.positions)))

    def select(self, mask: NDArray[np.bool_]) -> "Runs":
        """Returns the runs selected by a mask, shape (runs,)."""
        counts = self.counts
        positions = self.positions[np.repeat(mask, counts)]
        return Runs(positions, np.cumsum(counts[mask]) - counts[mask])


def repeated(suffixes: Suffixes, slab: Slab, width: int, *, same: bool) -> Runs:
    """Returns the runs of `width` tokens without end-of-text that occur more than once.

    Args:
        suffixes: the suffixes.
        slab: a range of them that does not divide suffixes with the same first tokens.
        width: length of a run, in tokens.
        same: whether all suffixes of the range begin with the same `width` tokens.
    """
    positions = suffixes.positions(slab)
    if same:
        windows = suffixes.text.windows(positions[:1], width)
        whole = Runs(positions, np.zeros(1, np.int64))
        return whole.select(np.array([not (windows == suffixes.eos).any() and len(positions) > 1]))
    windows = suffixes.text.windows(positions, width)
    within = ~(windows == suffixes.eos).any(axis=1)
    positions, windows = positions[within], windows[within]
    if len(slab.low) > 1:  # each group is sorted separately; a stable sort merges them
        order = np.argsort(as_bytes(windows), kind="stable")
        positions, windows = positions[order], windows[order]
    new = np.ones(len(positions), np.bool_)
    new[1:] = (windows[1:] != windows[:-1]).any(axis=1)
    starts = np.flatnonzero(new)
    runs = Runs(positions, starts)
    return runs.select(runs.counts > 1)


def as_bytes(windows: NDArray[np.integer]) -> NDArray[np.bytes_]:
    """Returns rows of tokens as bytes with the same order, shape (rows,)."""
    big = np.ascontiguousarray(windows, windows.dtype.newbyteorder(">"))
    return big.view(f"S{big.shape[1] * big.itemsize}").reshape(-1)


def occurrences(runs: Runs) -> NDArray[np.void]:
    """Returns the OCCURRENCE records of some runs, sorted by key."""
    records = np.empty(len(runs.positions), OCCURRENCE)
    if len(records):
        counts = runs.counts
        first = np.repeat(np.minimum.reduceat(runs.positions, runs.starts), counts)
        records["key"] = 2 * runs.positions + (runs.positions != first)
        records["count"] = np.repeat(counts, counts)
    return by_key(records)


class _SuffixGroup(NamedTuple):
    """Suffixes with a common prefix: their number, the first position, and the token before all of them (-1: differ).

    Suffixes at the beginning of documents have no token before them, and count as different.
    """

    size: int
    first: int
    before: int

    def joined(self, other: "_SuffixGroup") -> "_SuffixGroup":
        before = self.before if self.before == other.before else -1
        return _SuffixGroup(self.size + other.size, min(self.first, other.first), before)


def maximal(suffixes: Suffixes, runs: Runs, width: int, limit: int) -> NDArray[np.void]:
    """Returns the maximal repeats (MAXIMAL) of at least `width` tokens that begin with some runs of `width` tokens.

    Args:
        suffixes: the suffixes.
        runs: repeated runs, each with all of its occurrences.
        width: length of a run, in tokens.
        limit: for a run with more occurrences, only the repeat that all of them share is returned.
    """
    if not len(runs.starts):
        return np.empty(0, MAXIMAL)
    runs = runs.select(_differ(_before(suffixes, runs.positions), runs.starts))
    repeats: list[tuple[int, int, int]] = []
    for positions in np.split(runs.positions, runs.starts[1:]):
        repeats += (
            _extend(suffixes, positions, width)
            if len(positions) <= limit
            else [_common_repeat(suffixes, positions, limit)]
        )
    return np.array(repeats, MAXIMAL)


def _before(suffixes: Suffixes, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    tokens = suffixes.before(positions)
    tokens[tokens == suffixes.eos] = -1
    return tokens


def _differ(before: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Returns for each run whether its occurrences follow different tokens, shape (runs,)."""
    low, high = np.minimum.reduceat(before, starts), np.maximum.reduceat(before, starts)
    differ: NDArray[np.bool_] = (low != high) | (low == -1)
    return differ


def _extend(suffixes: Suffixes, positions: NDArray[np.int64], depth: int) -> Iterator[tuple[int, int, int]]:
    """Yields the maximal repeats of suffixes that share their first `depth` tokens and follow different tokens."""
    pending = [(positions, depth)] if len(positions) else []
    while pending:
        positions, depth = pending.pop()
        # Few suffixes with a long common prefix probably share more: two copies of a book are compared in large blocks.
        block = _BLOCK if len(positions) > _FEW_SUFFIXES else max(_BLOCK, min(depth, _MAX_BLOCK))
        windows = suffixes.text.windows(positions + depth, block)
        order = np.argsort(as_bytes(windows), kind="stable")
        positions, windows = positions[order], windows[order]
        differs = (windows[1:] != windows[:-1]) | (windows[1:] == suffixes.eos)
        common = np.where(differs.any(axis=1), differs.argmax(axis=1), block)
        starts = np.append(0, np.flatnonzero(common < block) + 1)
        before = _before(suffixes, positions)
        lowest, highest = (edge.reduceat(before, starts) for edge in (np.minimum, np.maximum))
        first = np.minimum.reduceat(positions, starts)
        counts = np.diff(np.append(starts, len(positions)))
        groups = [
            _SuffixGroup(count, position, low if low == high else -1)
            for count, position, low, high in zip(
                *(values.tolist() for values in (counts, first, lowest, highest)), strict=True
            )
        ]
        for height, group in _nodes(groups, common[starts[1:] - 1].tolist()):
            if group.before == -1:
                yield depth + height, group.size, group.first
        for start, group in zip(starts.tolist(), groups, strict=True):
            if group.size > 1 and group.before == -1:
                pending.append((positions[start : start + group.size], depth + block))


def _common_repeat(suffixes: Suffixes, positions: NDArray[np.int64], limit: int) -> tuple[int, int, int]:
    """Returns the longest common prefix of suffixes as a repeat; reads `limit` suffixes at a time."""
    depth, common = 0, _BLOCK
    while common == _BLOCK:
        first = suffixes.text.windows(positions[:1] + depth, _BLOCK)
        for begin in range(0, len(positions), limit):
            windows = suffixes.text.windows(positions[begin : begin + limit] + depth, _BLOCK)
            differs = ((windows != first) | (windows == suffixes.eos)).any(axis=0)
            common = min(common, int(differs.argmax()) if differs.any() else _BLOCK)
        depth += common
    return depth, len(positions), int(positions.min())


def _nodes(groups: list[_SuffixGroup], heights: list[int]) -> Iterator[tuple[int, _SuffixGroup]]:
    """Yields the inner nodes of the tree over some leaves, each with its height.

    Args:
        groups: the leaves, in order.
        heights: length of the common prefix of each leaf, except the first, with the leaf before it.
    """
    stack: list[tuple[int, _SuffixGroup]] = []
    for group, height in zip(groups, [*heights, -1], strict=True):
        node = group
        while stack and stack[-1][0] > height:
            below, started = stack.pop()
            node = started.joined(node)
            yield below, node
        if stack and stack[-1][0] == height:
            stack[-1] = (height, stack[-1][1].joined(node))
        elif height >= 0:
            stack.append((height, node))


def outstanding(repeats: NDArray[np.void], by: tuple[str, str], limit: int) -> NDArray[np.void]:
    """Returns the first `limit` repeats by two fields, descending, without those that overlap a previous one.

    Every part of a line of dashes is a repeat, and without this rule such repeats would fill the list. Overlaps are
    those of first occurrences.
    """
    order = np.lexsort((repeats["position"], -repeats[by[1]], -repeats[by[0]]))
    remaining = repeats[order]
    selected: list[np.void] = []
    while len(remaining) and len(selected) < limit:
        repeat = remaining[0]
        selected.append(repeat)
        apart = remaining["position"] + remaining["tokens"] <= repeat["position"]
        remaining = remaining[apart | (remaining["position"] >= repeat["position"] + repeat["tokens"])]
    return np.array(selected, MAXIMAL)
