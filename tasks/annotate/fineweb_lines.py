"""FineWeb's line rules.

Used by the stage through the catalogue, where a recipe asks for it. Source of every rule and limit: Penedo et al., "The
FineWeb Datasets: Decanting the Web for the Finest Text Data at Scale", arXiv 2406.17557, section 3.6.
"""

from typing import TYPE_CHECKING

from pydantic import Field

from tasks.annotate.base import Filter

if TYPE_CHECKING:
    from tasks.annotate.view import View

_SENTENCE_ENDS = (".", "!", "?", '"', "'", "”", "’", "。", "！", "？", "।", "؟", "…")


class FinewebLines(Filter):
    r"""Drops texts whose lines are not sentences: lists, menus, tag clouds.

    >>> from tasks.annotate.view import View
    >>> FinewebLines().verdict(View("Home of all things old\nAbout us and our shop\nLog in"))
    'fineweb_lines_few_sentences'
    >>> FinewebLines().verdict(View("One sentence that runs well past the thirtieth character."))
    """

    min_sentence_lines: float = Field(default=0.12, ge=0, le=1)
    """This share of lines or fewer end as sentences do: `fineweb_lines_few_sentences`. Paper: 0.12."""

    max_duplicate_chars: float = Field(default=0.1, ge=0, le=1)
    """This share of characters or more stands in lines met before: `fineweb_lines_duplicate_chars`. Paper: 0.1."""

    max_short_lines: float = Field(default=0.67, ge=0, le=1)
    """This share of lines or more is short: `fineweb_lines_short`. Paper: 0.67."""

    short: int = Field(default=30, ge=1)
    """A line of fewer characters is short. Paper: 30."""

    def verdict(self, view: "View") -> str | None:
        """See `Filter.verdict`."""
        lines = view.lines
        if not lines:
            return "fineweb_lines_empty"
        if sum(line.endswith(_SENTENCE_ENDS) for line in lines) <= self.min_sentence_lines * len(lines):
            return "fineweb_lines_few_sentences"
        total = sum(map(len, lines))
        if total - sum(map(len, dict.fromkeys(lines))) >= self.max_duplicate_chars * total:
            return "fineweb_lines_duplicate_chars"
        if sum(len(line) < self.short for line in lines) >= self.max_short_lines * len(lines):
            return "fineweb_lines_short"
        return None
