"""Settings of the stage `examples`. Imports pydantic only, for the Airflow dag-processor."""

from typing import Literal

from pydantic import Field, field_validator

from tasks.core.config import Config


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


class ExamplesConfig(Config):
    """What a fine-tuning learns from; a recipe without files has none."""

    files: tuple[str, ...] = ()
    """JSON lines, on this machine or on an object store. Each file is one part."""
    kind: Literal["instructions", "preferences"] = "instructions"
    """`instructions`: rows with `prompt` and `response`, or `messages` ({role, content} each). `preferences`: rows with
    `prompt`, `chosen` and `rejected`, each a text or messages. A row may have an `id`."""
    template: Template = Template()
    """How messages become text."""
    seq_len: int = Field(default=512, ge=8)
    """Positions of a packed sequence. A longer example is rejected, and not cut: it would lose its end."""

    @field_validator("files")
    @classmethod
    def _once(cls, files: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(files)) < len(files):
            raise ValueError("a file is named twice: name each once")
        return files

    @property
    def active(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.files)
