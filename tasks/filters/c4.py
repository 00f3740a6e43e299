"""C4's rules: drop lines that are not running text, and texts with few remaining sentences.

Source: Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer", arXiv
1910.10683, section 2.2, and the additional rules of its published code (words of more than 1,000 characters, cookie
and terms-of-use notices). Sentences are counted as in datatrove's C4QualityFilter, so that both give the same verdicts.
"""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from tasks.filters.base import Annotator, Filter, Measurements, Reasons, Threshold

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from tasks.filters.batch import DocumentBatch

_CITATION = re.compile(r"\[\d*]|\[edit]|\[citation needed]")
_ENDS = (".", "?", "!", '"', "'")
_NOTICES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
_KEPT, _LOREM, _CURLY, _DROPPED = range(4)


class C4Measures(Annotator):
    """Measurements of C4's rules. `dropped_lines` has the 0-based indices of the lines that C4 removes from a text."""

    places: ClassVar[bool] = True

    segmented: ClassVar[bool] = True
    version: ClassVar[int] = 3

    end_marks: bool = True
    """Drop lines that do not end with a sentence mark. C4: true. FineWeb omits this rule because it drops good texts
    that are short or whose paragraphs end with other marks (figures in docs/filters.md)."""

    min_words: int = Field(default=3, ge=0)
    """Lines with fewer words, split at white space or by a dictionary (`tasks.formats.documents.words`), are dropped.
    C4: 3."""

    max_word_chars: int = Field(default=1000, ge=1)
    """Lines with a longer word are dropped. C4's code: 1,000."""

    def type(self) -> "pa.StructType":
        """See `Annotator.type`."""
        import pyarrow as pa

        lines = pa.list_(pa.field("item", pa.int32(), nullable=False))
        return pa.struct(
            [
                pa.field("sentences", pa.int32(), nullable=False),
                pa.field("lorem_ipsum", pa.bool_(), nullable=False),
                pa.field("curly_bracket", pa.bool_(), nullable=False),
                pa.field("dropped_lines", lines, nullable=False),
            ]
        )

    def measure(self, batch: "DocumentBatch") -> Mapping[str, Any]:
        """Classifies every line; `sentences` counts the sentences of the kept lines."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        from tasks.filters.counting.columns import is_in

        lines, words = batch.line_columns, batch.words
        candidates = words.line_chunks >= self.min_words
        if self.end_marks:
            # Few lines end like a sentence; only those are examined individually.
            bracket = pc.match_substring(lines.stripped, "[").to_numpy(zero_copy_only=False)
            candidates &= bracket | is_in(lines.stripped_last, _ENDS)
        fates = np.full(len(lines), _DROPPED, np.int8)
        fates[candidates] = [self._fate(line) for line in lines.stripped.filter(pa.array(candidates)).to_pylist()]
        dropped = np.flatnonzero(fates == _DROPPED)
        offsets = np.searchsorted(dropped, lines.starts)
        indices = pa.array(dropped - np.repeat(lines.starts[:-1], np.diff(offsets)), pa.int32())
        list_type = self.type().field("dropped_lines").type
        return {
            "sentences": lines.per_document(np.where(fates == _KEPT, _sentences(batch, fates), 0)),
            "lorem_ipsum": lines.per_document(fates == _LOREM) > 0,
            "curly_bracket": lines.per_document(fates == _CURLY) > 0,
            "dropped_lines": pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), indices, list_type),
        }

    def _fate(self, line: str) -> int:
        from tasks.formats.documents.words import words

        ending = _CITATION.sub("", line) if "[" in line else line
        if self.end_marks and (not ending.endswith(_ENDS) or ending.endswith("...")):
            return _DROPPED
        if len(line) > self.max_word_chars and max(map(len, words(line))) > self.max_word_chars:
            return _DROPPED
        lower = ending.lower()
        if "lorem ipsum" in lower:
            return _LOREM
        if "javascript" in lower:
            return _DROPPED
        if "{" in ending:
            return _CURLY
        # Most lines contain none of these three, and three searches cost less than six.
        if ("cookie" in lower or "of use" in lower or "policy" in lower) and any(text in lower for text in _NOTICES):
            return _DROPPED
        return _KEPT


def _sentences(batch: "DocumentBatch", fates: "NDArray[np.int8]") -> "NDArray[np.int64]":
    """Returns the number of sentences of each line; in kept lines, citation marks ("[3]") are removed first."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from tasks.filters.counting.words import split

    counts = batch.words.sentences.copy()
    lines = batch.line_columns.raw
    bracket = pc.match_substring(lines, "[").to_numpy(zero_copy_only=False)
    indices = np.flatnonzero(bracket & (fates == _KEPT))
    bracketed = lines.take(pa.array(indices)).to_pylist()
    cited = [row for row, line in enumerate(bracketed) if _CITATION.search(line)]
    if cited:
        uncited = pa.array([_CITATION.sub("", bracketed[row]) for row in cited], pa.string())
        counts[indices[cited]] = split(uncited).sentences
    return counts


class C4(Filter):
    """Drops texts with fewer than five sentences after C4's line rules, and texts with placeholder text or code.

    >>> C4().verdict("Home | About | Contact. Terms of use apply.")
    'c4_few_sentences'
    >>> C4().verdict("It rained. We stayed at home. Nobody minded that. The cat slept. So did the dog.")
    """

    measured_by = C4Measures

    min_sentences: int = Field(default=5, ge=0)
    """Texts with fewer sentences in their kept lines are dropped: `c4_few_sentences`. C4: 5."""

    lorem_ipsum: bool = True
    """Drop texts with "lorem ipsum" in a line that would otherwise be kept: `c4_lorem_ipsum`."""

    curly_bracket: bool = True
    """Drop texts with "{" in a line that would otherwise be kept: `c4_curly_bracket`. Brackets indicate code."""

    def reasons(self, measured: Measurements) -> Reasons:
        """See `Filter.reasons`."""
        if self.lorem_ipsum:
            yield "c4_lorem_ipsum", measured["lorem_ipsum"]
        if self.curly_bracket:
            yield "c4_curly_bracket", measured["curly_bracket"]
        yield from super().reasons(measured)

    def thresholds(self, measured: Measurements) -> Iterator[Threshold]:
        """See `Filter.thresholds`."""
        yield Threshold("min_sentences", "c4_few_sentences", "least", self.min_sentences, measured["sentences"])
