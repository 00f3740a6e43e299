"""Gopher's document-wise quality rules.

Used by the stage through the catalogue. Source of every rule and limit: Rae et al., "Scaling Language Models: Methods,
Analysis & Insights from Training Gopher", arXiv 2112.11446, appendix A.1.1 "Quality filtering".
"""

from typing import TYPE_CHECKING

from pydantic import Field

from tasks.annotate.base import Filter

if TYPE_CHECKING:
    from tasks.annotate.view import View

_STOP_WORDS = frozenset(("the", "be", "to", "of", "and", "that", "have", "with"))
_BULLETS = ("•", "●", "○", "■", "□", "▪", "‣", "⁃", "-", "*")
_ELLIPSES = ("...", "…")


class GopherQuality(Filter):
    """Drops texts that are not prose: too short or long, symbols, lists, cut-off lines, no everyday words.

    >>> from tasks.annotate.view import View
    >>> GopherQuality().verdict(View("Click here"))
    'gopher_quality_few_words'
    >>> GopherQuality().verdict(View("The cat that sat with me is gone to the hills. " * 6))
    """

    min_words: int = Field(default=50, ge=0)
    """Fewer words: `gopher_quality_few_words`. Paper: 50."""

    max_words: int = Field(default=100_000, ge=1)
    """More words: `gopher_quality_many_words`. Paper: 100,000."""

    min_mean_word: float = Field(default=3.0, ge=0)
    """Shorter mean word, in characters: `gopher_quality_short_mean_word`. Paper: 3."""

    max_mean_word: float = Field(default=10.0, ge=0)
    """Longer mean word: `gopher_quality_long_mean_word`. Paper: 10."""

    max_symbol_share: float = Field(default=0.1, ge=0)
    """More hash signs, or more ellipses, per word: `gopher_quality_symbols`. Paper: 0.1."""

    max_bullet_lines: float = Field(default=0.9, ge=0, le=1)
    """Larger share of lines that begin with a bullet: `gopher_quality_bullets`. Paper: 0.9."""

    max_ellipsis_lines: float = Field(default=0.3, ge=0, le=1)
    """Larger share of lines that end with an ellipsis: `gopher_quality_ellipsis_lines`. Paper: 0.3."""

    min_alphabetic: float = Field(default=0.8, ge=0, le=1)
    """Smaller share of space-separated tokens with a letter in them: `gopher_quality_few_letters`. Paper: 0.8."""

    min_stop_words: int = Field(default=2, ge=0)
    """Fewer different words of {the, be, to, of, and, that, have, with}: `gopher_quality_stop_words`. Paper: 2."""

    english: tuple[str, ...] = ("en", "und")
    """Languages to which the rules on stop words and on the mean word length apply: they describe English."""

    def verdict(self, view: "View") -> str | None:
        """See `Filter.verdict`."""
        reason = self._length(view) or self._symbols(view) or self._lines(view) or self._words(view)
        return f"gopher_quality_{reason}" if reason else None

    def _length(self, view: "View") -> str | None:
        count = len(view.words)
        if count < self.min_words:
            return "few_words"
        return "many_words" if count > self.max_words else None

    def _symbols(self, view: "View") -> str | None:
        limit = self.max_symbol_share * len(view.words)
        ellipses = sum(view.text.count(ellipsis_) for ellipsis_ in _ELLIPSES)
        return "symbols" if view.text.count("#") > limit or ellipses > limit else None

    def _lines(self, view: "View") -> str | None:
        limit = len(view.lines)
        if sum(line.startswith(_BULLETS) for line in view.lines) > self.max_bullet_lines * limit:
            return "bullets"
        ending = sum(line.endswith(_ELLIPSES) for line in view.lines)
        return "ellipsis_lines" if ending > self.max_ellipsis_lines * limit else None

    def _words(self, view: "View") -> str | None:
        # The shared split holds words only; this rule is about what stands between them.
        tokens = view.text.split()
        without = sum(1 for token in tokens if not token[0].isalpha() and not any(map(str.isalpha, token)))
        if len(tokens) - without < self.min_alphabetic * len(tokens):
            return "few_letters"
        if view.found.get("language", "en") not in self.english:
            return None
        mean = float(view.word_lengths.sum()) / max(1, len(view.words))
        if mean < self.min_mean_word:
            return "short_mean_word"
        if mean > self.max_mean_word:
            return "long_mean_word"
        return "stop_words" if len(_STOP_WORDS.intersection(view.words)) < self.min_stop_words else None
