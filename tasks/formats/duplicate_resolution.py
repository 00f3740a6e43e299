"""Who stays of a group of copies: the one rule, shared by the stage that finds copies and the stage that drops.

Pure functions over arrays. `dedup` applies the rule to all documents, `consolidate` again to those that pass the other
rules: there a copy takes the place of a preferred document that was itself dropped.

The rule: walk the documents in order of preference; a document goes when its text equals that of one that stays, or
when a *verified* pair links the two texts; otherwise it stays. So a document never goes for a link over third texts
(A ~ B ~ C does not make C a copy of A), and of two texts with a verified link never both stay.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Choice:
    """What becomes of each document.

    `keeper` int64 (documents,): position of the document it is a copy of; its own for one that stays.
    `jaccard` float32 (documents,): similarity of the two texts; 1 for equal texts and for one that stays.
    """

    keeper: NDArray[np.int64]
    jaccard: NDArray[np.float32]


def choose(texts: NDArray[np.int64], pairs: NDArray[np.int64], jaccard: NDArray[np.float32]) -> Choice:
    """Applies the rule.

    Args:
        texts: shape (documents,), number of each document's text (equal texts, equal number), most preferred first.
        pairs: shape (pairs, 2), text numbers of verified pairs, in any order.
        jaccard: shape (pairs,), similarity of each pair.

    Returns:
        A choice in which every document that goes has a keeper that stays. Of several possible keepers it is the
        most preferred.
    """
    linked = _neighbours(pairs, jaccard)
    stays: dict[int, int] = {}
    keeper = np.arange(len(texts), dtype=np.int64)
    similarity = np.ones(len(texts), dtype=np.float32)
    for position, text in enumerate(texts.tolist()):
        if text in stays:
            keeper[position] = stays[text]
            continue
        near = [(stays[other], share) for other, share in linked.get(text, ()) if other in stays]
        if near:
            keeper[position], similarity[position] = min(near)
        else:
            stays[text] = position
    return Choice(keeper, similarity)


def _neighbours(pairs: NDArray[np.int64], jaccard: NDArray[np.float32]) -> dict[int, list[tuple[int, float]]]:
    linked: dict[int, list[tuple[int, float]]] = {}
    for (left, right), share in zip(pairs.tolist(), jaccard.tolist(), strict=True):
        linked.setdefault(left, []).append((right, share))
        linked.setdefault(right, []).append((left, share))
    return linked
