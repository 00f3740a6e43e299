"""A simple score by which the keeper among near-duplicates is chosen.

Measured by `annotate`, read by `dedup` and `consolidate`. It ranks copies of one text against each other: the copy with
more prose and less of a site's furniture around it should win. It is no classifier, and no limit is put on it. The cue
of sentence ends is C4's (Raffel et al., arXiv 1910.10683, section 2.2), here by characters, not as a rule.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from tasks.filters.base import Annotator

if TYPE_CHECKING:
    from tasks.filters.batch import Batch

_SENTENCE_ENDS = (".", "!", "?", '"', "'", ":", ";", ")", "”", "’", "»", "。", "！", "？", "।", "؟")


class ProseScore(Annotator):
    """Mean of three shares: length, characters in lines that end as sentences do, characters in lines met once."""

    full_length: int = Field(default=5000, ge=1)
    """Characters from which on length adds no more."""

    measures: ClassVar[Mapping[str, str]] = {"score": "float32"}

    def measure(self, batch: "Batch") -> Mapping[str, Any]:
        """Returns `score` in 0..1, rounded to four digits."""
        return {"score": [self._score(lines) for lines in batch.lines]}

    def _score(self, all_lines: Sequence[str]) -> float:
        lines = [line for raw in all_lines if (line := raw.strip())]
        total = sum(map(len, lines))
        if not total:
            return 0.0
        prose = sum(len(line) for line in lines if line.endswith(_SENTENCE_ENDS))
        unique = sum(map(len, dict.fromkeys(lines)))
        return round((min(1.0, total / self.full_length) + prose / total + unique / total) / 3, 4)
