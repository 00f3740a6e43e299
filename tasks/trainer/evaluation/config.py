"""Settings of the stage evaluate. Imports pydantic only, for the Airflow dag-processor."""

from pydantic import Field, model_validator

from tasks.core.config import Config, Problems, duplicates
from tasks.trainer.evaluation.task_config import TaskConfig


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
    task_batch_tokens: int = Field(default=16_384, ge=1, exclude_if=lambda given: given == 16_384)
    """Tokens per forward pass of a task, padding included; a longer sequence is a batch of its own."""

    @model_validator(mode="after")
    def _agrees(self) -> "EvaluateConfig":
        names = duplicates([task.name for task in self.tasks])
        if names:
            raise Problems([f'.tasks: two are called "{name}": name each once' for name in names])
        return self
