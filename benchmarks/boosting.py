"""Gradient boosting of oblivious trees for two classes, in NumPy.

Friedman, "Greedy Function Approximation: A Gradient Boosting Machine" (Annals of Statistics 2001), with the second
derivatives of Chen and Guestrin, "XGBoost" (KDD 2016), and trees that ask one question per depth, as CatBoost's do. No
drawing of rows or columns: the same numbers give the same trees.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RATE = 0.1
PENALTY = 5.0
"""Added to the second derivatives of a leaf (lambda of XGBoost)."""
BINS = 32


@dataclass(frozen=True)
class Forest:
    """Trees in the order in which they were grown: the first n of them are what n rounds give.

    Attributes:
        base: log odds before all trees.
        columns: what is compared: tree, depth.
        limits: a number above its limit goes to the upper half: tree, depth.
        leaves: what a leaf adds to the log odds: tree, leaf.
    """

    base: float
    columns: NDArray[np.intp]
    limits: NDArray[np.float64]
    leaves: NDArray[np.float64]


def grow(rows: NDArray[np.float64], labels: NDArray[np.float64], trees: int, depth: int) -> Forest:
    """Grows trees on examples (row, column), of which both labels, 0 and 1, occur."""
    edges = [_edges(column) for column in rows.T]
    binned = np.stack([np.searchsorted(edge, column) for edge, column in zip(edges, rows.T, strict=True)], axis=1)
    # A limit between two bins exists where there is an edge; bins are counted from 0 for each column.
    possible = np.arange(BINS) < np.array([[len(edge)] for edge in edges])
    base = float(np.log(labels.mean() / (1 - labels.mean())))
    odds = np.full(len(rows), base)
    forest = Forest(
        base,
        np.zeros((trees, depth), np.intp),
        np.zeros((trees, depth)),
        np.zeros((trees, 1 << depth)),
    )
    for tree in range(trees):
        chance = 1 / (1 + np.exp(-odds))
        slope, bend = chance - labels, chance * (1 - chance)
        leaf = np.zeros(len(rows), np.intp)
        for level in range(depth):
            column, bin_ = _best(binned, possible, leaf, 1 << level, slope, bend)
            forest.columns[tree, level], forest.limits[tree, level] = column, edges[column][bin_]
            leaf = leaf * 2 + (binned[:, column] > bin_)
        slopes, bends = (np.bincount(leaf, of, minlength=1 << depth) for of in (slope, bend))
        forest.leaves[tree] = -RATE * slopes / (bends + PENALTY)
        odds += forest.leaves[tree][leaf]
    return forest


def _edges(column: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns limits between the values of a column, of very many values those between quantiles."""
    values = np.unique(column)
    if len(values) > BINS:
        values = np.unique(np.quantile(column, np.linspace(0, 1, BINS), method="nearest"))
    # Six digits are more than a count or a quotient of counts has, and make the file of weights smaller.
    edges: NDArray[np.float64] = np.unique(np.round((values[1:] + values[:-1]) / 2, 6))
    return edges


def _best(
    binned: NDArray[np.intp],
    possible: NDArray[np.bool_],
    leaf: NDArray[np.intp],
    leaves: int,
    slope: NDArray[np.float64],
    bend: NDArray[np.float64],
) -> tuple[int, int]:
    """Returns the column and the bin behind which all leaves are best cut in two."""
    columns = binned.shape[1]
    place = (leaf[:, np.newaxis] * columns + np.arange(columns)) * BINS + binned

    def sums(of: NDArray[np.float64]) -> NDArray[np.float64]:
        counted = np.bincount(place.ravel(), np.repeat(of, columns), minlength=leaves * columns * BINS)
        return counted.reshape(leaves, columns, BINS).cumsum(axis=2)

    slopes, bends = sums(slope), sums(bend)
    above, bends_above = slopes[..., -1:] - slopes, bends[..., -1:] - bends
    gain = (slopes**2 / (bends + PENALTY) + above**2 / (bends_above + PENALTY)).sum(axis=0)
    column, bin_ = divmod(int(np.where(possible, gain, -1.0).argmax()), BINS)
    return column, bin_
