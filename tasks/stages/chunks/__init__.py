"""Stage chunks: kept documents and their layout, and the tokenizer -> chunks for fine-tuning."""

from pydantic import Field, model_validator

from tasks.core.config import Config
from tasks.core.stage_spec import Input, StageSpec, Takedowns


class ChunksConfig(Config):
    """Settings of the chunks: whether there are any, their sizes, and the rules that reject garbage."""

    enabled: bool = False
    """Cuts documents into chunks. Each text is tokenized about three times, and stored twice while the stage runs."""

    max_tokens: int = Field(default=512, ge=64)
    """Maximum number of tokens of a chunk, including the headings above it, by the recipe's tokenizer."""

    min_tokens: int = Field(default=128, ge=1)
    """Number of tokens after which the next heading begins a new chunk; shorter sections share a chunk."""

    overlap_tokens: int = Field(default=0, ge=0)
    """Maximum number of tokens that a chunk shares with the one before it: sentences or lines of the same section. 0
    for training, which would read them twice; retrieval benefits from an overlap."""

    code_sources: tuple[str, ...] = ()
    """Sources whose documents are entirely source code, where `#` does not begin a heading."""

    min_words: int = Field(default=5, ge=1)
    """Minimum number of words in a chunk; fewer: `few_words`."""

    min_letters: float = Field(default=0.4, ge=0, le=1)
    """Minimum share of letters among the characters of a chunk of text; less: `few_letters`."""

    min_distinct: float = Field(default=0.15, ge=0, le=1)
    """Minimum share of distinct words in a chunk of text of 50 words or more; less: `few_distinct_words`."""

    bucket_chunks: int = Field(default=2_000_000, ge=1)
    """Average number of chunks per comparison task. Bounds the memory of a worker: about 200 bytes per chunk."""

    @property
    def active(self) -> bool:
        """Whether the stage runs."""
        return self.enabled

    @model_validator(mode="after")
    def _agrees(self) -> "ChunksConfig":
        for name, limit in (("min_tokens", self.max_tokens), ("overlap_tokens", self.max_tokens // 4)):
            if getattr(self, name) > limit:
                raise ValueError(
                    f"{name} = {getattr(self, name)} is more than {limit}, the maximum for max_tokens = "
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
