"""Stages of fine-tuning: train a model on examples, compare it with its base, and register it.

The settings of the training are in `tasks.trainer.tuning`.
"""

import datetime
import re
from typing import Literal

from pydantic import Field, field_validator, model_validator

from tasks.core.config import Config, RegistryName, SectionCopy
from tasks.core.stage_spec import Input, NamedInput, StageSpec, Takedowns
from tasks.stages.finetune.rows import FIELDS
from tasks.trainer.evaluation.config import EvaluateConfig
from tasks.trainer.tuning.config import FinetuneConfig

COMPARISON = "comparison.json"
"""File with the scores of both models; written by `compare`, and read by `register`, which does not import torch."""

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_CHUNKS = re.compile(r"[a-z][a-z0-9_-]*/chunks@[A-Za-z0-9][A-Za-z0-9._-]*")


class Turn(Config):
    """Text around the content of a message."""

    before: str = ""
    """Never learned; for a response, the prompt of the model ends with it."""
    after: str = "\n\n"
    """Learned for a response."""


class Template(Config):
    """Chat template: messages are concatenated, each with the text around it."""

    system: Turn = Turn()
    user: Turn = Turn(before="### Instruction:\n")
    assistant: Turn = Turn(before="### Response:\n", after="\n")


class ChunkChoice(Config):
    """Selection of the chunks that become examples; an empty list is no condition."""

    of: str = ""
    """Chunks of another version or recipe: "mine/chunks@2026.10", or "mine/chunks@previous" for the newest ones when
    the run started; "": those of the same version."""
    sources: tuple[str, ...] = ()
    """Sources of the documents."""
    tiers: tuple[Literal["gold", "silver"], ...] = ()
    """Tiers of the documents."""
    kinds: tuple[Literal["text", "code", "table"], ...] = ()
    """Kinds of the chunks, by most of their content."""
    languages: tuple[str, ...] = ()
    """Languages of the documents, as `annotate` names them: "en"."""

    @field_validator("of")
    @classmethod
    def _address(cls, name: str) -> str:
        if name and not _CHUNKS.fullmatch(name):
            raise ValueError("chunks of another version are <recipe>/chunks@<version>")
        return name

    @property
    def conditions(self) -> dict[str, tuple[str, ...]]:
        """Allowed values by column of `tasks.formats.documents.chunks.CHUNK`."""
        values_by_column = {"source": self.sources, "tier": self.tiers, "kind": self.kinds, "language": self.languages}
        return {column: values for column, values in values_by_column.items() if values}


