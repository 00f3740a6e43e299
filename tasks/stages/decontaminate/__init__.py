"""Stage decontaminate: documents and evaluation sets -> evaluation items in each document; drops no document."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from tasks.core.config import Config, Problems, duplicates, require_absolute
from tasks.core.stage_spec import Input, StageSpec

SetName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.-]*$", max_length=60)]
"""Name of an evaluation set in reports and scores."""


class EvaluationSet(Config):
    """The items of an evaluation, one per row of some files."""

    name: SetName
    """Name in reports, metrics and scores."""

    path: Annotated[str, AfterValidator(require_absolute)]
    """Absolute glob (`**` for any depth), on this machine or as a URL on an object store (s3://bucket/folder/*.jsonl).
    Files may be compressed (jsonl): .gz, .zst or .bz2."""

    kind: Literal["jsonl", "parquet"] = "jsonl"
    """One item per line of JSON, or per row of Parquet."""

    fields: tuple[str, ...] = Field(min_length=1)
    """The fields whose texts, joined in this order, are the item; each is a text or a list of texts. Name those that a
    page would repeat, such as question and passage; answer options, which pages format differently, lower the share."""

    id_field: str = ""
    """Field with the item's id, a text or an integer; "": the id is file and line (row, for Parquet), from 1."""


class DecontaminateConfig(Config):
    """Evaluation sets to search for; without any, the stage does not run.

    Two texts share an n-gram if n consecutive words are equal after normalization, which removes case, punctuation and
    layout (`tasks.formats.documents.text.normal_words`). GPT-3 uses 13 words (Brown et al. 2020, appendix C,
    https://arxiv.org/abs/2005.14165), and most later work does too.
    """

    sets: tuple[EvaluationSet, ...] = ()
    """Evaluation sets, as [[decontaminate.sets]]."""

    ngram: int = Field(default=13, ge=2, le=64)
    """Words per n-gram. Shorter n-grams match rewordings and, above all, common phrases."""

    shortest: int = Field(default=8, ge=1)
    """Minimum number of words of an item. An item with fewer words than `ngram` is one n-gram of all its words. Items
    below the minimum are not searched for, and are counted as too short. GPT-3's overlap analysis uses no n-gram below
    8 words, because shorter ones match by chance."""

    common: int = Field(default=10, ge=1)
    """Maximum number of texts with an n-gram. An n-gram in more texts is common, like a proverb, a law or a template,
    and is ignored, as GPT-3 ignored n-grams in more than 10 documents. A text counts once, regardless of its number of
    captures, and copies of an item (with half of its n-grams, and at least `ngram` of them) do not count, so that a
    popular item is still searched for."""

    @property
    def active(self) -> bool:
        """Whether the stage runs."""
        return bool(self.sets)

    @model_validator(mode="after")
    def _agrees(self) -> "DecontaminateConfig":
        names = [evaluation_set.name for evaluation_set in self.sets]
        errors = [f'.sets: two have the name "{name}": rename one' for name in duplicates(names)]
        if self.shortest > self.ngram:
            errors.append(f".shortest: {self.shortest} is more than ngram = {self.ngram}: use at most that")
        if errors:
            raise Problems(errors)
        return self


STAGES = (
    StageSpec(
        "decontaminate",
        dag="corpus",
        output="contamination",
        config=DecontaminateConfig,
        inputs={"extracted": Input("extracted", files=("documents/",))},
    ),
)
