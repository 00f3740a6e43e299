"""Stage decontaminate: documents and evaluation sets -> which documents contain which items; drops nothing itself."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from tasks.core.config import Config, Problems, duplicates, require_absolute
from tasks.core.stage_spec import Input, StageSpec

SetName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.-]*$", max_length=60)]
"""Name of an evaluation set in reports and scores."""


class EvaluationSet(Config):
    """The items of one evaluation, one per row of some files."""

    name: SetName
    """Name in reports, metrics and scores."""

    path: Annotated[str, AfterValidator(require_absolute)]
    """Absolute glob (`**` for any depth), on this machine or as a URL on an object store (s3://bucket/folder/*.jsonl).
    Files may be compressed (jsonl): .gz, .zst or .bz2."""

    kind: Literal["jsonl", "parquet"] = "jsonl"
    """One item per line of JSON, or per row of Parquet."""

    fields: tuple[str, ...] = Field(min_length=1)
    """The fields whose texts, joined in this order, are the item: a text each, or a list of texts. Name what a page
    would repeat, such as question and passage; answer options that are listed otherwise everywhere lower the share."""

    id_field: str = ""
    """Field with the item's id, a text or a whole number; "": the id is file and line (row, of Parquet), from 1."""


class DecontaminateConfig(Config):
    """Evaluation sets to look for; a recipe without one has no such stage.

    Two texts share an n-gram if so many words in a row are equal after normalisation (no case, punctuation or layout:
    `tasks.formats.documents.text.normalise`). 13 words is the n-gram of GPT-3 (Brown et al. 2020, appendix C,
    https://arxiv.org/abs/2005.14165), which others have kept.
    """

    sets: tuple[EvaluationSet, ...] = ()
    """Evaluation sets, as [[decontaminate.sets]]."""

    ngram: int = Field(default=13, ge=2, le=64)
    """Words per n-gram. Shorter ones find rewordings and, above all, phrases that everyone uses."""

    shortest: int = Field(default=8, ge=1)
    """An item with fewer words than `ngram` is one n-gram of all its words, if it has at least so many. Still shorter
    ones are not looked for and are counted as too short. GPT-3's overlap analysis takes no n-gram below 8 words,
    because shorter ones collide by chance."""

    common: int = Field(default=10, ge=1)
    """An n-gram that occurs in more texts than this is common and counts nowhere: a proverb, a law, a template. GPT-3
    ignored n-grams of more than 10 documents. Here a text counts once however often it was captured, and a copy of
    an item (half of its n-grams, and at least `ngram` of them) does not count: a popular item stays an item."""

    @property
    def active(self) -> bool:
        """Whether the stage runs."""
        return bool(self.sets)

    @model_validator(mode="after")
    def _agrees(self) -> "DecontaminateConfig":
        wrong = [f'.sets: two are called "{name}": name each once' for name in duplicates([s.name for s in self.sets])]
        if self.shortest > self.ngram:
            wrong.append(f".shortest: {self.shortest} is more than ngram = {self.ngram}: take at most as much")
        if wrong:
            raise Problems(wrong)
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
