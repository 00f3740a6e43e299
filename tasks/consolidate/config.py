"""Settings of the consolidate stage.

Read by the recipe and by `tasks.consolidate`. Changing one costs a join, not a new pass over the texts.
"""

from pydantic import Field

from tasks.config import Config


class ConsolidateConfig(Config):
    """Which verdicts drop a document, and what is masked in those that stay."""

    languages: tuple[str, ...] = ()
    """Languages to keep, as annotate names them ("en", "de"); empty keeps all. The rest goes as `language_other`."""

    min_language_score: float = Field(default=0.0, ge=0, le=1)
    """A document whose language is less certain goes as `language_unsure`; 0 keeps all."""

    language_exempt: tuple[str, ...] = ()
    """Sources that skip both language rules: program code reads as many languages."""

    quality: bool = True
    """Drop what annotate's filters gave a reason for. Documents that made them fail (`poison`) go in any case."""

    dedup: bool = True
    """Drop copies, as `duplicate_exact` and `duplicate_near`, of documents that pass the rules above."""

    mask_pii: bool = True
    """Replace personal data by its kind in angle brackets, such as `<email>`."""
