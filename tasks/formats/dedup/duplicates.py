"""Duplicate resolution: which documents of a cluster of duplicates are kept.

Pure functions over arrays. `dedup` applies the rule to all documents, `consolidate` again to those that pass the other
rules: there a duplicate replaces a preferred document that was itself dropped.

The rule: in order of preference, a document is dropped when its text equals that of a kept document, or when a
*verified* pair links the two texts; otherwise it is kept. So links are not transitive (A ~ B ~ C does not make C a
duplicate of A), and of two texts with a verified link at most one is kept.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Choice:
    """The keeper of each document.

    `keeper` int64 (documents,): position of the document it is a duplicate of; its own position if it is kept.
    `jaccard` float32 (documents,): similarity of the two texts; 1 for equal texts and for kept documents.
    """

    keeper: NDArray[np.int64]
    jaccard: NDArray[np.float32]


def choose(texts: NDArray[np.int64], pairs: NDArray[np.int64], jaccard: NDArray[np.float32]) -> Choice:
    """Returns the keeper of each document.

    Args:
        texts: shape (documents,), number of each document's text (equal texts, equal number), most preferred first.
        pairs: shape (pairs, 2), text numbers of verified pairs, in any order.
        jaccard: shape (pairs,), similarity of each pair.

    Returns:
        A choice in which every dropped document has a keeper that is kept: of several possible ones the most preferred.
    """
    linked = _neighbours(pairs, jaccard)
    kept: dict[int, int] = {}
    keeper = np.arange(len(texts), dtype=np.int64)
    similarity = np.ones(len(texts), dtype=np.float32)
    for position, text in enumerate(texts.tolist()):
        if text in kept:
            keeper[position] = kept[text]
            continue
        near = [(kept[other], share) for other, share in linked.get(text, ()) if other in kept]
        if near:
            keeper[position], similarity[position] = min(near)
        else:
            kept[text] = position
    return Choice(keeper, similarity)


def _neighbours(pairs: NDArray[np.int64], jaccard: NDArray[np.float32]) -> dict[int, list[tuple[int, float]]]:
    linked: dict[int, list[tuple[int, float]]] = {}
    for (left, right), share in zip(pairs.tolist(), jaccard.tolist(), strict=True):
        linked.setdefault(left, []).append((right, share))
        linked.setdefault(right, []).append((left, share))
    return linked
