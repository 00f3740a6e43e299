"""Stage paragraphs: documents -> paragraphs that occur in several of them; changes no document."""

from pydantic import Field, model_validator

from tasks.core.config import Config
from tasks.core.stage_spec import Input, StageSpec


class ParagraphsConfig(Config):
    """Search for repeated paragraphs, and the criteria of repetition.

    A paragraph is a line of text. Two are equal if their words are, without case, punctuation and layout
    (`tasks.formats.documents.text.normal_words`). The first text with a repeated paragraph, by (fetched_at, id), keeps
    it; in all other texts it counts as repeated.
    """

    enabled: bool = False
    """Search for repeated paragraphs. Takes one pass over the texts and, while it runs, some 50 bytes on disk per
    counted paragraph."""

    min_words: int = Field(default=8, ge=1)
    """Minimum number of words of a repeated paragraph; shorter ones are headings, bylines and dialogue."""

    min_documents: int = Field(default=3, ge=2)
    """Minimum number of documents with different texts that have the paragraph. Copies of a whole document count once,
    since dedup handles them."""

    min_domains: int = Field(default=1, ge=1)
    """Minimum number of registered domains with the paragraph; 2 excludes the boilerplate of single sites. The domain
    of a document from a file is its source."""

    max_domains: int = Field(default=0, ge=0)
    """Maximum number of registered domains with the paragraph; 1: only the boilerplate of single sites, not texts that
    are copied between sites; 0: no limit."""

    bucket_paragraphs: int = Field(default=2_000_000, ge=1)
    """Average number of paragraphs that are counted in one task. A worker needs some 200 bytes of memory for each."""

    @property
    def active(self) -> bool:
        """Whether the stage runs."""
        return self.enabled

    @model_validator(mode="after")
    def _agrees(self) -> "ParagraphsConfig":
        if 0 < self.max_domains < self.min_domains:
            raise ValueError(
                f"max_domains = {self.max_domains} is less than min_domains = {self.min_domains}: raise it, or set it "
                "to 0 for no limit"
            )
        return self


STAGES = (
    StageSpec(
        "paragraphs",
        dag="corpus",
        output="paragraphs",
        config=ParagraphsConfig,
        inputs={"extracted": Input("extracted", files=("documents/",))},
    ),
)
