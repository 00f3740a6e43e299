"""C4's rules: drop lines that are not running text, and texts with few sentences left.

Source: Raffel et al., "Exploring the Limits of Transfer Learning with
a Unified Text-to-Text Transformer", arXiv 1910.10683, section 2.2, with the further rules of its published code (words
of more than 1,000 characters, notices on cookies and terms of use). Sentences are counted as datatrove's
C4QualityFilter counts them, so that both give the same verdicts.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from tasks.filters.base import Annotator, Filter, Measured, Reasons

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from tasks.filters.batch import Batch

_CITATION = re.compile(r"\[\d*]|\[edit]|\[citation needed]")
_ENDS = (".", "?", "!", '"', "'")
_NOTICES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
_KEPT, _LOREM, _CURLY, _DROPPED = range(4)


class C4Measures(Annotator):
    """Measurements of C4's rules. `dropped_lines` are the numbers, from 0, of the lines that C4 removes from a text."""

    version: ClassVar[int] = 2

    end_marks: bool = True
    """A line that does not end as a sentence does is dropped. C4: true. FineWeb leaves this rule out, which costs good
    texts that are short or whose paragraphs end in other marks (docs/filters.md has figures)."""

    min_words: int = Field(default=3, ge=0)
    """A line of fewer words, split at spaces, is dropped. C4: 3."""

    max_word_chars: int = Field(default=1000, ge=1)
    """A line with a longer word is dropped. C4's code: 1,000."""

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

    def measure(self, batch: "Batch") -> Mapping[str, Any]:
        """Classifies every line; `sentences` counts those of the lines that are kept."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        from tasks.filters.counting.columns import one_of

        lines, words = batch.line_columns, batch.words
        candidates = words.line_stretches >= self.min_words
        if self.end_marks:
            # Few lines end like a sentence; only those are examined one by one.
            bracket = pc.match_substring(lines.stripped, "[").to_numpy(zero_copy_only=False)
            candidates &= bracket | one_of(lines.stripped_last, _ENDS)
        fates = np.full(len(lines), _DROPPED, np.int8)
        fates[candidates] = [self._fate(line) for line in lines.stripped.filter(pa.array(candidates)).to_pylist()]
        dropped = np.flatnonzero(fates == _DROPPED)
        places = np.searchsorted(dropped, lines.starts)
        numbers = pa.array(dropped - np.repeat(lines.starts[:-1], np.diff(places)), pa.int32())
        of_documents = self.type().field("dropped_lines").type
        return {
            "sentences": lines.per_document(np.where(fates == _KEPT, _sentences(batch, fates), 0)),
            "lorem_ipsum": lines.per_document(fates == _LOREM) > 0,
            "curly_bracket": lines.per_document(fates == _CURLY) > 0,
            "dropped_lines": pa.ListArray.from_arrays(pa.array(places, pa.int32()), numbers, of_documents),
        }

    def _fate(self, line: str) -> int:
        ending = _CITATION.sub("", line) if "[" in line else line
        if self.end_marks and (not ending.endswith(_ENDS) or ending.endswith("...")):
            return _DROPPED
        if len(line) > self.max_word_chars and max(map(len, line.split())) > self.max_word_chars:
            return _DROPPED
        lower = ending.lower()
        if "lorem ipsum" in lower:
            return _LOREM
        if "javascript" in lower:
            return _DROPPED
        if "{" in ending:
            return _CURLY
        # Most lines have none of these, and three searches cost less than six.
        if ("cookie" in lower or "of use" in lower or "policy" in lower) and any(one in lower for one in _NOTICES):
            return _DROPPED
        return _KEPT


def _sentences(batch: "Batch", fates: "NDArray[np.int8]") -> "NDArray[np.int64]":
    """Returns the sentences of each line of the batch; kept lines are counted without citation marks ("[3]")."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from tasks.filters.counting.words import split

    counts = batch.words.sentences.copy()
    lines = batch.line_columns.raw
    bracket = pc.match_substring(lines, "[").to_numpy(zero_copy_only=False)
    places = np.flatnonzero(bracket & (fates == _KEPT))
    several = lines.take(pa.array(places)).to_pylist()
    cited = [row for row, line in enumerate(several) if _CITATION.search(line)]
    if cited:
        without = pa.array([_CITATION.sub("", several[row]) for row in cited], pa.string())
        counts[places[cited]] = split(without).sentences
    return counts


class C4(Filter):
    """Drops texts of which C4's rules on lines leave fewer than five sentences, and texts with filler or code.

    >>> C4().verdict("Home | About | Contact. Terms of use apply.")
    'c4_few_sentences'
    >>> C4().verdict("It rained. We stayed at home. Nobody minded that. The cat slept. So did the dog.")
    """

    measured_by = C4Measures

    min_sentences: int = Field(default=5, ge=0)
    """Fewer sentences in the lines that stay: `c4_few_sentences`. C4: 5."""

    lorem_ipsum: bool = True
    """Drop texts with "lorem ipsum" in a line that would stay: `c4_lorem_ipsum`."""

    curly_bracket: bool = True
    """Drop texts with "{" in a line that would stay: `c4_curly_bracket`. Code has them, and prose has not."""

    def reasons(self, measured: Measured) -> Reasons:
        """See `Filter.reasons`."""
        if self.lorem_ipsum:
            yield "c4_lorem_ipsum", measured["lorem_ipsum"]
        if self.curly_bracket:
            yield "c4_curly_bracket", measured["curly_bracket"]
        yield "c4_few_sentences", measured["sentences"] < self.min_sentences