class ExamplesConfig(Config):
    """Settings of the examples; a recipe without files and chunks has no examples."""

    files: tuple[str, ...] = ()
    """Files of rows: JSON lines or arrays, also compressed, or Parquet; detected by content. A path or glob on this
    machine, on an object store (s3://bucket/rows/*.jsonl.gz) or in a dataset of the hub
    (hf://datasets/owner/name/data/train-*.parquet), which a version reads at one commit. Each file is one part."""
    fields: dict[str, str] = Field(default_factory=dict, exclude_if=lambda fields: not fields)
    """Names of the fields in the rows, where they differ: {prompt = "question", response = "answer"}."""
    chunks: ChunkChoice | None = Field(default=None, exclude_if=lambda value: value is None)
    """Document chunks that are learned as responses to their title and headings; None: none."""
    kind: Literal["instructions", "preferences"] = "instructions"
    """`instructions`: rows with `prompt` and `response` or `completion`; with `messages` ({role, content} each) or
    `conversations` ({from, value} each); or with `instruction`, `input` and `output`. `preferences`: rows with a prompt
    of one of these kinds, `chosen` and `rejected`, each a text or messages; or without a prompt, if the answers are
    whole conversations that begin alike. A row may have an `id`, a `system` text, and for the chat template of an
    imported model `tools` and `chat_template_kwargs`."""
    template: Template = Template()
    """Chat template. One that differs from the default replaces the chat template of an imported base."""
    date: str = Field(default="", exclude_if=lambda day: not day)
    """The day, "2026-11-26", for a chat template of an imported base that writes the date into conversations."""
    seq_len: int = Field(default=512, ge=8)
    """Positions of a packed sequence. A longer example is rejected, because truncation would remove its end."""
    heldout_share: float = Field(default=0.05, ge=0, lt=0.5)
    """Share of the examples that is held out to compare base and model. All chunks of a document, and all rows with the
    same prompt, are held out together. Documents are selected by the same hash as for `encode.heldout_share`."""

    @field_validator("date")
    @classmethod
    def _day(cls, day: str) -> str:
        if day and not _DAY.fullmatch(day):
            raise ValueError("a date is YYYY-MM-DD")
        datetime.date.fromisoformat(day or "2000-01-01")
        return day

    @field_validator("fields")
    @classmethod
    def _known(cls, fields: dict[str, str]) -> dict[str, str]:
        if unknown := sorted(fields.keys() - set(FIELDS)):
            raise ValueError(f'no field "{unknown[0]}": the fields are {", ".join(FIELDS)}')
        return fields

    @field_validator("files")
    @classmethod
    def _once(cls, files: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(files)) < len(files):
            raise ValueError("a file is named twice: name each once")
        return files

    @model_validator(mode="after")
    def _agrees(self) -> "ExamplesConfig":
        if self.reads_chunks and self.kind != "instructions":
            raise ValueError(f'chunks are not {self.kind}: set kind = "instructions", or leave out [examples.chunks]')
        return self

    @property
    def reads_chunks(self) -> bool:
        """Whether chunks become examples."""
        return self.chunks is not None

    @property
    def own_chunks(self) -> bool:
        """Whether the chunks are those of the same version."""
        return self.chunks is not None and not self.chunks.of

    @property
    def active(self) -> bool:
        """Whether the recipe has this stage."""
        return bool(self.files) or self.reads_chunks


class TunedConfig(Config):
    """Settings of the comparison and registration of a fine-tuned model."""

    COPIED = {"evaluate": SectionCopy("evaluate", when="finetune.makes_model")}

    model: RegistryName = ""
    """Name in the registry; empty: the recipe's with "-tuned"."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Confidence of the intervals."""
    evaluate: EvaluateConfig | None = None
    """Held-out text, tasks and batches; copied from [evaluate] if the fine-tuning writes a whole model."""

    @property
    def active(self) -> bool:
        """Whether the recipe has this stage."""
        return self.evaluate is not None


_TOKENIZER = Input("tokenizer", or_of_base=True)

STAGES = (
    StageSpec(
        "examples",
        dag="finetune",
        output="examples",
        config=ExamplesConfig,
        module="examples",
        inputs={
            "tokenizer": _TOKENIZER,
            "chunks": Input("chunks", optional=True, when="examples.own_chunks"),
            "other_chunks": NamedInput("chunks.of"),
        },
        takedowns=Takedowns(when="examples.reads_chunks"),
    ),
    StageSpec(
        "finetune",
        dag="finetune",
        output="finetuned",
        config=FinetuneConfig,
        inputs={"examples": Input("examples", files=("examples/", "examples.json")), "base": NamedInput("base")},
    ),
    StageSpec(
        "evaluate_tuned",
        dag="finetune",
        output="tuned_scores",
        config=TunedConfig,
        section="tuned",
        module="compare",
        inputs={"finetuned": Input("finetuned"), "examples": Input("examples"), "tokenizer": _TOKENIZER},
    ),
    StageSpec(
        "register_tuned",
        dag="finetune",
        output="tuned_model",
        config=TunedConfig,
        section="tuned",
        module="register",
        inputs={
            "finetuned": Input("finetuned"),
            "examples": Input("examples"),
            "tokenizer": _TOKENIZER,
            "tuned_scores": Input("tuned_scores"),
        },
    ),
)
