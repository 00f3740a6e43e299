"""Settings of the stage evaluate and of its tasks. Imports only pydantic, for the Airflow dag-processor."""

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints, field_validator, model_validator

from tasks.core.config import Config, Problems, duplicates, require_absolute

_GENERATE = ("stop", "max_new_tokens", "extract")
_SCORES = re.compile(r"[a-z][a-z0-9_-]*/scores@(?!previous$)[A-Za-z0-9][A-Za-z0-9._-]*")


class TaskConfig(Config):
    """A task: rows of JSON lines, each of which gives a prompt and a known answer."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.-]*$", max_length=60)]
    """Name in scores, metrics and tables."""

    kind: Literal["multiple_choice", "cloze", "generate"]
    """multiple_choice: the most likely of the row's choices. cloze: likelihood of the answer, and whether greedy
    decoding produces it. generate: greedy decoding up to a stop text, compared with the answers."""

    path: Annotated[str, AfterValidator(require_absolute)]
    """Absolute glob of JSON lines, local or a URL of an object store; may be compressed (.gz, .zst, .bz2)."""

    prompt: str = Field(min_length=1)
    """Jinja template over the fields of a row, like lm-eval's `doc_to_text`: "{{query}}\\nAnswer:"."""

    answer: str = "answer"
    """Field with the answer. multiple_choice: 0-based number or text of the correct choice; cloze: a text; generate: a
    text, or a list of correct texts."""

    choices: str = ""
    """multiple_choice: field with the list of choices."""

    delimiter: str = " "
    """Text between prompt and answer, in examples and in the scored item. Unlike lm-eval, this also applies to cloze,
    where the delimiter is part of the answer."""

    shots: int = Field(default=0, ge=0, le=64)
    """Number of examples before the prompt: the first rows, excluding rows equal to the scored row."""

    shots_path: str = ""
    """Glob of the files for examples; "": `path`."""

    shots_delimiter: str = "\n\n"
    """Text after each example."""

    limit: int = Field(default=0, ge=0)
    """Maximum number of rows, from the first on; 0: all."""

    stop: tuple[str, ...] = ("\n",)
    """generate: texts before which the answer ends."""

    max_new_tokens: int = Field(default=64, ge=1)
    """generate: maximum number of tokens. A prompt that leaves less room in the context is truncated from the left."""

    extract: str = ""
    """generate: regular expression whose first match (its first group, if it has one) is compared; "": all text."""

    evaluation_set: str = ""
    """Name of the same items in [[decontaminate.sets]], for the contamination flag; "": the name of the task."""

    @field_validator("extract")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"not a regular expression ({error})") from None
        return pattern

    @model_validator(mode="after")
    def _agrees(self) -> "TaskConfig":
        if problems := list(self._problems()):
            raise Problems(problems)
        return self

    def _problems(self) -> Iterator[str]:
        if (self.kind == "multiple_choice") != bool(self.choices):
            yield ".choices: names the field with the choices of a multiple_choice task, and of no other"
        if self.kind != "generate":
            # Compared by value, because serialized settings, such as those of a pod, contain all fields.
            defaults = {name: type(self).model_fields[name].default for name in _GENERATE}
            yield from (f".{name}: only for generate" for name in defaults if getattr(self, name) != defaults[name])
        if not all(self.stop):
            yield ".stop: a stop text is empty: leave it out"
        if self.shots_path:
            try:
                require_absolute(self.shots_path)
            except ValueError as error:
                yield f".shots_path: {error}"
        if self.shots_path and not self.shots:
            yield ".shots_path: without shots nothing is read from it: set shots, or leave it out"


class EvaluateConfig(Config):
    """Bits per byte on held-out documents, and tasks."""

    max_tokens: int = Field(default=200_000, ge=1)
    """Maximum number of held-out tokens per source to score, in whole documents (at least one). Of a corpus that grows,
    every month has an equal share (`tasks.trainer.data.heldout`)."""
    batch_windows: int = Field(default=16, ge=1)
    """Windows of context per forward pass."""
    threads: int = Field(default=1, ge=1)
    """CPU threads. The number can affect rounding."""
    checkpoint: Literal["last", "best"] = Field(default="last", exclude_if=lambda value: value == "last")
    """The checkpoint to score, and to register: the last one, or the best one (`[train.best]`)."""
    tasks: tuple[TaskConfig, ...] = Field(default=(), exclude_if=lambda value: not value)
    """Tasks to score, as [[evaluate.tasks]]."""
    task_milestones: int = Field(default=1, ge=1, exclude_if=lambda value: value == 1)
    """Number of checkpoints of the run to score on the tasks: the one to score, and the last milestones before it."""
    replicas: tuple[str, ...] = Field(default=(), exclude_if=lambda value: not value)
    """Scores of trainings that differ from this one only in their seeds ("mine/scores@2026.10-seed1"). Their spread is
    reported with the standard errors, and the gate takes it into account."""
    task_batch_tokens: int = Field(default=16_384, ge=1, exclude_if=lambda value: value == 16_384)
    """Tokens per forward pass of a task, including padding; a longer sequence is a separate batch."""

    @field_validator("replicas")
    @classmethod
    def _scores(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not _SCORES.fullmatch(name):
                raise ValueError('the id of scores is <recipe>/scores@<version>, as in "demo/scores@2026.10"')
        if twice := duplicates(names):
            raise ValueError(f'"{twice[0]}" is named twice: leave one out')
        return names

    @model_validator(mode="after")
    def _agrees(self) -> "EvaluateConfig":
        names = duplicates([task.name for task in self.tasks])
        if names:
            raise Problems([f'.tasks: two are called "{name}": name each once' for name in names])
        return self
