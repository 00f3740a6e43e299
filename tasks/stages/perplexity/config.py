"""Settings of the stage train_perplexity; pydantic only, because recipes are read at DAG parse time."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from tasks.core.config import Config, absolute, duplicates
from tasks.filters.language_codes import UNDETERMINED

ANY_LANGUAGE = UNDETERMINED
"""The model for documents in whose language there is none."""

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=40)]
Language = Annotated[str, StringConstraints(pattern=r"^[a-z]{2,3}$")]


class Reference(Config):
    """Text that a document should resemble: edited, clean, of many subjects."""

    name: Name
    """What the model card calls it; of `documents`, the source in the corpus (`web`, or the name of a file source)."""

    kind: Literal["text", "jsonl", "documents"]
    """Files of one text each, or of one JSON object per line, or extracted documents of this recipe."""

    path: str = ""
    """Absolute glob of the files (`**` for any depth), on the machine where the stage runs or as a URL on an object
    store (s3://bucket/wiki/*.jsonl.zst); they may be compressed: .gz, .zst or .bz2."""

    text_field: str = "text"
    """JSON lines: the field that holds the text."""

    language: Language = ANY_LANGUAGE
    """Which model learns from it, an ISO 639 code. "und": the one for documents in whose language there is none."""

    licence: str = ""
    """What the model card says of its licence."""

    @model_validator(mode="after")
    def _files_have_a_path(self) -> "Reference":
        if (self.kind == "documents") == bool(self.path):
            raise ValueError("files need a path, and documents of the corpus have none")
        if self.path:
            absolute(self.path)
        return self


class PerplexityConfig(Config):
    """How n-gram models are trained: one for each language among the references."""

    references: tuple[Reference, ...] = ()
    """What to learn from. Some 10 MB of text make a usable model of a language, 100 MB a good one."""

    order: int = Field(default=4, ge=2, le=6)
    """Length of the longest n-grams. On 16 MB of text orders 3, 4 and 5 gave a perplexity of 173, 166 and 160 on what
    was held out, with 1.2, 1.4 and 1.6 million entries (`benchmarks.perplexity`)."""

    prune: tuple[Annotated[int, Field(ge=0)], ...] = (0, 0, 1)
    """Per order from 1 up, how often an n-gram may occur and still be left out; the last number holds for all longer
    ones. Leaving out what occurs once costs 3 % of perplexity and makes the model three to four times smaller."""

    vocabulary: int = Field(default=500_000, ge=1)
    """Most words that a model knows, the most frequent first."""

    sample_bytes: int = Field(default=64_000_000, ge=1)
    """UTF-8 bytes of text to learn a model from, drawn by a hash of the text. Training takes 14 times as much memory:
    measured 0.86 GB for 50 MB."""

    heldout_share: float = Field(default=0.05, gt=0, le=0.5)
    """Share of the texts kept from training, by a hash of the text, to measure the model."""

    cut_source: str = "web"
    """Source in the corpus whose documents set the cut points between head, middle and tail, a third of them each
    (CCNet does so with the crawl). Empty, or fewer than 100 in a language, or "web" where nothing is crawled: the texts
    held out set them."""

    cut_bytes: int = Field(default=20_000_000, ge=1)
    """UTF-8 bytes of those documents to score for it, drawn by a hash of the text."""

    seed: int = Field(default=0, ge=0)
    """Another seed draws other samples."""

    @field_validator("prune")
    @classmethod
    def _does_not_fall(cls, prune: tuple[int, ...]) -> tuple[int, ...]:
        if not prune or prune[0] or list(prune) != sorted(prune):
            raise ValueError("begins with 0 (`vocabulary` limits the words) and does not fall from order to order")
        return prune

    @model_validator(mode="after")
    def _names_differ(self) -> "PerplexityConfig":
        if several := duplicates(reference.name for reference in self.references):
            raise ValueError(f"references need names of their own: {', '.join(several)}")
        return self

    @property
    def active(self) -> bool:
        """Whether there is anything to train."""
        return bool(self.references)

    @property
    def thresholds(self) -> tuple[int, ...]:
        """`prune` for every order."""
        return (*self.prune, *[self.prune[-1]] * self.order)[: self.order]
