"""Stage chunks: kept documents and their layout, and the tokenizer -> chunks for fine-tuning."""

from pydantic import Field, model_validator

from tasks.core.config import Config
from tasks.core.stage_spec import Input, StageSpec, Takedowns


class ChunksConfig(Config):
    """Whether kept documents are cut into chunks, how large these are, and which of them are garbage."""

    enabled: bool = False
    """Cut them: each text is tokenised about three times, and lies on disk twice while the stage runs."""

    max_tokens: int = Field(default=512, ge=64)
    """Tokens of a chunk with the headings above it at most, by the recipe's tokenizer."""

    min_tokens: int = Field(default=128, ge=1)
    """Tokens from which on the next heading begins a new chunk: shorter sections stand together."""

    overlap_tokens: int = Field(default=0, ge=0)
    """Tokens at most that a chunk has in common with the one before it: sentences or lines of the same section. 0 for
    training, which would read them twice; look-ups want some."""

    code_sources: tuple[str, ...] = ()
    """Sources whose documents are source code as a whole: `#` begins no heading there."""

    min_words: int = Field(default=5, ge=1)
    """Words of a chunk at least; fewer: `few_words`."""

    min_letters: float = Field(default=0.4, ge=0, le=1)
    """Least share of letters in the characters of a chunk of text; less: `few_letters`."""

    min_distinct: float = Field(default=0.15, ge=0, le=1)
    """Least share of distinct words in a chunk of text of 50 words and more; less: `few_distinct_words`."""

    bucket_chunks: int = Field(default=2_000_000, ge=1)
    """Chunks that are compared in one task, on average. Bounds the memory of a worker: some 200 bytes each."""

    @property
    def active(self) -> bool:
        """Whether the stage runs."""
        return self.enabled

    @model_validator(mode="after")
    def _agrees(self) -> "ChunksConfig":
        for name, most in (("min_tokens", self.max_tokens), ("overlap_tokens", self.max_tokens // 4)):
            if getattr(self, name) > most:
                raise ValueError(
                    f"{name} = {getattr(self, name)} is more than {most}, the most with max_tokens = "
                    f"{self.max_tokens}: lower it, or raise max_tokens"
                )
        return self


STAGES = (
    StageSpec(
        "chunks",
        dag="tokens",
        output="chunks",
        config=ChunksConfig,
        inputs={
            "documents": Input("documents", files=("kept/",)),
            "extracted": Input("extracted", files=("documents/", "layout/")),
            "tokenizer": Input("tokenizer"),
        },
        takedowns=Takedowns(),
    ),
)
