"""The audit of duplicates: `audit.json` of an artifact `duplicates`.

Sizes of clusters, the largest ones, pairs of texts on both sides of the threshold, and shares of duplicates by source
and domain. Documents are named by their ids, without text and address: a reader that shows texts applies takedowns and
masks personal data. Its size is bounded, however many documents there are.
"""

from pydantic import BaseModel, ConfigDict

AUDIT_FILE = "audit.json"


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
