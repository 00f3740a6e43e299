"""Prose score: chooses the keeper among near-duplicates.

Ranks duplicates of one text: the one with more prose and less boilerplate is preferred. It is not a classifier, and
has no limit. The cue of sentence ends is C4's (Raffel et al., arXiv 1910.10683, section 2.2), here by characters, not
as a rule.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from tasks.filters.base import Annotator

if TYPE_CHECKING:
    from tasks.filters.batch import Batch

_SENTENCE_ENDS = (".", "!", "?", '"', "'", ":", ";", ")", "”", "’", "»", "。", "！", "？", "।", "؟")


class ProseScore(Annotator):
    """Mean of three shares: length, characters in lines that end as sentences do, characters in unique lines."""

    full_length: int = Field(default=5000, ge=1)
    """Characters from which on length adds no more."""

    measures: ClassVar[Mapping[str, str]] = {"score": "float32"}

    def measure(self, batch: "Batch") -> Mapping[str, Any]:
        """Returns `score` in 0..1, rounded to four digits."""
        from tasks.filters.counting.columns import one_of

        lines = batch.line_columns
        chars = lines.stripped_chars
        prose = lines.per_document(chars * one_of(lines.stripped_last, _SENTENCE_ENDS))
        unique = lines.per_document(chars * ~lines.stripped_repeats)
        sums = (values.tolist() for values in (lines.per_document(chars), prose, unique))
        return {"score": [self._score(*several) for several in zip(*sums, strict=True)]}

    def _score(self, total: int, prose: int, unique: int) -> float:
        if not total:
            return 0.0
        return round((min(1.0, total / self.full_length) + prose / total + unique / total) / 3, 4)
