"""Settings of the dedup stage."""

from pydantic import Field, model_validator

from tasks.core.config import Config


class MinhashConfig(Config):
    """How near-duplicate candidates are found. Two texts become candidates when one whole band is equal.

    With b bands of r rows a pair of Jaccard similarity s becomes a candidate with probability
    1 - (1 - s^r)^b (Leskovec, Rajaraman, Ullman, Mining of Massive Datasets, 3.4.2). The defaults give
    0.95 at s = 0.8, 0.9999 at 0.9 and 0.06 at 0.5. 20 bands of 6 rows give 0.997 at 0.8 and 0.27 at 0.5: more
    texts to read again; never more wrong verdicts, since every candidate is verified.
    """

    permutations: int = Field(default=128, ge=1)
    """Values per signature; `bands` x `rows` of them are used."""

    bands: int = Field(default=16, ge=1)
    """Chances that a pair gets to be seen. More find more, and cost 8 bytes per document each."""

    rows: int = Field(default=8, ge=1)
    """Values per band that must all be equal. More bring fewer chance candidates and lose more true ones."""

    shingle: int = Field(default=5, ge=1)
    """Words per shingle. Shorter ones make texts of one topic look alike."""

    seed: int = Field(default=1, ge=0, lt=2**32)
    """Draws the permutations."""

    max_bucket: int = Field(default=200, ge=2)
    """Largest bucket (texts with one band in common) whose pairs are all verified.

    A larger bucket is a template or boilerplate and would cost a square of its size: there each text is
    verified against the `max_bucket` most preferred ones only. That can miss duplicates, never invent one;
    the metrics count such buckets.
    """

    @model_validator(mode="after")
    def _bands_fit(self) -> "MinhashConfig":
        if self.bands * self.rows > self.permutations:
            raise ValueError(
                f"{self.bands} bands x {self.rows} rows need {self.bands * self.rows} permutations, "
                f"there are {self.permutations}"
            )
        return self


class DedupConfig(Config):
    """Which documents count as copies of one another."""

    exact: bool = True
    """Find texts that are equal after normalisation (case, punctuation and layout aside)."""

    near: bool = True
    """Find texts that share most of their shingles."""

    minhash: MinhashConfig = MinhashConfig()
    """How near duplicates are looked for."""

    jaccard: float = Field(default=0.8, gt=0, le=1)
    """A candidate is a duplicate when at least this share of the shingles of both texts is common to both."""

    pairs_per_part: int = Field(default=50_000, ge=1)
    """Candidate pairs that one worker verifies at a time. Bounds its memory: it holds the texts of these pairs."""

    alarm_share: float = Field(default=0.5, ge=0, le=1)
    """A source that loses a larger share of its documents is named in a warning and in the metrics."""
