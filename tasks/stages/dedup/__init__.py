"""Stage dedup: documents and prose scores -> exact and near duplicates."""

from typing import Literal

from pydantic import Field, model_validator

from tasks.core.config import Config
from tasks.core.stage_spec import Input, PreviousInput, StageSpec, Takedowns


class MinhashConfig(Config):
    """Candidate generation for near duplicates. Two texts become candidates if one of their bands is equal.

    With b bands of r rows a pair of Jaccard similarity s becomes a candidate with probability
    1 - (1 - s^r)^b (Leskovec, Rajaraman, Ullman, Mining of Massive Datasets, 3.4.2). The defaults give
    0.95 at s = 0.8, 0.9999 at 0.9 and 0.06 at 0.5. 20 bands of 6 rows give 0.997 at 0.8 and 0.27 at 0.5: more
    candidates to verify, but not more wrong verdicts, because every candidate is verified.
    """

    permutations: int = Field(default=128, ge=1)
    """Values per signature; `bands` x `rows` of them are used."""

    bands: int = Field(default=16, ge=1)
    """Number of bands. More bands raise recall and cost 8 bytes per document each."""

    rows: int = Field(default=8, ge=1)
    """Values per band, which must all be equal. More rows give fewer false candidates and a lower recall."""

    shingle: int = Field(default=5, ge=1)
    """Words per shingle. Short shingles raise the similarity of texts on the same topic."""

    seed: int = Field(default=1, ge=0, lt=2**32)
    """Seed of the permutations."""

    max_bucket: int = Field(default=200, ge=2)
    """Largest bucket (texts that share a band) whose pairs are all verified.

    A larger bucket comes from a template or boilerplate, and its number of pairs is quadratic in its size: each of its
    texts is verified only against the `max_bucket` most preferred ones. This can miss duplicates but does not add false
    ones; the metrics count such buckets.
    """

    @model_validator(mode="after")
    def _bands_fit(self) -> "MinhashConfig":
        if self.bands * self.rows > self.permutations:
            raise ValueError(
                f"{self.bands} bands x {self.rows} rows need {self.bands * self.rows} permutations, "
                f"but there are {self.permutations}"
            )
        return self


class DedupConfig(Config):
    """Criteria for duplicates."""

    exact: bool = True
    """Finds texts that are equal after normalization of case, punctuation and layout; of code and data, of layout."""

    near: bool = True
    """Finds texts that share most of their shingles."""

    minhash: MinhashConfig = MinhashConfig()
    """Candidate generation for near duplicates."""

    prefer: Literal["first", "quality"] = "first"
    """With a dedup index (`[dedup_index]`): whether a document published by an earlier version is kept when a better
    copy is found ("first"), or is replaced by it ("quality")."""

    pages: Literal["newest", "all"] = "newest"
    """Captures of a page to keep, of those that pass the filters, in this version or the index: the newest one, or all
    that are not duplicates."""

    jaccard: float = Field(default=0.8, gt=0, le=1)
    """Minimum Jaccard similarity of the shingle sets of a duplicate pair."""

    pairs_per_part: int = Field(default=50_000, ge=1)
    """Approximate number of candidate pairs per verification task."""

    records_per_bucket: int = Field(default=1_000_000, ge=1)
    """Records (hashes, band keys, edges) per task in passes over the whole corpus. Bounds the memory of a worker, at
    about 200 bytes per record."""

    alarm_share: float = Field(default=0.5, ge=0, le=1)
    """Share of duplicates above which a source is reported in a warning and in the metrics."""


STAGES = (
    StageSpec(
        "dedup",
        dag="corpus",
        output="duplicates",
        config=DedupConfig,
        inputs={"extracted": Input("extracted"), "prose_score": Input("attributes", group="prose_score")},
        previous={
            "index": PreviousInput(
                "dedup_index", completed_by="dedup_index", accumulates=True, when="dedup_index.enabled"
            )
        },
        decided_by="extracted",
        takedowns=Takedowns(when="dedup_index.enabled"),
    ),
)
