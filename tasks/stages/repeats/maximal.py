"""Maximal repeats of the training tokens: those that cannot be longer without occurring less often.

`Suffixes` reads `spans` and `shards`: the suffixes of all groups in one order, in pieces of bounded size. The groups
are sorted each on its own; a range of the common order is a range of each of them, and nothing is merged on disk.

`Runs` are runs of `width` tokens that occur more than once: their occurrences, and where each stands first.

Maximal repeats are the nodes of the suffix tree whose occurrences do not all follow the same token (Gusfield,
"Algorithms on Strings, Trees and Sequences", 1997, section 7.12). The tree is never built: of the runs of `width`
tokens those are followed whose occurrences follow different tokens, `_BLOCK` tokens at a time, and the nodes between
two blocks are intervals of common prefixes (Abouelhoda, Kurtz and Ohlebusch, "Replacing suffix trees with enhanced
suffix arrays", J. Discrete Algorithms 2, 2004). Any other run is part of a longer one that occurs as often.
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
"""Tokens that a range begins with, before those that it ends before."""

OCCURRENCE = np.dtype([("key", "<u8"), ("count", "<u4")])
"""A place where a repeated run begins: twice its position in the text, and one more where the run stands earlier, too;
and the number of its occurrences."""

_BLOCK, _LARGEST, _FEW = 64, 1 << 13, 16

MAXIMAL = np.dtype([("tokens", "<i8"), ("occurrences", "<i8"), ("position", "<i8")])
"""A maximal repeat: its length, how often it occurs, and where it does so first in the text."""


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
        self.text = TokenText.joined(group.text for group in self._groups)
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


class Runs(NamedTuple):
    """Repeated runs of equal length: positions of their occurrences, run after run."""

    positions: NDArray[np.int64]
    starts: NDArray[np.int64]
    """Where each run begins in `positions`, shape (runs,)."""

    @property
    def counts(self) -> NDArray[np.int64]:
        """Occurrences of each run, at least 2, shape (runs,)."""
        return np.diff(np.append(self.starts, len(self.positions)))

    def chosen(self, which: NDArray[np.bool_]) -> "Runs":
        """Returns some of the runs."""
        counts = self.counts
        kept = self.positions[np.repeat(which, counts)]
        return Runs(kept, np.cumsum(counts[which]) - counts[which])


def repeated(suffixes: Suffixes, slab: Slab, width: int, *, same: bool) -> Runs:
    """Returns the runs of `width` tokens without end-of-text that occur more than once.

    Args:
        suffixes: of the text.
        slab: a range of them, without a part of the suffixes that begin with the same tokens.
        width: tokens of a run.
        same: whether all suffixes of the range begin with the same `width` tokens.
    """
    positions = suffixes.positions(slab)
    if same:
        windows = suffixes.text.windows(positions[:1], width)
        whole = Runs(positions, np.zeros(1, np.int64))
        return whole.chosen(np.array([not (windows == suffixes.eos).any() and len(positions) > 1]))
    windows = suffixes.text.windows(positions, width)
    within = ~(windows == suffixes.eos).any(axis=1)
    positions, windows = positions[within], windows[within]
    if len(slab.low) > 1:  # groups are sorted each on its own; a stable sort merges them
        order = np.argsort(as_bytes(windows), kind="stable")
        positions, windows = positions[order], windows[order]
    new = np.ones(len(positions), np.bool_)
    new[1:] = (windows[1:] != windows[:-1]).any(axis=1)
    starts = np.flatnonzero(new)
    found = Runs(positions, starts)
    return found.chosen(found.counts > 1)


def as_bytes(windows: NDArray[np.integer]) -> NDArray[np.bytes_]:
    """Returns rows of tokens as bytes that are ordered as the tokens are, shape (rows,)."""
    big = np.ascontiguousarray(windows, windows.dtype.newbyteorder(">"))
    return big.view(f"S{big.shape[1] * big.itemsize}").reshape(-1)


def occurrences(runs: Runs) -> NDArray[np.void]:
    """Returns OCCURRENCE of all occurrences of some runs, sorted by key."""
    found = np.empty(len(runs.positions), OCCURRENCE)
    if len(found):
        counts = runs.counts
        first = np.repeat(np.minimum.reduceat(runs.positions, runs.starts), counts)
        found["key"] = 2 * runs.positions + (runs.positions != first)
        found["count"] = np.repeat(counts, counts)
    return by_key(found)


class _Group(NamedTuple):
    """Some suffixes with a common prefix: how many, the first position, and the token before all of them (-1: differ).

    At the beginning of a document nothing is before a suffix, so that two of these differ, too.
    """

    size: int
    first: int
    before: int

    def joined(self, other: "_Group") -> "_Group":
        before = self.before if self.before == other.before else -1
        return _Group(self.size + other.size, min(self.first, other.first), before)


def maximal(suffixes: Suffixes, runs: Runs, width: int, most: int) -> NDArray[np.void]:
    """Returns the maximal repeats (MAXIMAL) of at least `width` tokens that begin with some runs of `width` tokens.

    Args:
        suffixes: of the text.
        runs: repeated runs, each with all of its occurrences.
        width: tokens of a run.
        most: of a run with more occurrences, only the repeat that all of these share is returned.
    """
    if not len(runs.starts):
        return np.empty(0, MAXIMAL)
    runs = runs.chosen(_differ(_before(suffixes, runs.positions), runs.starts))
    found: list[tuple[int, int, int]] = []
    for positions in np.split(runs.positions, runs.starts[1:]):
        found += (
            _followed(suffixes, positions, width) if len(positions) <= most else [_shared(suffixes, positions, most)]
        )
    return np.array(found, MAXIMAL)


def _before(suffixes: Suffixes, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    found = suffixes.before(positions)
    found[found == suffixes.eos] = -1
    return found


def _differ(before: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Returns of each run whether its occurrences follow different tokens, shape (runs,)."""
    least, most = np.minimum.reduceat(before, starts), np.maximum.reduceat(before, starts)
    differ: NDArray[np.bool_] = (least != most) | (least == -1)
    return differ


