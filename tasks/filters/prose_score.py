"""Prose score: chooses the keeper among near-duplicates.

Of duplicates of one text, the one with more prose and less boilerplate is preferred. The score is not a classifier and
has no limit. Source of the criterion of sentence ends: C4 (Raffel et al., arXiv 1910.10683, section 2.2), where it is a
rule for lines; here it is a share of characters.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from tasks.filters.base import Annotator

if TYPE_CHECKING:
    from tasks.filters.batch import DocumentBatch

_SENTENCE_ENDS = (".", "!", "?", '"', "'", ":", ";", ")", "”", "’", "»", "。", "！", "？", "।", "؟")


class ProseScore(Annotator):
    """Mean of three shares: length, characters in lines that end with a sentence mark, characters in unique lines."""

    full_length: int = Field(default=5000, ge=1)
    """Number of characters from which on the share of length is 1."""

    splits: ClassVar[tuple[str, ...]] = ("line_columns",)
    measures: ClassVar[Mapping[str, str]] = {"score": "float32"}

    def measure(self, batch: "DocumentBatch") -> Mapping[str, Any]:
        """Returns `score` in 0..1, rounded to four digits."""
        from tasks.filters.counting.columns import is_in

        lines = batch.line_columns
        chars = lines.stripped_chars
        prose = lines.per_document(chars * is_in(lines.stripped_last, _SENTENCE_ENDS))
        unique = lines.per_document(chars * ~lines.stripped_repeats)
        sums = (values.tolist() for values in (lines.per_document(chars), prose, unique))
        return {"score": [self._score(*row) for row in zip(*sums, strict=True)]}

    def _score(self, total: int, prose: int, unique: int) -> float:
        if not total:
            return 0.0
        return round((min(1.0, total / self.full_length) + prose / total + unique / total) / 3, 4)
