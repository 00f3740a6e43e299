"""One document as annotators see it: split once, shared by all.

Made by `stage`, one per document. Each split is made when the first annotator asks for it.
"""

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks import text


class View:
    """A document's text and its splits.

    Args:
        document: the text.
        source: the source it belongs to.
    """

    def __init__(self, document: str, source: str = "web") -> None:
        self.text = document
        self.source = source
        self.found: dict[str, Any] = {}
        """Columns that annotators before this one have filled."""

    @cached_property
    def words(self) -> list[str]:
        """Lower-case words (`tasks.text.words`)."""
        return text.words(self.text)

    @cached_property
    def word_hashes(self) -> NDArray[np.uint64]:
        """64-bit hash of each word, shape (n_words,)."""
        return text.hash_words(self.words)

    @cached_property
    def word_lengths(self) -> NDArray[np.int64]:
        """Characters of each word, shape (n_words,)."""
        return np.fromiter(map(len, self.words), dtype=np.int64, count=len(self.words))

    @cached_property
    def lines(self) -> list[str]:
        """Lines that are not blank, stripped."""
        return text.lines(self.text)

    @cached_property
    def paragraphs(self) -> list[str]:
        """Blocks between blank lines, stripped."""
        return text.paragraphs(self.text)
