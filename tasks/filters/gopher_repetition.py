"""Gopher's repetition rules: drop texts that repeat lines, paragraphs or n-grams.

Source of every rule and limit: Rae et al., arXiv 2112.11446, appendix A.1.1 "Repetition removal", table A1. The paper
does not define how characters are counted; this is done as in datatrove's GopherRepetitionFilter. Shares are of the
whole text; the top n-gram is counted with its inner spaces, repeated n-grams without them; counting continues after the
last word of a repeated n-gram. In scripts without spaces the inner spaces count too, although the text has none, as in
datatrove, for whose figures published limits of these languages are made.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from tasks.filters.base import Annotator, Filter, Measurements, Threshold, share

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tasks.filters.batch import DocumentBatch
    from tasks.filters.counting.columns import Lines

TOP = (2, 3, 4)
DUPLICATE = (5, 6, 7, 8, 9, 10)
_PARAGRAPH_END = re.compile(r"\n{2,}")


class GopherRepetitionMeasures(Annotator):
    """Measurements of Gopher's repetition rules, in code points unless stated otherwise."""

    segmented: ClassVar[bool] = True
    version: ClassVar[int] = 2

    measures: ClassVar[Mapping[str, str]] = dict.fromkeys(
        (
            "chars",
            *(f"{kind}{suffix}" for kind in ("line", "paragraph") for suffix in ("s", "_repeats", "_repeat_chars")),
            *(f"top_{size}gram" for size in TOP),
            *(f"duplicate_{size}gram" for size in DUPLICATE),
        ),
        "int32",
    )

    def measure(self, batch: "DocumentBatch") -> Mapping[str, Any]:
        """Counts repeated lines and paragraphs, and n-grams.

        `top_<n>gram` counts the characters of all occurrences of the most frequent n-gram, `duplicate_<n>gram` those of
        all repeated n-grams.
        """
        from tasks.filters.counting.ngrams import repeated_characters

        paragraphs = list(zip(*(_repeats(_paragraphs(text.strip())) for text in batch.texts), strict=True))
        return {
            "chars": [len(text) for text in batch.texts],
            **_line_measures(batch.line_columns),
            **dict(zip(("paragraphs", "paragraph_repeats", "paragraph_repeat_chars"), paragraphs, strict=True)),
            **repeated_characters(batch.words, TOP, DUPLICATE),
        }


def _line_measures(lines: "Lines") -> dict[str, Any]:
    """Counts non-empty lines, and an empty line at either end of a text, like a split at runs of line ends."""
    filled = lines.chars > 0
    first, last = lines.starts[:-1], lines.starts[1:] - 1
    blank = (~filled[first]).astype(int) + (~filled[last] & (first < last))
    return {
        "lines": lines.per_document(filled) + blank,
        "line_repeats": lines.per_document(filled & lines.repeats) + (blank == 2),
        "line_repeat_chars": lines.per_document(lines.chars * lines.repeats),
    }


def _paragraphs(text: str) -> list[str]:
    # Splitting at a fixed string is many times as fast as splitting at a regular expression.
    return _PARAGRAPH_END.split(text) if "\n\n\n" in text else text.split("\n\n")


def _repeats(blocks: Sequence[str]) -> tuple[int, int, int]:
    """Returns the number of blocks, the number of repeated ones, and the code points of the repeated ones."""
    distinct = dict.fromkeys(blocks)
    if len(distinct) == len(blocks):
        return len(blocks), 0, 0
    return len(blocks), len(blocks) - len(distinct), sum(map(len, blocks)) - sum(map(len, distinct))


class GopherRepetition(Filter):
    r"""Drops repetitive texts: menus, spam, generated lists.

    >>> GopherRepetition().verdict("Buy now. Free shipping to all towns.\n" * 9)
    'gopher_repetition_duplicate_lines'
    >>> GopherRepetition().verdict(
    ...     "The boats came in.\nNobody had seen them leave, and few asked where they had been, for the nets were full "
    ...     "and the market opened at six. By noon all of it was sold."
    ... )
    """

    measured_by = GopherRepetitionMeasures

    max_duplicate_lines: float = Field(default=0.3, ge=0, le=1)
    """Larger share of repeated lines: `gopher_repetition_duplicate_lines`. Paper: 0.30."""

    max_duplicate_paragraphs: float = Field(default=0.3, ge=0, le=1)
    """Larger share of repeated paragraphs: `..._duplicate_paragraphs`. Paper: 0.30."""

    max_duplicate_line_chars: float = Field(default=0.2, ge=0, le=1)
    """Larger share of characters in such lines: `..._duplicate_line_chars`. Paper: 0.20."""

    max_duplicate_paragraph_chars: float = Field(default=0.2, ge=0, le=1)
    """Larger share of characters in such paragraphs: `..._duplicate_paragraph_chars`. Paper: 0.20."""

    max_top_ngram: dict[int, float] = {2: 0.20, 3: 0.18, 4: 0.16}
    """Larger share of characters in the most frequent n-gram: `..._top_<n>gram`. Paper: these."""

    max_duplicate_ngram: dict[int, float] = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
    """Larger share of characters in repeated n-grams: `..._duplicate_<n>gram`. Paper: these."""

    def thresholds(self, measured: Measurements) -> Iterator[Threshold]:
        """See `Filter.thresholds`."""
        chars = measured["chars"]

        def limit(name: str, bound: float, reason: str, values: "NDArray[Any]") -> Threshold:
            return Threshold(name, f"gopher_repetition_{reason}", "most", bound, values)

        for kind, most, most_chars in (
            ("paragraph", self.max_duplicate_paragraphs, self.max_duplicate_paragraph_chars),
            ("line", self.max_duplicate_lines, self.max_duplicate_line_chars),
        ):
            repeats = share(measured[f"{kind}_repeats"], measured[f"{kind}s"])
            yield limit(f"max_duplicate_{kind}s", most, f"duplicate_{kind}s", repeats)
            repeated = share(measured[f"{kind}_repeat_chars"], chars)
            yield limit(f"max_duplicate_{kind}_chars", most_chars, f"duplicate_{kind}_chars", repeated)
        for name, sizes, bounds in (
            ("top", TOP, self.max_top_ngram),
            ("duplicate", DUPLICATE, self.max_duplicate_ngram),
        ):
            for size in sizes:
                if size in bounds:
                    repeated = share(measured[f"{name}_{size}gram"], chars)
                    yield limit(f"max_{name}_ngram.{size}", bounds[size], f"{name}_{size}gram", repeated)
