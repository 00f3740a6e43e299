"""Runs of `width` tokens that occur more than once: their occurrences, and where each stands first."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.formats.sorted_runs import by_key
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
