"""Gopher's repetition rules.

Used by the stage through the catalogue. Source of every rule and limit: Rae et al., arXiv 2112.11446, appendix A.1.1
"Repetition removal", table A1. Shares of characters are of the whole text, white space and punctuation included.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
        reason = self._blocks(view) or self._ngrams(view)
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

    def _ngrams(self, view: "View") -> str | None:
        total = len(view.text)
        for repeats in repeated_ngrams(view, max((*self.max_top_ngram, *self.max_duplicate_ngrams), default=0)):
            size = repeats.size
            if size in self.max_top_ngram and repeats.top_chars > self.max_top_ngram[size] * total:
                return f"top_{size}gram"
            if size in self.max_duplicate_ngrams and repeats.later_chars > self.max_duplicate_ngrams[size] * total:
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


@dataclass(frozen=True)
class Repeats:
    """What stands more than once among the n-grams of one size, in characters.

    `top_chars`: the most frequent n-gram with its inner spaces, times its count; of equally frequent ones, the first.
    `later_chars`: words inside n-grams that stood before, each word once, without spaces.
    """

    size: int
    top_chars: int
    later_chars: int


def repeated_ngrams(view: "View", largest: int) -> Iterator[Repeats]:
    """Yields the repeats for n = 2, 3, ... up to `largest`, as long as there are any.

    An n-gram repeats only where the (n-1)-gram at the same place does, so each size looks at few places of the one
    before: all sizes together cost little more than the first.
    """
    import numpy as np

    from tasks.text import extended

    words = view.word_hashes
    places: NDArray[np.int64] = np.arange(len(words))
    runs = words
    for size in range(2, largest + 1):
        inside = places + size <= len(words)
        places = places[inside]
        runs = extended(runs[inside], words[places + size - 1])
        order = np.argsort(runs, kind="stable")
        opens = np.ones(len(runs), dtype=bool)
        opens[1:] = runs[order[1:]] != runs[order[:-1]]
        counts = np.diff(np.flatnonzero(opens), append=len(runs))
        if not (counts > 1).any():
            return
        most = int(counts.max())
        start = int(places[order[opens][counts == most]].min())
        top = most * (int(view.word_lengths[start : start + size].sum()) + size - 1)
        yield Repeats(size, top, _covered(view, places[order[~opens]], size))
        kept = np.sort(order[np.repeat(counts > 1, counts)])
        places, runs = places[kept], runs[kept]


def _covered(view: "View", starts: "NDArray[np.int64]", size: int) -> int:
    """Characters of the words inside the runs of `size` words that begin at `starts`, each word once."""
    import numpy as np

    steps = np.bincount(starts, minlength=len(view.words) + 1)
    steps -= np.bincount(starts + size, minlength=len(view.words) + 1)
    return int(view.word_lengths[np.cumsum(steps[:-1]) > 0].sum())
