"""Settings of the annotate stage; imported by the recipe, so nothing heavy hangs on it."""

from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from tasks.annotate.catalogue import DEFAULT, load
from tasks.config import Config


class AnnotateConfig(Config):
    """Which annotators judge the documents, and by which limits."""

    use: tuple[str, ...] = DEFAULT
    """Annotators in the order they run; the first filter that finds a reason gives the document's reason."""

    settings: dict[str, dict[str, Any]] = Field(default={}, validate_default=True)
    """Settings by annotator, such as `[annotate.settings.gopher_quality] min_words = 30`; the rest are defaults."""

    quality_sources: tuple[str, ...] | None = ("web",)
    """Sources that filters apply to; None for all. Gopher's rules were drawn up for web prose: code has few stop words
    and many symbols, so they would reject 338 of 551 files of Python's standard library, good code as it is."""

    @field_validator("settings")
    @classmethod
    def _complete(cls, given: dict[str, dict[str, Any]], info: ValidationInfo) -> dict[str, dict[str, Any]]:
        # Defaults are written out, so that a changed default changes the fingerprint.
        use = info.data.get("use", ())
        if unused := sorted(set(given) - set(use)):
            raise ValueError(f"settings for {unused[0]}, which is not in use")
        return {name: load(name, given.get(name, {})).model_dump(mode="json") for name in use}
