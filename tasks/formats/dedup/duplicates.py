"""Duplicates: the rule that says which documents of a cluster are kept, and the audit of what was found.

The rule, pure functions over arrays: in order of preference, a document is dropped when its text equals that of a kept
document, or when a *verified* pair links the two texts; otherwise it is kept. So links are not transitive (A ~ B ~ C
does not make C a duplicate of A), and of two texts with a verified link at most one is kept. `dedup` applies it to all
documents, `consolidate` again to those that pass the other rules: there a duplicate replaces a preferred document that
was itself dropped.

The audit is `audit.json` of an artifact `duplicates`: sizes of clusters, the largest ones, pairs of texts on both sides
of the threshold, and shares of duplicates by source and domain. Its size does not grow with the documents. These are
named by their ids, without text and address: a reader that shows texts applies takedowns and masks personal data.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

AUDIT_FILE = "audit.json"


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


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Bin(_Frozen):
    """Clusters of `first` to `last` documents: how many there are, and the documents in them."""

    first: int
    last: int
    clusters: int
    documents: int

    @property
    def name(self) -> str:
        """The range of sizes: "2", "3-4"."""
        return f"{self.first}-{self.last}" if self.first < self.last else f"{self.last}"


class Cluster(_Frozen):
    """A cluster: the id of its most preferred document, its documents, distinct texts, and some of its documents.

    `shown` has ids of documents with different texts, most preferred first.
    """

    cluster: str
    documents: int
    texts: int
    shown: tuple[str, ...]


class Pair(_Frozen):
    """Two texts that were compared, each by the id of its most preferred document, and their similarity.

    `clusters` are those of the two documents; None for a document without copies.
    """

    ids: tuple[str, str]
    clusters: tuple[str | None, str | None]
    jaccard: float


class Side(_Frozen):
    """The pairs on one side of the threshold: how many there are, and some of them by descending similarity."""

    pairs: int
    shown: tuple[Pair, ...]


class Loss(_Frozen):
    """A source or domain: its documents, and how many of these are duplicates."""

    name: str
    documents: int
    duplicates: int

    @property
    def share(self) -> float:
        """Share of duplicates."""
        return self.duplicates / self.documents


class DuplicateAudit(_Frozen):
    """The audit of a corpus.

    `jaccard` is the threshold; `below` and `above` have pairs that are at most `width` away from it. `domains` has
    those with the most duplicates, `domain_count` is the number of all.
    """

    jaccard: float
    width: float
    sizes: tuple[Bin, ...]
    largest: tuple[Cluster, ...]
    below: Side
    above: Side
    sources: tuple[Loss, ...]
    domains: tuple[Loss, ...]
    domain_count: int

    def ids(self) -> set[str]:
        """Returns the ids of all documents to show."""
        pairs = (*self.below.shown, *self.above.shown)
        return {one for cluster in self.largest for one in cluster.shown} | {one for pair in pairs for one in pair.ids}

    def clusters(self) -> set[str]:
        """Returns the clusters of these documents."""
        pairs = (*self.below.shown, *self.above.shown)
        of_pairs = {cluster for pair in pairs for cluster in pair.clusters if cluster}
        return {cluster.cluster for cluster in self.largest} | of_pairs
