"""A batch of documents for annotators, with the word and line splits that annotators share.

A batch is a few megabytes of text. Each split is computed on first access.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import pyarrow as pa

from tasks.filters import UNDETERMINED
from tasks.filters.counting.columns import Lines
from tasks.filters.counting.words import Words, split

SPLITS = ("words", "line_columns")


class DocumentBatch:
    """Texts of documents and their splits.

    Args:
        texts: cleaned texts (`tasks.formats.documents.text.clean`).
        sources: source of each document; None: "web".
        urls: URL of each document; None: "".
        languages: language of each document (ISO 639-1); None: "und".
        column: the texts as an Arrow column, if the caller has it; None: it is built.
    """

    annotations: Mapping[str, pa.StructArray]
    """Columns of the annotators that the current annotator reads, by name."""
    languages: Sequence[str]
    """Language of each text: from the column `language` if the current annotator reads it, else from the argument."""

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
        self._default_languages = languages if languages is not None else [UNDETERMINED] * len(texts)
        self.set_annotations({})

    def __len__(self) -> int:
        return len(self.texts)

    def set_annotations(self, columns: Mapping[str, pa.StructArray]) -> None:
        """Sets the columns of other annotators that the next annotator reads, by name."""
        self.annotations = columns
        if "language" in columns:
            self.languages = columns["language"].field("label").to_pylist()
        else:
            self.languages = self._default_languages

    def free_splits(self, but: Iterable[str]) -> None:
        """Frees all splits but these; a later access computes them again."""
        for attribute in {*SPLITS} - {*but}:
            self.__dict__.pop(attribute, None)

    @cached_property
    def words(self) -> Words:
        """The words and punctuation marks of all documents (`tasks.filters.counting.words`)."""
        return split(self.column)

    @cached_property
    def line_columns(self) -> Lines:
        """The lines of all documents as columns, much faster than `lines` (`tasks.filters.counting.columns`)."""
        return Lines(self.column)

    @cached_property
    def lines(self) -> list[list[str]]:
        """The lines of each document, unchanged and including blank ones."""
        return [text.split("\n") for text in self.texts]
