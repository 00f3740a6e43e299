"""Duplicates: the rule that selects the documents to keep, and the audit of the duplicates.

The rule is implemented by pure functions over arrays. In order of preference, a document is dropped if its text equals
that of a kept document or a *verified* pair links the two texts; otherwise it is kept. Links are not transitive
(A ~ B ~ C does not make C a duplicate of A), and of two texts with a verified link at most one is kept. `dedup` applies
the rule to all documents. `consolidate` applies it again to the documents that pass the other rules, where a duplicate
may replace a preferred document that was rejected.

The audit is `audit.json` of an artifact `duplicates`: cluster sizes, the largest clusters, pairs of texts on both sides
of the threshold, and shares of duplicates by source and domain. Its size does not grow with the number of documents. It
refers to documents by id and contains no text or URL, so that a reader applies takedowns and masks personal data before
it shows them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

AUDIT_FILE = "audit.json"


@dataclass(frozen=True)
class Choice:
    """The keeper of each document.

    Attributes:
        keeper: position of the document that this one duplicates, or its own position if it is kept; int64, shape
            (documents,).
        jaccard: similarity of the two texts; 1 for equal texts and for kept documents; float32, shape (documents,).
    """

    keeper: NDArray[np.int64]
    jaccard: NDArray[np.float32]


def choose(texts: NDArray[np.int64], pairs: NDArray[np.int64], jaccard: NDArray[np.float32]) -> Choice:
    """Returns the keeper of each document.

    Args:
        texts: text number of each document (equal texts have equal numbers), most preferred first, shape (documents,).
        pairs: text numbers of verified pairs, in any order, shape (pairs, 2).
        jaccard: similarity of each pair, shape (pairs,).

    Returns:
        A choice in which the keeper of each dropped document is the most preferred kept one that it duplicates.
    """
    linked = _linked_texts(pairs, jaccard)
    kept: dict[int, int] = {}
    keeper = np.arange(len(texts), dtype=np.int64)
    similarity = np.ones(len(texts), dtype=np.float32)
    for position, text in enumerate(texts.tolist()):
        if text in kept:
            keeper[position] = kept[text]
            continue
        candidates = [(kept[other], share) for other, share in linked.get(text, ()) if other in kept]
        if candidates:
            keeper[position], similarity[position] = min(candidates)
        else:
            kept[text] = position
    return Choice(keeper, similarity)


def _linked_texts(pairs: NDArray[np.int64], jaccard: NDArray[np.float32]) -> dict[int, list[tuple[int, float]]]:
    linked: dict[int, list[tuple[int, float]]] = {}
    for (left, right), share in zip(pairs.tolist(), jaccard.tolist(), strict=True):
        linked.setdefault(left, []).append((right, share))
        linked.setdefault(right, []).append((left, share))
    return linked


class _AuditModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SizeBin(_AuditModel):
    """Number of clusters of `first` to `last` documents, and of the documents in them."""

    first: int
    last: int
    clusters: int
    documents: int

    @property
    def name(self) -> str:
        """The range of sizes: "2", "3-4"."""
        return f"{self.first}-{self.last}" if self.first < self.last else f"{self.last}"


class DuplicateCluster(_AuditModel):
    """A cluster of duplicates.

    Attributes:
        cluster: id of its most preferred document.
        documents: number of documents.
        texts: number of distinct texts.
        shown: ids of some documents with different texts, most preferred first.
    """

    cluster: str
    documents: int
    texts: int
    shown: tuple[str, ...]


class Pair(_AuditModel):
    """Two texts that were compared.

    Attributes:
        ids: the most preferred document of each text.
        clusters: clusters of the two documents; None for a document without copies.
        jaccard: similarity of the texts.
    """

    ids: tuple[str, str]
    clusters: tuple[str | None, str | None]
    jaccard: float


class Side(_AuditModel):
    """The number of pairs on one side of the threshold, and some of them by descending similarity."""

    pairs: int
    shown: tuple[Pair, ...]


class Loss(_AuditModel):
    """A source or domain with its numbers of documents and duplicates."""

    name: str
    documents: int
    duplicates: int

    @property
    def share(self) -> float:
        """Share of duplicates."""
        return self.duplicates / self.documents


class DuplicateAudit(_AuditModel):
    """The audit of a corpus.

    Attributes:
        jaccard: the threshold.
        width: maximum distance from the threshold of the pairs in `below` and `above`.
        sizes: numbers of clusters by size.
        largest: the largest clusters.
        below, above: pairs on both sides of the threshold.
        sources: all sources.
        domains: the domains with the most duplicates.
        domain_count: number of all domains.
    """

    jaccard: float
    width: float
    sizes: tuple[SizeBin, ...]
    largest: tuple[DuplicateCluster, ...]
    below: Side
    above: Side
    sources: tuple[Loss, ...]
    domains: tuple[Loss, ...]
    domain_count: int

    def ids(self) -> set[str]:
        """Returns the ids of all documents to show."""
        pairs = (*self.below.shown, *self.above.shown)
        in_clusters = {document for cluster in self.largest for document in cluster.shown}
        return in_clusters | {document for pair in pairs for document in pair.ids}

    def clusters(self) -> set[str]:
        """Returns the clusters of all documents to show."""
        pairs = (*self.below.shown, *self.above.shown)
        of_pairs = {cluster for pair in pairs for cluster in pair.clusters if cluster}
        return {cluster.cluster for cluster in self.largest} | of_pairs
