"""Settings of the stage evaluate and of its tasks. Imports pydantic only, for the Airflow dag-processor."""

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints, field_validator, model_validator

from tasks.core.config import Config, Problems, duplicates, require_absolute

_GENERATE = ("stop", "max_new_tokens", "extract")
_SCORES = re.compile(r"[a-z][a-z0-9_-]*/scores@(?!previous$)[A-Za-z0-9][A-Za-z0-9._-]*")


class TaskConfig(Config):
    """A task: rows of some JSON lines, each made a prompt, and an answer that is known."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.-]*$", max_length=60)]
    """Name in scores, metrics and tables."""

    kind: Literal["multiple_choice", "cloze", "generate"]
    """multiple_choice: the likeliest of the row's choices. cloze: likelihood of the answer, and whether greedy decoding
    gives it. generate: greedy decoding up to a stop text, equal to an answer or not."""

    path: Annotated[str, AfterValidator(require_absolute)]
    """Absolute glob of JSON lines, here or as a URL on an object store; may be compressed (.gz, .zst, .bz2)."""

    prompt: str = Field(min_length=1)
    """Jinja template over the fields of a row, as lm-eval's `doc_to_text`: "{{query}}\\nAnswer:"."""

    answer: str = "answer"
    """Field with the answer. multiple_choice: number of the right choice, from 0, or its text; cloze: a text; generate:
    a text, or a list of texts that are all right."""

    choices: str = ""
    """multiple_choice: field with the list of choices."""

    delimiter: str = " "
    """Stands between prompt and answer, in examples and in what is scored. Other than in lm-eval it does so for cloze,
    too: there it belongs to the answer."""

    shots: int = Field(default=0, ge=0, le=64)
    """Solved examples before the prompt: the first rows, without one that is equal to the row itself."""

    shots_path: str = ""
    """Glob of the rows that examples are taken from; "": `path`."""

    shots_delimiter: str = "\n\n"
    """Stands behind each example."""

    limit: int = Field(default=0, ge=0)
    """Rows at most, the first ones; 0: all."""

    stop: tuple[str, ...] = ("\n",)
    """generate: the answer ends before the first of these texts."""

    max_new_tokens: int = Field(default=64, ge=1)
    """generate: tokens at most. The prompt loses its beginning where it leaves less room in the context."""

    extract: str = ""
    """generate: regular expression whose first match (its first group, where it has one) is compared; "": the whole."""

    evaluation_set: str = ""
    """Name of the same items among [[decontaminate.sets]], for the flag on the score; "": that of the task."""

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
        if wrong := list(self._problems()):
            raise Problems(wrong)
        return self

    def _problems(self) -> Iterator[str]:
        if (self.kind == "multiple_choice") != bool(self.choices):
            yield ".choices: names the field with the choices of a multiple_choice task, and of no other"
        if self.kind != "generate":
            # By value: settings that were written out, as those of a pod are, have all fields.
            usual = {name: type(self).model_fields[name].default for name in _GENERATE}
            yield from (f".{name}: only for generate" for name in usual if getattr(self, name) != usual[name])
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
    """Maximum number of held-out tokens per source to score, in whole documents (at least one)."""
    batch_windows: int = Field(default=16, ge=1)
    """Windows of context per forward pass."""
    threads: int = Field(default=1, ge=1)
    """CPU threads. Their number may change the rounding."""
    tasks: tuple[TaskConfig, ...] = Field(default=(), exclude_if=lambda given: not given)
    """Tasks to score, as [[evaluate.tasks]]."""
    task_milestones: int = Field(default=1, ge=1, exclude_if=lambda given: given == 1)
    """Milestones of the run that the tasks score: the last ones, as many as there are."""
    replicas: tuple[str, ...] = Field(default=(), exclude_if=lambda given: not given)
    """Scores of trainings that differ from this one in nothing but their seeds ("mine/scores@2026.10-seed1"): their
    spread stands beside the standard errors, and the gate allows for it."""
    task_batch_tokens: int = Field(default=16_384, ge=1, exclude_if=lambda given: given == 16_384)
    """Tokens per forward pass of a task, padding included; a longer sequence is a batch of its own."""

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
