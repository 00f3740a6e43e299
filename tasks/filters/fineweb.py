"""FineWeb's rules: drop texts whose lines are not sentences.

Source of every rule: Penedo et al., "The FineWeb Datasets: Decanting the Web for the Finest Text Data at Scale", arXiv
2406.17557, section 3.6. The limits are those of datatrove's FineWebQualityFilter, which produced the data set; its
limit on repeated characters (0.01) is stricter than the paper's (0.1).
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from tasks.filters.base import Annotator, Filter, Measurements, Reasons, Threshold, share
from tasks.filters.language_values import CHARS_PER_WORD

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tasks.filters.batch import DocumentBatch


class FinewebMeasures(Annotator):
    """Measurements of FineWeb's rules."""

    segmented: ClassVar[bool] = True
    version: ClassVar[int] = 3

    short: int = Field(default=30, ge=1)
    """Maximum number of characters of a short line. FineWeb: 30."""

    measures: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("words", "lines", "sentence_lines", "short_lines", "chars", "repeat_chars", "line_ends"), "int32"
    )

    def measure(self, batch: "DocumentBatch") -> Mapping[str, Any]:
        """Counts non-blank lines, lines that end with a sentence mark, short lines, and characters.

        `chars` counts all characters except line ends, `repeat_chars` those in repeated lines.
        """
        import numpy as np

        from tasks.filters.counting.columns import is_in
        from tasks.filters.counting.words import SENTENCE_ENDS

        lines = batch.line_columns
        filled = lines.stripped_chars > 0
        return {
            "words": batch.words.counts,
            "lines": lines.per_document(filled),
            "sentence_lines": lines.per_document(filled & is_in(lines.last, SENTENCE_ENDS)),
            "short_lines": lines.per_document(filled & (lines.chars <= self.short)),
            "chars": lines.per_document(lines.chars),
            "repeat_chars": lines.per_document(lines.chars * (filled & lines.repeats)),
            "line_ends": np.diff(lines.starts) - 1,
        }


class Fineweb(Filter):
    r"""Drops texts whose lines are not sentences: lists, menus, tag clouds.

    >>> Fineweb().verdict("Home of all things old\nAbout us and our shop\nLog in")
    'fineweb_few_sentences'
    >>> Fineweb().verdict("One sentence that runs well past the thirtieth character.")
    """

    measured_by = FinewebMeasures

    all_languages: bool = False
    """Count at least a word per ten characters, for scripts without spaces. `consolidate` sets it for other languages
    than English."""

    min_sentence_lines: float = Field(default=0.12, ge=0, le=1)
    """Smaller share of lines that end with a sentence mark: `fineweb_few_sentences`. FineWeb: 0.12."""

    max_short_lines: float = Field(default=0.67, ge=0, le=1)
    """Larger share of short lines: `fineweb_short_lines`. FineWeb: 0.67."""

    max_repeat_chars: float = Field(default=0.01, ge=0, le=1)
    """Larger share of characters in repeated lines: `fineweb_duplicate_chars`. datatrove: 0.01."""

    max_line_ends: float = Field(default=0.3, ge=0)
    """More line ends per word: `fineweb_list`. FineWeb: 0.3."""

    elsewhere: ClassVar[Mapping[str, Any]] = {"all_languages": True}

    def reasons(self, measured: Measurements) -> Reasons:
        """See `Filter.reasons`."""
        yield "fineweb_empty", measured["lines"] == 0
        yield from super().reasons(measured)

    def thresholds(self, measured: Measurements) -> Iterator[Threshold]:
        """See `Filter.thresholds`."""
        import numpy as np

        lines = measured["lines"]

        def most(bound: float, name: str, reason: str, values: "NDArray[Any]") -> Threshold:
            return Threshold(name, f"fineweb_{reason}", "most", bound, values)

        sentences = share(measured["sentence_lines"], lines)
        yield Threshold("min_sentence_lines", "fineweb_few_sentences", "least", self.min_sentence_lines, sentences)
        yield most(self.max_short_lines, "max_short_lines", "short_lines", share(measured["short_lines"], lines))
        repeated = share(measured["repeat_chars"], measured["chars"])
        yield most(self.max_repeat_chars, "max_repeat_chars", "duplicate_chars", repeated)
        words = measured["words"]
        if self.all_languages:
            words = np.maximum(words, measured["chars"] // CHARS_PER_WORD)
        ends = share(measured["line_ends"], words)
        yield most(self.max_line_ends, "max_line_ends", "list", ends)
