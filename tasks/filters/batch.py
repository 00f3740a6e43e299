"""A batch of documents for annotators, with word and line splits that all annotators share.

A batch is a few megabytes of text. Each split is computed on first access.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import pyarrow as pa

from tasks.filters.counting.columns import Lines
from tasks.filters.counting.words import Words, split
from tasks.filters.language import UNDETERMINED

SPLITS = ("words", "line_columns")
READS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("language", "url_blocklist", "lexicon", "perplexity", "quality", "classifier", "topic"), ()),
    **dict.fromkeys(("hugging_face", "pii"), ()),
    "prose_score": ("line_columns",),
}
"""Which of the splits an annotator reads; one that is not named here, such as one from a package, may read them all."""


class Batch:
    """Texts of documents and their splits.

    Args:
        texts: as `tasks.formats.documents.text.clean` returns them.
        sources: the source each belongs to; "web" where None.
        urls: their URLs; "" where None.
        languages: their languages where known (ISO 639-1 codes); "und" where None.
        column: the texts as an Arrow column, where there is one already.
    """

    found: Mapping[str, pa.StructArray]
    """Columns of the annotators that the current one reads, by name."""
    languages: Sequence[str]
    """The language of each text, for an annotator that reads `language`; the argument, for others."""

    def __init__(
        self,
        texts: Sequence[str],
        sources: Sequence[str] | None = None,
        urls: Sequence[str] | None = None,
        languages: Sequence[str] | None = None,
        column: pa.StringArray | None = None,
    ) -> None:
        self.texts = texts
        self.column = column if column is not None else pa.array(texts, pa.string())
        self.sources = sources if sources is not None else ["web"] * len(texts)
        self.urls = urls if urls is not None else [""] * len(texts)
        self._given = languages if languages is not None else [UNDETERMINED] * len(texts)
        self.show({})

    def __len__(self) -> int:
        return len(self.texts)

    def show(self, found: Mapping[str, pa.StructArray]) -> None:
        """Sets the columns of other annotators that the next annotator reads, by name."""
        self.found = found
        self.languages = found["language"].field("label").to_pylist() if "language" in found else self._given

    def keep_for(self, names: Iterable[str]) -> None:
        """Frees the splits that none of these annotators reads; on access one is computed again."""
        needed = {split for name in names for split in READS.get(name, SPLITS)}
        for cached in SPLITS:
            if cached not in needed:
                self.__dict__.pop(cached, None)

    @cached_property
    def words(self) -> Words:
        """The words and punctuation marks of all documents (`tasks.filters.counting.words`)."""
        return split(self.column)

    @cached_property
    def line_columns(self) -> Lines:
        """The lines of all documents as columns: faster than `lines` by far (`tasks.filters.counting.columns`)."""
        return Lines(self.column)

    @cached_property
    def lines(self) -> list[list[str]]:
        """The lines of each document, blank ones too, unchanged."""
        return [text.split("\n") for text in self.texts]
