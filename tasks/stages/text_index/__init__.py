"""Stage text_index: kept documents -> an index of their words, with which the corpus browser searches texts."""

from pydantic import Field

from tasks.core.config import Config
from tasks.core.stage_spec import Input, StageSpec


class TextIndexConfig(Config):
    """Settings of the index of words."""

    enabled: bool = False
    """Builds the index, by which words in texts, and parts of titles and URLs, are found."""
    phrases: bool = True
    """Whether it finds phrases: it then has the positions of words, and takes about 30 % of the size of the texts on
    disk instead of 10 %."""
    group_documents: int = Field(default=1_000_000, ge=1)
    """Approximate number of documents per file; one worker writes a file, and a search reads all files."""

    @property
    def active(self) -> bool:
        """Whether the stage runs."""
        return self.enabled


STAGES = (
    StageSpec(
        "text_index",
        dag="corpus",
        output="text_index",
        config=TextIndexConfig,
        inputs={"documents": Input("documents", files=("kept/",))},
    ),
)
