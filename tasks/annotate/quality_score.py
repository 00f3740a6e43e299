"""A simple score by which the keeper among near-duplicates is chosen.

Used by the stage through the catalogue; read by dedup. It ranks copies of one text against each other: the copy with
more prose and less of a site's furniture around it should win. It is no classifier, and no threshold is put on it.
"""

from typing import TYPE_CHECKING, Any

from pydantic import Field

from tasks.annotate.base import Annotator

if TYPE_CHECKING:
    from tasks.annotate.view import View

_SENTENCE_ENDS = (".", "!", "?", '"', "'", ":", ";", ")", "”", "’", "»", "。", "！", "？", "।", "؟")


class QualityScore(Annotator):
    """Mean of three shares: length, characters in lines that end as sentences do, characters in lines met once.

    The cue of sentence ends is C4's (Raffel et al., arXiv 1910.10683, section 2.2), here by characters, not as a rule.
    """

    full_length: int = Field(default=1000, ge=1)
    """Words from which on length adds no more."""

    def annotate(self, view: "View") -> dict[str, Any]:
        """Returns `quality_score` in 0..1, rounded to four digits."""
        total = sum(map(len, view.lines))
        if not total:
            return {"quality_score": 0.0}
        prose = sum(len(line) for line in view.lines if line.endswith(_SENTENCE_ENDS))
        unique = sum(map(len, dict.fromkeys(view.lines)))
        length = min(1.0, len(view.words) / self.full_length)
        return {"quality_score": round((length + prose / total + unique / total) / 3, 4)}
