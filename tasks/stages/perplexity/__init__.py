"""Stage train_perplexity: reference text -> n-gram models, one per language.

reference text -> reference -> estimate -> model files, ARPA file, cut points     (stage train_perplexity)
texts -> words -> model                                                           (annotator tasks.filters.perplexity)
"""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from tasks.core.config import Config, duplicates, require_absolute
from tasks.core.stage_spec import Input, StageSpec
from tasks.filters import UNDETERMINED

ANY_LANGUAGE = UNDETERMINED
"""Language code of the model for documents in languages without a model of their own."""

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]*$", max_length=40)]
Language = Annotated[str, StringConstraints(pattern=r"^[a-z]{2,3}$")]


class ReferenceText(Config):
    """Reference text of a model, which should be edited, clean and about many subjects."""

    name: Name
    """Name in the model card; for `documents`, the source in the corpus (`web` or the name of a file source)."""

    kind: Literal["text", "jsonl", "documents"]
    """`text`: files with one text each; `jsonl`: one JSON object per line; `documents`: documents of this recipe."""

    path: str = ""
    """Absolute glob of the files (`**` for any depth), on the machine where the stage runs or as a URL on an object
    store (s3://bucket/wiki/*.jsonl.zst); they may be compressed: .gz, .zst or .bz2."""

    text_field: str = "text"
    """Field with the text, for `jsonl`."""

    language: Language = ANY_LANGUAGE
    """ISO 639 code of the model that is trained on the text; "und": the model for all languages without their own."""

    licence: str = ""
    """Licence, for the model card."""

    @model_validator(mode="after")
    def _files_have_a_path(self) -> "ReferenceText":
        if (self.kind == "documents") == bool(self.path):
            raise ValueError('the kinds "text" and "jsonl" need a path, and "documents" must not have one')
        if self.path:
            require_absolute(self.path)
        return self


class PerplexityConfig(Config):
    """Training of n-gram models, one per language of the references."""

    references: tuple[ReferenceText, ...] = ()
    """Training text. About 10 MB suffice for a usable model of a language, 100 MB for a good one."""

    order: int = Field(default=4, ge=2, le=6)
    """Length of the longest n-grams. On 16 MB of text, the orders 3, 4 and 5 gave held-out perplexities of 173, 166 and
    160 with 1.2, 1.4 and 1.6 million entries (`benchmarks.perplexity`)."""

    prune: tuple[Annotated[int, Field(ge=0)], ...] = (0, 0, 1)
    """Pruning thresholds by order, from 1 up: n-grams that occur at most that often are pruned; the last threshold
    applies to all longer n-grams. Pruning singletons raises the perplexity by 3 % and makes the model three to four
    times smaller."""

    vocabulary: int = Field(default=500_000, ge=1)
    """Maximum size of the vocabulary: the most frequent words."""

    sample_bytes: int = Field(default=64_000_000, ge=1)
    """UTF-8 bytes of training text per model, sampled by a hash of the text. Training takes 14 times as much memory:
    0.86 GB were measured for 50 MB."""

    heldout_share: float = Field(default=0.05, gt=0, le=0.5)
    """Share of the texts, selected by a hash of the text, that is held out to evaluate the model."""

    cut_source: str = "web"
    """Source in the corpus whose documents determine the cut points: head, middle and tail are a third of them each, as
    in CCNet. The held-out texts determine them if this is empty, if a language has fewer than 100 documents, or for
    "web" without a crawl."""

    cut_bytes: int = Field(default=20_000_000, ge=1)
    """UTF-8 bytes of these documents to score, sampled by a hash of the text."""

    seed: int = Field(default=0, ge=0)
    """Seed of the samples."""

    @field_validator("prune")
    @classmethod
    def _does_not_fall(cls, prune: tuple[int, ...]) -> tuple[int, ...]:
        if not prune or prune[0] or list(prune) != sorted(prune):
            raise ValueError("must begin with 0 (`vocabulary` limits the words) and not decrease from order to order")
        return prune

    @model_validator(mode="after")
    def _names_differ(self) -> "PerplexityConfig":
        if repeated := duplicates(reference.name for reference in self.references):
            raise ValueError(f"names of references must be unique: {', '.join(repeated)}")
        return self

    @property
    def active(self) -> bool:
        """Whether the recipe trains a model."""
        return bool(self.references)

    @property
    def thresholds(self) -> tuple[int, ...]:
        """Pruning threshold of every order from 1 to `order`."""
        return (*self.prune, *[self.prune[-1]] * self.order)[: self.order]


STAGES = (
    StageSpec(
        "train_perplexity",
        dag="corpus",
        output="perplexity",
        config=PerplexityConfig,
        section="perplexity",
        inputs={"extracted": Input("extracted")},
    ),
)
