"""Gopher's repetition rules.

Used by the stage through the catalogue. Source of every rule and limit: Rae et al., arXiv 2112.11446, appendix A.1.1
"Repetition removal", table A1. Shares of characters are of the whole text, white space and punctuation included.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from tasks.annotate.base import Filter

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tasks.annotate.view import View


class GopherRepetition(Filter):
    r"""Drops texts that say the same again and again: menus, spam, generated lists.

    >>> from tasks.annotate.view import View
    >>> GopherRepetition().verdict(View("Buy now. Free shipping to all towns.\n" * 9))
    'gopher_repetition_duplicate_lines'
    >>> GopherRepetition().verdict(View("A first line about boats.\nAnother one, about the sea and the wind."))
    """

    max_duplicate_lines: float = Field(default=0.3, ge=0, le=1)
    """Larger share of lines that stood before: `gopher_repetition_duplicate_lines`. Paper: 0.30."""

    max_duplicate_paragraphs: float = Field(default=0.3, ge=0, le=1)
    """Larger share of paragraphs that stood before: `..._duplicate_paragraphs`. Paper: 0.30."""

    max_duplicate_line_chars: float = Field(default=0.2, ge=0, le=1)
    """Larger share of characters in such lines: `..._duplicate_line_chars`. Paper: 0.20."""

    max_duplicate_paragraph_chars: float = Field(default=0.2, ge=0, le=1)
    """Larger share of characters in such paragraphs: `..._duplicate_paragraph_chars`. Paper: 0.20."""

    max_top_ngram: dict[int, float] = {2: 0.20, 3: 0.18, 4: 0.16}
    """Larger share of characters in the most frequent n-gram: `..._top_<n>gram`. Paper: these."""

    max_duplicate_ngrams: dict[int, float] = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
    """Larger share of characters in n-grams that stood before, each counted once: `..._duplicate_<n>grams`.
    Paper: these."""

    def verdict(self, view: "View") -> str | None:
        """See `Filter.verdict`."""
        if not view.words:
            return None
        reason = self._blocks(view) or self._top_ngram(view) or self._duplicate_ngrams(view)
        return f"gopher_repetition_{reason}" if reason else None

    def _blocks(self, view: "View") -> str | None:
        for name, blocks, share, chars in (
            ("line", view.lines, self.max_duplicate_lines, self.max_duplicate_line_chars),
            ("paragraph", view.paragraphs, self.max_duplicate_paragraphs, self.max_duplicate_paragraph_chars),
        ):
            repeated = _repeated(blocks)
            if len(repeated) > share * len(blocks):
                return f"duplicate_{name}s"
            if sum(map(len, repeated)) > chars * len(view.text):
                return f"duplicate_{name}_chars"
        return None

    def _top_ngram(self, view: "View") -> str | None:
        for size, share in sorted(self.max_top_ngram.items()):
            if _top_ngram_chars(view, size) > share * len(view.text):
                return f"top_{size}gram"
        return None

    def _duplicate_ngrams(self, view: "View") -> str | None:
        for size, chars in _duplicate_ngram_chars(view, sorted(self.max_duplicate_ngrams)):
            if chars > self.max_duplicate_ngrams[size] * len(view.text):
                return f"duplicate_{size}grams"
        return None


def _repeated(blocks: Sequence[str]) -> list[str]:
    seen: set[str] = set()
    repeated = []
    for block in blocks:
        if block in seen:
            repeated.append(block)
        seen.add(block)
    return repeated


def _top_ngram_chars(view: "View", size: int) -> int:
    """Characters of the most frequent n-gram, its spaces included, times how often it stands there."""
    import numpy as np

    from tasks.text import rolled

    hashes = rolled(view.word_hashes, size)
    if not len(hashes):
        return 0
    _, first, counts = np.unique(hashes, return_index=True, return_counts=True)
    most = int(counts.max())
    if most == 1:
        return 0
    start = int(first[counts == most].min())
    return most * (int(view.word_lengths[start : start + size].sum()) + size - 1)


def _duplicate_ngram_chars(view: "View", sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Characters covered by n-grams that stood before, for each n of `sizes` (ascending).

    An n-gram can only be a repeat where its first n-1 words are one, so each size looks at few places beyond the first.
    """
    import numpy as np

    from tasks.text import rolled

    found: list[tuple[int, int]] = []
    places: NDArray[np.int64] | None = None
    for size in sizes:
        hashes = rolled(view.word_hashes, size)
        places = np.arange(len(hashes)) if places is None else places[places < len(hashes)]
        if not len(places):
            break
        _, inverse, counts = np.unique(hashes[places], return_inverse=True, return_counts=True)
        places = places[counts[inverse] > 1]
        later = places[_is_later(hashes[places])]
        steps = np.zeros(len(view.words) + 1, dtype=np.int64)
        np.add.at(steps, later, 1)
        np.add.at(steps, later + size, -1)
        found.append((size, int(view.word_lengths[np.cumsum(steps[:-1]) > 0].sum())))
    return found


def _is_later(hashes: "NDArray[np.uint64]") -> "NDArray[np.bool_]":
    """True where the same value stands at an earlier index."""
    import numpy as np

    later = np.ones(len(hashes), dtype=bool)
    later[np.unique(hashes, return_index=True)[1]] = False
    return later
