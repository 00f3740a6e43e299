"""Stage annotate: documents -> attributes of them; documents are neither changed nor dropped."""

from typing import Any

from pydantic import Field, ValidationInfo, field_validator, model_validator

from tasks.core.config import Config, Problems
from tasks.core.stage_spec import Input, StageSpec
from tasks.filters.catalogue import annotator, complete, require_unique

DEFAULT = ("language", "gopher_quality", "gopher_repetition", "prose_score", "pii")


class AnnotateConfig(Config):
    """Attributes to compute for every document. Limits on them are set in `[consolidate]` and cost no new pass."""

    use: tuple[str, ...] = DEFAULT
    """Annotators in execution order (`tasks.filters.catalogue`). An annotator must come after those whose attributes it
    reads, as it declares in `reads` and `needs`."""

    settings: dict[str, dict[str, Any]] = Field(default={}, validate_default=True)
    """Settings by annotator, such as `[annotate.settings.language] chars = 1000`; the rest are defaults."""

    batch_bytes: int = Field(default=4_000_000, ge=1)
    """Bytes of text per batch of documents. Memory use is a multiple of it."""

    @field_validator("use")
    @classmethod
    def _unique(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return require_unique(names)

    @field_validator("settings")
    @classmethod
    def _complete(cls, settings: dict[str, dict[str, Any]], info: ValidationInfo) -> dict[str, dict[str, Any]]:
        if "use" not in info.data:
            return settings  # the error in `use` is already reported
        return complete(annotator, info.data["use"], settings, ("annotate.use", "annotate.settings"))

    @model_validator(mode="after")
    def _in_order(self) -> "AnnotateConfig":
        errors = []
        for position, name in enumerate(self.use):
            current = annotator(name, self.settings[name])
            for other in dict.fromkeys((*current.reads, *current.needs)):
                if other in self.use[position:]:
                    errors.append(f"{name} reads the attributes of {other}: put {other} before {name} in use")
                elif other in current.needs and other not in self.use:
                    errors.append(f"{name} needs {other}: put {other} before {name} in use")
        if errors:
            raise Problems(errors)
        return self


STAGES = (
    StageSpec(
        "annotate",
        dag="corpus",
        output="attributes",
        config=AnnotateConfig,
        inputs={
            "extracted": Input("extracted"),
            "classifiers": Input("classifiers", optional=True),
            "perplexity": Input("perplexity", optional=True),
        },
    ),
)
