"""The stages of fine-tuning: a trained model learns from examples, is compared with its base, and registered.

The settings of the training itself are those of `tasks.trainer.tuning`.
"""

import re
from typing import Literal

from pydantic import Field, field_validator, model_validator

from tasks.core.config import Config, SectionCopy
from tasks.core.stage_spec import Input, NamedInput, StageSpec, Takedowns
from tasks.trainer.evaluation.config import EvaluateConfig
from tasks.trainer.tuning.config import FinetuneConfig

COMPARISON = "comparison.json"
"""File of the scores of both models: `compare` writes it, `register` reads it where there is no torch."""

_CHUNKS = re.compile(r"[a-z][a-z0-9_-]*/chunks@[A-Za-z0-9][A-Za-z0-9._-]*")


class Turn(Config):
    """Text around the content of a message."""

    before: str = ""
    """Never learned: of a response it is what the model is prompted with."""
    after: str = "\n\n"
    """Of a response it is learned."""


class Template(Config):
    """How messages become one text: the turns end to end, each with the text around it."""

    system: Turn = Turn()
    user: Turn = Turn(before="### Instruction:\n")
    assistant: Turn = Turn(before="### Response:\n", after="\n")


class ChunkChoice(Config):
    """Which chunks become examples; an empty list is no condition."""

    of: str = ""
    """Chunks of another version or recipe: "mine/chunks@2026.10", or "mine/chunks@previous" for the newest ones when
    the run began; "": those of the version itself."""
    sources: tuple[str, ...] = ()
    """Sources of the documents."""
    tiers: tuple[Literal["gold", "silver"], ...] = ()
    """Tiers of the documents."""
    kinds: tuple[Literal["text", "code", "table"], ...] = ()
    """What most of a chunk is."""
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
        """The values that a chunk may have, by column of `tasks.formats.documents.chunks.CHUNK`."""
        given = {"source": self.sources, "tier": self.tiers, "kind": self.kinds, "language": self.languages}
        return {column: values for column, values in given.items() if values}


class ExamplesConfig(Config):
    """What a fine-tuning learns from; a recipe without files and chunks has none."""

    files: tuple[str, ...] = ()
    """JSON lines, on this machine or on an object store. Each file is one part."""
    chunks: ChunkChoice | None = Field(default=None, exclude_if=lambda given: given is None)
    """Chunks of documents that are learned as responses to their title and headings; None: none."""
    kind: Literal["instructions", "preferences"] = "instructions"
    """`instructions`: rows with `prompt` and `response`, or `messages` ({role, content} each). `preferences`: rows with
    `prompt`, `chosen` and `rejected`, each a text or messages. A row may have an `id`."""
    template: Template = Template()
    """How messages become text."""
    seq_len: int = Field(default=512, ge=8)
    """Positions of a packed sequence. A longer example is rejected, and not cut: it would lose its end."""
    heldout_share: float = Field(default=0.05, ge=0, lt=0.5)
    """Share of the examples that is never learned, to compare base and model by: all of a document's chunks, all rows
    with one prompt. Documents are drawn by the same hash as `encode.heldout_share`."""

    @field_validator("files")
    @classmethod
    def _once(cls, files: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(files)) < len(files):
            raise ValueError("a file is named twice: name each once")
        return files

    @model_validator(mode="after")
    def _agrees(self) -> "ExamplesConfig":
        if self.reads_chunks and self.kind != "instructions":
            raise ValueError(f'chunks are no {self.kind}: set kind = "instructions", or leave out [examples.chunks]')
        return self

    @property
    def reads_chunks(self) -> bool:
        """Whether chunks become examples."""
        return self.chunks is not None

    @property
    def own_chunks(self) -> bool:
        """Whether these are the chunks of the version itself."""
        return self.chunks is not None and not self.chunks.of

    @property
    def active(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.files) or self.reads_chunks


class TunedConfig(Config):
    """What becomes of a fine-tuned model: it is compared with its base, and registered."""

    COPIED = {"evaluate": SectionCopy("evaluate", when="finetune.makes_model")}

    model: str = ""
    """Name in the registry; empty: the recipe's with "-tuned"."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Confidence of the intervals."""
    evaluate: EvaluateConfig | None = None
    """Held-out text, tasks and batches: those of [evaluate], which the recipe fills in where it makes a whole model."""

    @property
    def active(self) -> bool:
        """Whether there is anything to do."""
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