def _followed(suffixes: Suffixes, positions: NDArray[np.int64], depth: int) -> Iterator[tuple[int, int, int]]:
    """Yields the maximal repeats of suffixes whose first `depth` tokens are equal, and that follow different tokens."""
    pending = [(positions, depth)] if len(positions) else []
    while pending:
        positions, depth = pending.pop()
        # Few suffixes that have much in common have much more: a book that is there twice is compared in large blocks.
        block = _BLOCK if len(positions) > _FEW else max(_BLOCK, min(depth, _LARGEST))
        windows = suffixes.text.windows(positions + depth, block)
        order = np.argsort(as_bytes(windows), kind="stable")
        positions, windows = positions[order], windows[order]
        differs = (windows[1:] != windows[:-1]) | (windows[1:] == suffixes.eos)
        common = np.where(differs.any(axis=1), differs.argmax(axis=1), block)
        starts = np.append(0, np.flatnonzero(common < block) + 1)
        before = _before(suffixes, positions)
        least, most = (edge.reduceat(before, starts) for edge in (np.minimum, np.maximum))
        first = np.minimum.reduceat(positions, starts)
        counts = np.diff(np.append(starts, len(positions)))
        groups = [
            _Group(count, at, one if one == other else -1)
            for count, at, one, other in zip(*(values.tolist() for values in (counts, first, least, most)), strict=True)
        ]
        for height, group in _nodes(groups, common[starts[1:] - 1].tolist()):
            if group.before == -1:
                yield depth + height, group.size, group.first
        for start, group in zip(starts.tolist(), groups, strict=True):
            if group.size > 1 and group.before == -1:
                pending.append((positions[start : start + group.size], depth + block))


def _shared(suffixes: Suffixes, positions: NDArray[np.int64], most: int) -> tuple[int, int, int]:
    """Returns the repeat that all of some suffixes share, in blocks of `most` suffixes."""
    depth, common = 0, _BLOCK
    while common == _BLOCK:
        first = suffixes.text.windows(positions[:1] + depth, _BLOCK)
        for begin in range(0, len(positions), most):
            windows = suffixes.text.windows(positions[begin : begin + most] + depth, _BLOCK)
            differs = ((windows != first) | (windows == suffixes.eos)).any(axis=0)
            common = min(common, int(differs.argmax()) if differs.any() else _BLOCK)
        depth += common
    return depth, len(positions), int(positions.min())


def _nodes(groups: list[_Group], heights: list[int]) -> Iterator[tuple[int, _Group]]:
    """Yields the inner nodes over some leaves, each with its height.

    Args:
        groups: the leaves, in order.
        heights: what each leaf but the first has in common with the one before it.
    """
    open_: list[tuple[int, _Group]] = []
    for group, height in zip(groups, [*heights, -1], strict=True):
        done = group
        while open_ and open_[-1][0] > height:
            below, started = open_.pop()
            done = started.joined(done)
            yield below, done
        if open_ and open_[-1][0] == height:
            open_[-1] = (height, open_[-1][1].joined(done))
        elif height >= 0:
            open_.append((height, done))


def outstanding(repeats: NDArray[np.void], by: tuple[str, str], most: int) -> NDArray[np.void]:
    """Returns the first `most` of some repeats by two fields, descending, without any that overlaps one before it.

    Of a line of dashes every part is a repeat: without this rule there would be nothing else. Places are those of the
    first occurrences.
    """
    order = np.lexsort((repeats["position"], -repeats[by[1]], -repeats[by[0]]))
    left = repeats[order]
    found: list[np.void] = []
    while len(left) and len(found) < most:
        one = left[0]
        found.append(one)
        apart = left["position"] + left["tokens"] <= one["position"]
        left = left[apart | (left["position"] >= one["position"] + one["tokens"])]
    return np.array(found, MAXIMAL)
