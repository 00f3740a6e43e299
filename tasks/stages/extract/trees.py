"""Boosted trees that classify the blocks of a page, and their weights.

Reads `blocks.json`, which `python -m benchmarks.train_blocks` writes. The trees are oblivious: all nodes of one depth
compare the same number with the same limit (Prokhorenkova et al., "CatBoost: unbiased boosting with categorical
features", NeurIPS 2018), so all blocks pass all trees in a few calls of NumPy. Leaves are whole numbers, whose sums
every machine computes the same.
"""

import functools
import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.stages.extract.block_features import COLUMNS, CONTEXT

SCALE = 1 << 12
"""Steps of a leaf per unit of log odds."""
MAX_DEPTH = 8
"""So that the number of a leaf is one byte."""
_AT_ONCE = 1_000


@dataclass(frozen=True)
class Trees:
    """Boosted oblivious trees of one depth.

    Attributes:
        columns: which feature is compared: depth, tree.
        limits: a number above its limit goes to the upper half of the leaves: depth, tree.
        leaves: what a leaf adds to the log odds, in steps of 1 / `SCALE`: tree, leaf.
        base: what stands before all trees, in the same steps.
    """

    columns: NDArray[np.intp]
    limits: NDArray[np.float32]
    leaves: NDArray[np.int64]
    base: int

    def odds(self, measured: NDArray[np.float32]) -> NDArray[np.float64]:
        """Returns the log odds that a block is main text; `measured` by `block_features`."""
        found = [self._odds(measured[:, at : at + _AT_ONCE]) for at in range(0, measured.shape[1], _AT_ONCE)]
        return np.concatenate(found) / SCALE

    def _odds(self, measured: NDArray[np.float32]) -> NDArray[np.int64]:
        depth, trees = self.columns.shape
        above = measured.take(self.columns.ravel(), axis=0) > self.limits.reshape(-1, 1)
        bits = above.view(np.uint8).reshape(depth, trees, -1)
        leaf = bits[0]
        for level in bits[1:]:
            leaf = (leaf << 1) | level
        starts = np.arange(trees)[:, np.newaxis] * self.leaves.shape[1]
        added: NDArray[np.int64] = self.leaves.ravel().take(leaf + starts).sum(axis=0) + self.base
        return added


@dataclass(frozen=True)
class Judges:
    """Trees that see one block at a time, and those that see the verdicts of the first on its neighbours, too."""

    first: Trees
    second: Trees


@functools.cache
def judges() -> Judges:
    """Returns the trees whose weights come with the package."""
    held = json.loads(files("tasks.stages.extract").joinpath("blocks.json").read_text("utf-8"))
    return Judges(parsed(held["first"], COLUMNS), parsed(held["second"], (*COLUMNS, *CONTEXT)))


def parsed(weights: dict[str, Any], columns: tuple[str, ...]) -> Trees:
    """Returns the trees of a file of weights.

    A tree is a list of names of columns and one of limits, each from the root down, and a list of leaves.
    """
    at = {name: index for index, name in enumerate(columns)}
    return Trees(
        columns=np.array([[at[name] for name in tree["columns"]] for tree in weights["trees"]], np.intp).T.copy(),
        limits=np.array([tree["limits"] for tree in weights["trees"]], np.float32).T.copy(),
        leaves=np.array([tree["leaves"] for tree in weights["trees"]], np.int64),
        base=weights["base"],
    )
