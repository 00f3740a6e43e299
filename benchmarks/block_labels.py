"""Labels of the blocks of annotated pages, for the trees of `blocks`.

Reads the text of each block and the annotation of the page. With the whole main text, a unit of blocks is main text if
half of its words are in that text, in order. With segments, the blocks that have them are sure, and the others get a
silver label with a low weight: the share of several extractors whose text has the block.

A unit is what is kept or dropped as a whole: an item of a list whose amount, measure and name are three blocks has one
label, although "2" alone is nearly everywhere. Words of scripts without spaces are characters (`page_kinds.words_of`).
"""

import difflib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.page_kinds import words_of
from tasks.stages.extract.page_blocks import TAG_NAMES, Blocks
from tasks.stages.extract.page_structure import units as structure_units

_SHORTEST_RUN = 3
_GOLD, _SILVER, _SURE_SILVER = 0.4, 0.03, 0.12
_DOUBTFUL = 0.15
_MOST_WORDS = 60
_ITEM = TAG_NAMES.index("li")

Floats = NDArray[np.float64]
Labels = tuple[Floats, Floats]
"""The probability that each block is main text, and the weight of that label."""


def units_of(page: Blocks) -> NDArray[np.int64]:
    """Returns for each block the number of its unit: blocks with one number have one label.

    A data table or the code of one element is a unit, and so is a short item of a list; longer items are posts of a
    forum, or boxes.
    """
    lengths = np.array([len(words_of(page.text(index))) for index in range(len(page))])
    words = np.append(0, np.cumsum(lengths))
    units = np.arange(len(page)) + len(page.names)
    items = [element for element, name in enumerate(page.names) if name == _ITEM]
    for element in items:  # inner items come after outer ones
        first, last = page.first[element], page.last[element]
        if words[last] - words[first] <= _MOST_WORDS:
            units[first:last] = element
    for unit in structure_units(page):
        units[unit.first : unit.last] = units[unit.first]
    return units


def labels_by_text(words: Sequence[list[str]], gold: Sequence[str], units: NDArray[np.int64]) -> Labels:
    """Labels blocks by the whole main text of their page.

    Args:
        words: of each block.
        gold: words of the main text.
        units: number of the unit of each block.
    """
    flat = [word for held in words for word in held]
    matched = np.zeros(len(flat))
    matcher = difflib.SequenceMatcher(None, flat, gold, autojunk=False)
    for start, _, length in matcher.get_matching_blocks():
        matched[start : start + length] = 1.0 if length >= _SHORTEST_RUN else 0.5
    lengths = np.array([len(held) for held in words])
    ends = np.cumsum(lengths)
    found = np.array([matched[end - length : end].sum() for end, length in zip(ends, lengths, strict=True)])
    _, unit = np.unique(units, return_inverse=True)
    share = np.bincount(unit, found) / np.maximum(1, np.bincount(unit, lengths))
    return (share[unit] >= 0.5).astype(float), _GOLD * _size(words)


def labels_by_segments(
    words: Sequence[list[str]],
    wanted: Sequence[str],
    unwanted: Sequence[str],
    silver: Sequence[str],
    units: NDArray[np.int64],
) -> Labels:
    """Labels blocks by segments that the main text must, and must not, contain, and the others by `silver` texts."""
    labels = np.mean([_shared(words, text) for text in silver], axis=0)
    likely = labels.copy()
    weights = (_SILVER + _SURE_SILVER * np.abs(2 * labels - 1)) * _size(words) / 3
    texts = [" ".join(held) for held in words]
    places = _Places(texts)
    for segment in map(_joined, unwanted):
        found = places.of(segment)
        for index in {index for held in found for index in held}:
            inside = len(texts[index]) > 6 * len(segment) or len(found) > 1
            if inside and likely[index] > 0.7:  # words that also occur in the main text
                weights[index] = _DOUBTFUL * weights[index]
            else:
                labels[index], weights[index] = 0.0, 1.0
    for segment in map(_joined, wanted):
        if found := places.of(segment):
            best = max(found, key=lambda held: (likely[held].mean(), max(len(texts[index]) for index in held)))
            labels[best], weights[best] = 1.0, 1.0
    return _of_units(labels, weights, units), weights


class _Places:
    """Finds the blocks that hold a segment."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._held = np.array([index for index, text in enumerate(texts) if text], np.int64)
        self._flat = " ".join([text for text in texts if text])
        self._starts = np.cumsum([0, *(len(text) + 1 for text in texts if text)])[:-1]

    def of(self, segment: str) -> list[list[int]]:
        """Returns the indices of the blocks of each occurrence."""
        at, found = -1, []
        while segment and (at := self._flat.find(segment, at + 1)) >= 0:
            first, last = np.searchsorted(self._starts, (at, at + len(segment) - 1), "right") - 1
            found.append(self._held[first : last + 1].tolist())
        return found


def _joined(segment: str) -> str:
    return " ".join(words_of(segment))


def _of_units(labels: Floats, weights: Floats, units: NDArray[np.int64]) -> Floats:
    """Returns the mean label of each block's unit."""
    _, unit = np.unique(units, return_inverse=True)
    means: Floats = np.bincount(unit, labels * weights) / np.maximum(np.bincount(unit, weights), 1e-9)
    return means[unit]


def _size(words: Sequence[list[str]]) -> Floats:
    return np.sqrt([min(max(len(held), 1), _MOST_WORDS) for held in words])


def _shared(words: Sequence[list[str]], other: str) -> list[float]:
    """Returns the share of each block's three-word runs in another text; for shorter blocks whether it has the line."""
    held = words_of(other)
    runs = set(zip(held, held[1:], held[2:], strict=False))
    lines = {tuple(words_of(line)) for line in other.split("\n")} - {()}
    found = []
    for own in words:
        of_block = list(zip(own, own[1:], own[2:], strict=False))
        short = len(own) < 4
        found.append(float(tuple(own) in lines) if short else sum(run in runs for run in of_block) / len(of_block))
    return found
