"""Closure of a back-off model: adds the missing prefixes and suffixes of its n-grams.

Programs that prune single n-grams leave out n-grams whose extensions exist, and a search order by order would stop
there. The missing n-gram is added with the probability of the back-off recursion and the weight 1, so that no score
changes; KenLM does the same.
"""

import numpy as np
from numpy.typing import NDArray

from tasks.filters.ngram.model import Level, Ngrams

_MIXER = np.uint64(0x9E3779B97F4A7C15)


def closed(ngrams: Ngrams) -> Ngrams:
    """Returns the model with its holes filled; `ngrams.levels[0].rows` must be the vocabulary in order."""
    levels = list(ngrams.levels)
    holes: dict[int, NDArray[np.int32]] = {}
    # From the highest order down, because an added n-gram may lack one of the order below.
    for n in range(len(levels) - 1, 1, -1):
        above = np.concatenate((levels[n].rows, holes.get(n, levels[n].rows[:0])))
        needed = np.concatenate((above[:, :-1], above[:, 1:]))
        absent = needed[~np.isin(_row_keys(needed), _row_keys(levels[n - 1].rows))]
        if len(absent):
            holes[n - 1] = np.unique(absent, axis=0)
    for n in sorted(holes):
        levels[n] = _filled(levels[n], holes[n], levels[n - 1])
    return Ngrams(ngrams.words, levels)


def _filled(level: Level, rows: NDArray[np.int32], below: Level) -> Level:
    keys = _row_keys(below.rows)
    order = np.argsort(keys)
    context = order[np.searchsorted(keys, _row_keys(rows[:, :-1]), sorter=order)]
    shorter = order[np.searchsorted(keys, _row_keys(rows[:, 1:]), sorter=order)]
    prob = below.back[context] + below.prob[shorter]
    return Level(
        np.concatenate((level.rows, rows)),
        np.concatenate((level.prob, prob)),
        np.concatenate((level.back, np.zeros(len(rows), np.float32))),
    )


def _row_keys(rows: NDArray[np.int32]) -> NDArray[np.uint64]:
    """Returns one number per n-gram; two of ten million are the same with a probability of 3e-6."""
    keys = np.zeros(len(rows), np.uint64)
    for place in range(rows.shape[1]):
        mixed = (keys + rows[:, place].astype(np.uint64) + np.uint64(1)) * _MIXER
        keys = mixed ^ (mixed >> np.uint64(29))
    return keys
