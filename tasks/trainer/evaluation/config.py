"""Settings of the stage evaluate. Imports pydantic only, for the Airflow dag-processor."""

import re

from pydantic import Field, field_validator, model_validator

from tasks.core.config import Config, Problems, duplicates
from tasks.trainer.evaluation.task_config import TaskConfig

_SCORES = re.compile(r"[a-z][a-z0-9_-]*/scores@(?!previous$)[A-Za-z0-9][A-Za-z0-9._-]*")


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
