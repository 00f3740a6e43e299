"""Maximal repeats: those that cannot be longer without occurring less often.

They are the nodes of the suffix tree whose occurrences do not all follow the same token (Gusfield, "Algorithms on
Strings, Trees and Sequences", 1997, section 7.12). The tree is never built: of the runs of `width` tokens that occur
more than once, those are followed whose occurrences follow different tokens, `_BLOCK` tokens at a time, and the nodes
between two blocks are intervals of common prefixes (Abouelhoda, Kurtz and Ohlebusch, "Replacing suffix trees with
enhanced suffix arrays", J. Discrete Algorithms 2, 2004). Any other run is part of a longer one that occurs as often.

`Runs` are runs of `width` tokens that occur more than once: their occurrences, and where each stands first.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.formats.dedup.sorted_runs import by_key
from tasks.stages.repeats.suffixes import Slab, Suffixes

OCCURRENCE = np.dtype([("key", "<u8"), ("count", "<u4")])
"""A place where a repeated run begins: twice its position in the text, and one more where the run stands earlier, too;
and the number of its occurrences."""


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


_BLOCK, _LARGEST, _FEW = 64, 1 << 13, 16
REPEAT = np.dtype([("tokens", "<i8"), ("occurrences", "<i8"), ("position", "<i8")])
"""A maximal repeat: its length, how often it occurs, and where it does so first in the text."""


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
    """Returns the maximal repeats (REPEAT) of at least `width` tokens that begin with some runs of `width` tokens.

    Args:
        suffixes: of the text.
        runs: repeated runs, each with all of its occurrences.
        width: tokens of a run.
        most: of a run with more occurrences, only the repeat that all of these share is returned.
    """
    if not len(runs.starts):
        return np.empty(0, REPEAT)
    runs = runs.chosen(_differ(_before(suffixes, runs.positions), runs.starts))
    found: list[tuple[int, int, int]] = []
    for positions in np.split(runs.positions, runs.starts[1:]):
        found += (
            _followed(suffixes, positions, width) if len(positions) <= most else [_shared(suffixes, positions, most)]
        )
    return np.array(found, REPEAT)


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
    return np.array(found, REPEAT)
