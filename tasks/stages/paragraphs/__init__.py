"""Stage paragraphs: documents -> paragraphs that stand in several of them; drops and cuts nothing itself."""

from pydantic import Field, model_validator

from tasks.core.config import Config
from tasks.core.stage_spec import Input, StageSpec


class ParagraphsConfig(Config):
    """Whether repeated paragraphs are looked for, and from when on a paragraph counts as repeated.

    A paragraph is a line of text. Two are equal if their words are (`tasks.formats.documents.text.normalise`: no case,
    punctuation or layout). The first text with a repeated paragraph, by (fetched_at, id), keeps it: everywhere else it
    counts as repeated.
    """

    enabled: bool = False
    """Look for them: one pass over the texts, and while it runs some 50 bytes on disk per paragraph that is counted."""

    min_words: int = Field(default=8, ge=1)
    """Words of a paragraph that counts as repeated at least: shorter ones are headings, bylines and dialogue."""

    min_documents: int = Field(default=3, ge=2)
    """Documents of different text with the paragraph. Copies of a whole document are a matter of dedup and count once,
    here and for the first."""

    min_domains: int = Field(default=1, ge=1)
    """Registered domains with the paragraph; 2 leaves the boilerplate of a single site alone. A document from a file
    has its source as domain."""

    max_domains: int = Field(default=0, ge=0)
    """Registered domains with the paragraph at most; 1: only what single sites repeat, not texts that are copied
    between sites; 0: no limit."""

    bucket_paragraphs: int = Field(default=2_000_000, ge=1)
    """Paragraphs that are counted in one task, on average. Bounds the memory of a worker: some 200 bytes each."""

    @property
    def active(self) -> bool:
        """Whether the stage runs."""
        return self.enabled

    @model_validator(mode="after")
    def _agrees(self) -> "ParagraphsConfig":
        if 0 < self.max_domains < self.min_domains:
            raise ValueError(
                f"max_domains = {self.max_domains} is less than min_domains = {self.min_domains}: raise it, or take 0 "
                "for no limit"
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
