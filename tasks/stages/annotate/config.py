"""Settings of the annotate stage; imported by the recipe, so nothing heavy hangs on it."""

from typing import Any

from pydantic import Field, ValidationInfo, field_validator, model_validator

from tasks.core.config import Config, Problems
from tasks.filters.catalogue import annotator, complete, require_unique

DEFAULT = ("language", "gopher_quality", "gopher_repetition", "prose_score", "pii")


class AnnotateConfig(Config):
    """What is measured of every document. Limits on it are set in `[consolidate]` and cost no new pass."""

    use: tuple[str, ...] = DEFAULT
    """Annotators in the order they run (`tasks.filters.catalogue`). One that reads what another finds stands behind it:
    what it reads is declared by the annotator (`reads`, `needs`)."""

    settings: dict[str, dict[str, Any]] = Field(default={}, validate_default=True)
    """Settings by annotator, such as `[annotate.settings.language] chars = 1000`; the rest are defaults."""

    batch_bytes: int = Field(default=4_000_000, ge=1)
    """Text that annotators see at once. More costs memory, many times as much."""

    @field_validator("use")
    @classmethod
    def _once(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        return require_unique(given)

    @field_validator("settings")
    @classmethod
    def _complete(cls, given: dict[str, dict[str, Any]], info: ValidationInfo) -> dict[str, dict[str, Any]]:
        if "use" not in info.data:
            return given  # what is wrong with `use` is told already
        return complete(annotator, info.data["use"], given, ("annotate.use", "annotate.settings"))

    @model_validator(mode="after")
    def _in_order(self) -> "AnnotateConfig":
        wrong = []
        for place, name in enumerate(self.use):
            one = annotator(name, self.settings[name])
            for other in dict.fromkeys((*one.reads, *one.needs)):
                if other in self.use[place:]:
                    wrong.append(f"{name} reads what {other} finds: put {other} before {name} in use")
                elif other in one.needs and other not in self.use:
                    wrong.append(f"{name} cannot do without {other}: put {other} before {name} in use")
        if wrong:
            raise Problems(wrong)
        return self
