"""Estimation of n-gram models: interpolated modified Kneser-Ney smoothing.

Formulas: Chen & Goodman 1999, "An empirical study of smoothing techniques for language modeling" (Computer Speech &
Language 13), section 3 and appendix; algorithm, sentence begins and pruning: Heafield, Pouzyrevsky, Clark,
Koehn 2013, "Scalable Modified Kneser-Ney Language Model Estimation" (ACL), section 3.

- Adjusted count a(w1..wn): number of occurrences if n is the order or w1 is <s>, else of distinct words before it.
- Discounts of an order, from t(k), the number of its n-grams with a = k:
  D(k) = k - (k + 1) t(1) t(k + 1) / ((t(1) + 2 t(2)) t(k)) for k = 1, 2 and 3, the last one for all above.
- p(w | c) = (a(c w) - D(a(c w))) / sum_x a(c x) + b(c) p(w | c without its first word). The recursion ends with the
  uniform distribution over the vocabulary with <unk> and </s>; b(c) is the discounted mass.
- Pruning: n-grams that occur no more often than the threshold of their order, or contain a word outside the vocabulary,
  count in all sums but are not entries; their mass is added to b(c). So an unknown word has only its share of the
  uniform distribution and not the pooled mass of rare words, because text of unknown words must not score well.

Sorting all n-grams of one order in memory takes about 70 bytes per word of the reference text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.filters.ngram.model import BEGIN, END, UNKNOWN, Level, Ngrams

UNKNOWN_ID, BEGIN_ID, END_ID = range(3)

SPECIAL = [UNKNOWN, BEGIN, END]
"""First entries of every vocabulary."""

# Discounts of lmplz's --discount_fallback, for texts that are too small to estimate them.
_FALLBACK = (0.5, 1.0, 1.5)

_NEVER = -99.0  # ARPA's logarithm of zero: <s> is never predicted
_DIGITS = 6


@dataclass(frozen=True)
class EstimatedModel:
    """An n-gram model and statistics of its estimation, by order from 1 up.

    Attributes:
        ngrams: the entries.
        distinct: number of distinct n-grams of the text.
        discounts: D(1), D(2), D(3+).
        fallback: whether the discounts are `_FALLBACK`, because the text is too small.
    """

    ngrams: Ngrams
    distinct: list[int]
    discounts: list[tuple[float, float, float]]
    fallback: list[bool]


@dataclass
class _Grams:
    """The distinct n-grams of one order, identified by their index.

    Attributes:
        word: id of the last word.
        prefix: index, in the order below, of the n-gram without its last word.
        suffix: index, in the order below, of the n-gram without its first word.
        raw: number of occurrences.
        begins: whether <s> is the first word.
        is_entry: whether the n-gram is an entry of the model.
    """

    word: NDArray[np.int32]
    prefix: NDArray[np.int32]
    suffix: NDArray[np.int32]
    raw: NDArray[np.int32]
    begins: NDArray[np.bool_]
    is_entry: NDArray[np.bool_]

    def adjusted(self, above: "_Grams | None") -> NDArray[np.int32]:
        if above is None:
            return self.raw.copy()
        predecessors = np.bincount(above.suffix, minlength=len(self.raw)).astype(np.int32)
        return np.where(self.begins, self.raw, predecessors)


def estimate(ids: NDArray[np.int32], words: list[str], order: int, prune: Sequence[int]) -> EstimatedModel:
    """Estimates a model.

    Args:
        ids: the text as indices into `words`, each sentence between BEGIN_ID and END_ID; words outside the vocabulary
            are UNKNOWN_ID.
        words: the vocabulary; SPECIAL are its first entries.
        order: length of the longest n-grams.
        prune: pruning threshold of each order from 1 up; non-decreasing.
    """
    grams = _count_ngrams(ids, len(words), order, prune)
    levels: list[Level] = []
    discounts, fallbacks = [], []
    below: NDArray[np.float64] = np.empty(0)
    for n, level in enumerate(grams, start=1):
        adjusted = level.adjusted(grams[n] if n < order else None)
        if n == 1:
            adjusted[BEGIN_ID] = 0
        discount, fallback = _discounts(adjusted)
        share, back = _shares(level, adjusted, discount, len(grams[n - 2].word) if n > 1 else 1)
        if n == 1:
            share[UNKNOWN_ID] = 0.0
            share += back[0] / (len(words) - 1)  # <s> is never predicted
        else:
            share += back[level.prefix] * below[level.suffix]
            levels[-1].back[:] = _log10(back[_entries(grams, n - 2)])
        below = share
        entries = _entries(grams, n - 1)
        prob = _log10(below[entries])
        levels.append(Level(_rows(grams, n, entries), prob, np.zeros(len(prob), np.float32)))
        discounts.append(discount)
        fallbacks.append(fallback)
    levels[0].prob[BEGIN_ID] = _NEVER
    return EstimatedModel(Ngrams(words, levels), [len(level.word) for level in grams], discounts, fallbacks)


def _shares(
    level: _Grams, adjusted: NDArray[np.int32], discount: tuple[float, float, float], contexts: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns (a - D(a)) / sum_x a(c x) of each n-gram, and b of each context."""
    discounts = np.array([0.0, *discount])[np.minimum(adjusted, 3)]
    sums = np.bincount(level.prefix, adjusted, contexts)
    discounted = np.bincount(level.prefix, np.where(level.is_entry, discounts, adjusted), contexts)
    probabilities = np.subtract(adjusted, discounts, out=discounts)
    return np.divide(probabilities, np.maximum(sums, 1)[level.prefix], out=probabilities), np.where(
        sums > 0, discounted / np.maximum(sums, 1), 1
    )


