"""Learns an n-gram model from words: interpolated modified Kneser-Ney smoothing.

Used by the stage. Formulas: Chen & Goodman 1999, "An empirical study of smoothing techniques for language modeling"
(Computer Speech & Language 13), section 3 and appendix; their arrangement, sentence begins and pruning: Heafield,
Pouzyrevsky, Clark, Koehn 2013, "Scalable Modified Kneser-Ney Language Model Estimation" (ACL), section 3.

- Adjusted count a(w1..wn): how often it occurs, if n is the order or w1 is <s>; else how many words stand before it.
- Discounts of an order, from t(k), the number of its n-grams with a = k:
  D(k) = k - (k + 1) t(1) t(k + 1) / ((t(1) + 2 t(2)) t(k)) for k = 1, 2 and 3, the last one for all above.
- p(w | c) = (a(c w) - D(a(c w))) / sum_x a(c x) + b(c) p(w | c without its first word), at the end with the uniform
  distribution over the vocabulary with <unk> and </s>; b(c) is the mass that the discounts set free.
- Pruning: n-grams that occur no more often than their order's threshold, or hold a word beyond the vocabulary, count in
  all sums but are no entries; their mass goes to b(c). So an unknown word gets only its share of the uniform
  distribution, never what rare words have in common: garbage must not look usual because it is all unknown.

Sorting all n-grams of one order in memory takes about 70 bytes per word of the reference text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.perplexity.ngrams import BEGIN, END, UNKNOWN, Level, Ngrams

UNKNOWN_ID, BEGIN_ID, END_ID = range(3)
SPECIAL = [UNKNOWN, BEGIN, END]
"""What stands at the first places of every vocabulary."""

# lmplz's --discount_fallback: too small a text, or one without n-grams that occur thrice, has no discounts of its own.
_FALLBACK = (0.5, 1.0, 1.5)
_NEVER = -99.0  # ARPA's logarithm of zero: <s> is never predicted
_DIGITS = 6


@dataclass(frozen=True)
class Estimate:
    """A model and how it came about, by order from 1 up.

    Attributes:
        ngrams: the entries.
        distinct: different n-grams of the text.
        discounts: D(1), D(2), D(3+).
        fallback: whether the text was too small to give discounts.
    """

    ngrams: Ngrams
    distinct: list[int]
    discounts: list[tuple[float, float, float]]
    fallback: list[bool]


@dataclass
class _Grams:
    """The different n-grams of one order; each is known by its place here."""

    word: NDArray[np.int64]
    """Its last word."""
    prefix: NDArray[np.int64]
    """The n-gram of the order below without the last word."""
    suffix: NDArray[np.int64]
    """The one without the first word."""
    raw: NDArray[np.int64]
    begins: NDArray[np.bool_]
    kept: NDArray[np.bool_]

    def adjusted(self, above: "_Grams | None") -> NDArray[np.int64]:
        if above is None:
            return self.raw
        return np.where(self.begins, self.raw, np.bincount(above.suffix, minlength=len(self.raw)))


def estimate(ids: NDArray[np.int32], words: list[str], order: int, prune: Sequence[int]) -> Estimate:
    """Learns a model.

    Args:
        ids: the text as indices into `words`, each sentence between BEGIN_ID and END_ID; words beyond the vocabulary
            are UNKNOWN_ID.
        words: the vocabulary; SPECIAL are its first entries.
        order: length of the longest n-grams.
        prune: for each order from 1 up, how often an n-gram may occur and still be left out; not falling.
    """
    grams = _counted(ids, len(words), order, prune)
    found: list[tuple[NDArray[np.float32], NDArray[np.float32]]] = []
    discounts, fallbacks = [], []
    below: NDArray[np.float64] = np.empty(0)
    for n, level in enumerate(grams, start=1):
        adjusted = level.adjusted(grams[n] if n < order else None)
        if n == 1:
            adjusted[BEGIN_ID] = 0
        discount, fallback = _discounts(adjusted)
        used = np.array([0.0, *discount])[np.minimum(adjusted, 3)]
        contexts = len(grams[n - 2].word) if n > 1 else 1
        sums = np.bincount(level.prefix, adjusted, contexts)
        share = np.divide(adjusted - used, sums[level.prefix], where=adjusted > 0, out=np.zeros(len(adjusted)))
        free = np.bincount(level.prefix, np.where(level.kept, used, adjusted), contexts)
        back = np.divide(free, sums, where=sums > 0, out=np.ones(contexts))
        if n == 1:
            share[UNKNOWN_ID] = 0.0
            below = share + back[0] / (len(words) - 1)  # <s> is never predicted
        else:
            below = share + back[level.prefix] * below[level.suffix]
            found[-1] = (found[-1][0], _log10(back))
        found.append((_log10(below), np.zeros(len(below), np.float32)))
        discounts.append(discount)
        fallbacks.append(fallback)
    found[0][0][BEGIN_ID] = _NEVER
    levels = [_level(grams, n, prob, back) for n, (prob, back) in enumerate(found)]
    return Estimate(Ngrams(words, levels), [len(level.word) for level in grams], discounts, fallbacks)


def _counted(ids: NDArray[np.int32], vocabulary: int, order: int, prune: Sequence[int]) -> list[_Grams]:
    """Counts the n-grams of each order; a sentence holds no n-gram of the next one."""
    places = np.arange(len(ids))
    begins = places[ids == BEGIN_ID]
    depth = places - np.repeat(begins, np.diff(begins, append=len(ids)))
    every = np.arange(vocabulary)
    first = _Grams(
        word=every,
        prefix=np.zeros(vocabulary, np.int64),
        suffix=every,
        raw=np.bincount(ids, minlength=vocabulary),
        begins=every == BEGIN_ID,
        kept=every != UNKNOWN_ID,
    )
    levels, current = [first], ids.astype(np.int64)
    for n in range(2, order + 1):
        ends = places[depth >= n - 1]
        keys = current[ends - 1] * vocabulary + ids[ends]
        sorting = np.argsort(keys)
        keys = keys[sorting]
        new = np.flatnonzero(np.diff(keys, prepend=-1))
        prefix, word = np.divmod(keys[new], vocabulary)
        raw = np.diff(new, append=len(keys))
        lower = levels[-1]
        levels.append(
            _Grams(
                word=word,
                prefix=prefix,
                suffix=current[ends[sorting[new]]],
                raw=raw,
                begins=lower.begins[prefix],
                kept=(raw > prune[n - 1]) & lower.kept[prefix] & first.kept[word],
            )
        )
        current = np.full(len(ids), -1)
        current[ends[sorting]] = np.repeat(np.arange(len(new)), raw)
    return levels


def _discounts(adjusted: NDArray[np.int64]) -> tuple[tuple[float, float, float], bool]:
    """Returns D(1), D(2) and D(3+), and whether they had to be assumed."""
    t = np.bincount(np.minimum(adjusted, 5), minlength=6).astype(float)
    if not t[1:5].all():
        return _FALLBACK, True
    one, two, three = (k - (k + 1) * t[1] * t[k + 1] / ((t[1] + 2 * t[2]) * t[k]) for k in (1, 2, 3))
    if not (0 < one <= 1 and 0 <= two <= 2 and 0 <= three <= 3):
        return _FALLBACK, True
    return (float(one), float(two), float(three)), False


def _log10(values: NDArray[np.float64]) -> NDArray[np.float32]:
    # Rounded, so that the last bits of the processor's logarithm are not part of the model.
    return np.round(np.log10(np.maximum(values, 1e-99)), _DIGITS).astype(np.float32)


def _level(grams: list[_Grams], n: int, prob: NDArray[np.float32], back: NDArray[np.float32]) -> Level:
    kept = np.flatnonzero(grams[n].kept | (np.arange(len(prob)) == UNKNOWN_ID if n == 0 else False))
    rows = np.empty((len(kept), n + 1), np.int32)
    at = kept
    for place in range(n, -1, -1):
        rows[:, place] = grams[place].word[at]
        at = grams[place].prefix[at]
    return Level(rows, prob[kept], back[kept])