def _count_ngrams(ids: NDArray[np.int32], vocabulary: int, order: int, prune: Sequence[int]) -> list[_Grams]:
    """Counts the n-grams of each order; n-grams do not cross sentence boundaries."""
    begins = np.flatnonzero(ids == BEGIN_ID)
    sizes = np.diff(begins, append=len(ids))
    depth = np.arange(len(ids), dtype=np.int32) - np.repeat(begins.astype(np.int32), sizes)
    all_words = np.arange(vocabulary, dtype=np.int32)
    first = _Grams(
        word=all_words,
        prefix=np.zeros(vocabulary, np.int32),
        suffix=all_words,
        raw=np.bincount(ids, minlength=vocabulary).astype(np.int32),
        begins=all_words == BEGIN_ID,
        is_entry=all_words != UNKNOWN_ID,
    )
    levels, current = [first], ids
    for n in range(2, order + 1):
        ends = np.flatnonzero(depth >= n - 1).astype(np.int32)
        keys = current[ends - 1] * np.int64(vocabulary) + ids[ends]
        sorting = np.argsort(keys).astype(np.int32)
        keys = keys[sorting]
        ends = ends[sorting]
        del sorting
        starts = np.flatnonzero(np.append(np.ones(min(1, len(keys)), bool), keys[1:] != keys[:-1]))
        prefix, word = (part.astype(np.int32) for part in np.divmod(keys[starts], vocabulary))
        raw = np.diff(starts, append=len(keys)).astype(np.int32)
        del keys
        below = levels[-1]
        is_entry = (raw > prune[n - 1]) & below.is_entry[prefix] & first.is_entry[word]
        levels.append(_Grams(word, prefix, current[ends[starts]], raw, below.begins[prefix], is_entry))
        current = np.full(len(ids), -1, np.int32)
        current[ends] = np.repeat(np.arange(len(starts), dtype=np.int32), raw)
    return levels


def _discounts(adjusted: NDArray[np.int32]) -> tuple[tuple[float, float, float], bool]:
    """Returns D(1), D(2) and D(3+), and whether they are the fallback."""
    t = np.bincount(np.minimum(adjusted, 5), minlength=6).astype(float)
    if not t[1:5].all():
        return _FALLBACK, True
    one, two, three = (k - (k + 1) * t[1] * t[k + 1] / ((t[1] + 2 * t[2]) * t[k]) for k in (1, 2, 3))
    if not (0 < one <= 1 and 0 <= two <= 2 and 0 <= three <= 3):
        return _FALLBACK, True
    return (float(one), float(two), float(three)), False


def _log10(values: NDArray[np.float64]) -> NDArray[np.float32]:
    # Rounded, because the last bits of a logarithm differ between processors.
    return np.round(np.log10(np.maximum(values, 1e-99)), _DIGITS).astype(np.float32)


def _entries(grams: list[_Grams], level: int) -> NDArray[np.int64]:
    """Returns the indices of the n-grams of an order that are entries; all words are, including <unk>."""
    is_entry = grams[level].is_entry
    return np.flatnonzero(is_entry if level else np.ones(len(is_entry), bool))


def _rows(grams: list[_Grams], n: int, entries: NDArray[np.int64]) -> NDArray[np.int32]:
    rows = np.empty((len(entries), n), np.int32)
    rows_of_order: NDArray[np.integer[Any]] = entries
    for column in range(n - 1, -1, -1):
        rows[:, column] = grams[column].word[rows_of_order]
        rows_of_order = grams[column].prefix[rows_of_order]
    return rows
