"""The `blocks` extractor: boosted trees classify each block of a page as main text or boilerplate.

Reads a parsed page, and `blocks.json` with the weights, which `python -m benchmarks.train_blocks` writes. The trees
classify each block twice: by features of the block and the elements around it (`block_features`), then by these
features and the first predictions for its neighbors, so that a short paragraph between two paragraphs of main text is
kept and a single sentence in a sidebar is not.

The trees are oblivious: all nodes of one depth compare the same feature with the same threshold (Prokhorenkova et al.,
"CatBoost: unbiased boosting with categorical features", NeurIPS 2018), so that a few NumPy calls evaluate all trees for
all blocks. Leaves are integers, whose sums are equal on every machine.

Data tables and code are kept or dropped whole (`page_structure`). For pages in which the trees find no main text, the
caller uses the main text of resiliparse.
"""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray
from resiliparse.parse.html import HTMLTree

from tasks.formats.documents.structure import Block
from tasks.stages.extract.block_features import COLUMNS, CONTEXT, context, features
from tasks.stages.extract.page_blocks import Blocks, read_blocks
from tasks.stages.extract.page_structure import NEVER, Unit, structure, units, whole
from tasks.stages.extract.templates import content

SCALE = 1 << 12
"""Units of a leaf value per unit of log odds."""
MAX_DEPTH = 8
"""Maximum depth of a tree, so that the index of a leaf is one byte."""
_AT_ONCE = 1_000

_AT = {name: index for index, name in enumerate(COLUMNS)}
_WORDS, _LINK_SHARE, _ENDS_SENTENCE, _IN_COMMENTS = (
    _AT[name] for name in ("words", "link_share", "ends_sentence", "named_comment")
)
_LINKED, _SHORT = 0.9, 6
# An element named after comments that has a larger share of the page contains the article as well.
_MOST_COMMENTS = 0.8
_UNLINKED, _SHORTEST_COMMENT = 0.3, 4
# A page with so many words of main text outside of readers' comments is an article.
_ARTICLE = 150
_LEAST_FOUND, _LONG_ENOUGH = 0.8, 20
_WINDOW = 20_000  # characters that another extractor's text may have between two blocks of the page
_SHORTEST_PARAGRAPH = 15  # words
# A page with most of its candidate text in blocks with odds between 1 : 2.7 and 2.7 : 1 differs from the training data.
_UNCERTAIN, _MAX_UNCERTAIN_SHARE = 1.0, 0.7
_DISPLAYED = (("$$", "$$"), (r"\[", r"\]"))


@dataclass(frozen=True)
class Trees:
    """Boosted oblivious trees of equal depth.

    Attributes:
        columns: indices of the compared features, of shape (depth, trees).
        limits: thresholds, of shape (depth, trees); a feature above its threshold selects the upper half of the leaves.
        leaves: values added to the log odds, in units of 1 / `SCALE`, of shape (trees, leaves).
        base: initial log odds, in the same units.
    """

    columns: NDArray[np.intp]
    limits: NDArray[np.float32]
    leaves: NDArray[np.int64]
    base: int

    def odds(self, rows: NDArray[np.float32]) -> NDArray[np.float64]:
        """Returns the log odds that blocks are main text.

        Args:
            rows: features of shape (features, blocks).
        """
        batches = [self._odds(rows[:, at : at + _AT_ONCE]) for at in range(0, rows.shape[1], _AT_ONCE)]
        return np.concatenate(batches) / SCALE

    def _odds(self, rows: NDArray[np.float32]) -> NDArray[np.int64]:
        depth, trees = self.columns.shape
        above = rows.take(self.columns.ravel(), axis=0) > self.limits.reshape(-1, 1)
        bits = above.view(np.uint8).reshape(depth, trees, -1)
        leaf = bits[0]
        for level in bits[1:]:
            leaf = (leaf << 1) | level
        starts = np.arange(trees)[:, np.newaxis] * self.leaves.shape[1]
        total: NDArray[np.int64] = self.leaves.ravel().take(leaf + starts).sum(axis=0) + self.base
        return total


@dataclass(frozen=True)
class BlockClassifier:
    """Classifier of blocks in two passes.

    Attributes:
        first: trees over the features of a block (`block_features.COLUMNS`).
        second: trees over these features and the predictions of the first pass (`block_features.CONTEXT`).
    """

    first: Trees
    second: Trees


def main_blocks(
    tree: HTMLTree,
    title: str,
    *,
    comments: bool = False,
    most_rows: int | None = None,
) -> list[Block]:
    """Returns the main text of a page as blocks.

    Args:
        tree: the parsed page.
        title: text of its title element.
        comments: whether readers' comments are kept.
        most_rows: see `page_structure.units`.

    Returns:
        the blocks; none for an uncertain classification, and if no paragraph is main text.
    """
    page = read_blocks(tree)
    if page is None:
        return []
    rows = features(page, title.lower())
    found = units(page, most_rows)
    is_main = content(page)
    if is_main is None:
        odds = block_odds(page, rows, default_classifier())
        if _is_uncertain(odds, rows[_WORDS]):
            return []
        is_main = whole(page, found, odds, rows[_WORDS])
    if not (is_main & (rows[_WORDS] >= _SHORTEST_PARAGRAPH)).any():
        return []
    in_comments = rows[_IN_COMMENTS] <= _MOST_COMMENTS
    if comments:
        is_main |= in_comments & _is_comment(rows)
    elif rows[_WORDS][is_main & ~in_comments].sum() >= _ARTICLE:  # else a thread, whose posts have such names
        is_main &= ~in_comments
    if any(opening in page.source for opening, _ in _DISPLAYED):
        add_formulas(page, found, is_main)
    return structure(page, is_main, found)


def all_blocks(tree: HTMLTree) -> list[Block]:
    """Returns all blocks of a page outside of menus, footers and controls, as for a chapter of a book."""
    page = read_blocks(tree)
    if page is None:
        return []
    return structure(page, np.ones(len(page), np.bool_), units(page))


def blocks_of_text(tree: HTMLTree, text: str, *, most_rows: int | None = None) -> list[Block]:
    """Returns the blocks of a page whose text another extractor has selected.

    Args:
        tree: the parsed page.
        text: the text of the other extractor, in the order of the page.
        most_rows: see `page_structure.units`.

    Returns:
        the blocks; none if they have less than `_LEAST_FOUND` of the text.
    """
    page = read_blocks(tree)
    if page is None:
        return []
    wanted = "".join(text.split())
    mask = np.zeros(len(page), np.bool_)
    at = found = 0
    for index in range(len(page)):
        block = "".join(page.text(index).split())
        farthest = at + len(block) + (_WINDOW if len(block) >= _LONG_ENOUGH else 0)
        start = wanted.find(block, at, farthest)
        if start >= 0 and block:
            mask[index] = True
            at, found = start + len(block), found + len(block)
    if found < _LEAST_FOUND * len(wanted):
        return []
    groups = units(page, most_rows)
    for unit in groups:
        span = slice(unit.first, unit.last)
        mask[span] = 2 * mask[span].sum() >= unit.last - unit.first
    return structure(page, mask, groups)


def _is_uncertain(odds: NDArray[np.float64], words: NDArray[np.float32]) -> bool:
    candidate_words = words * (odds > -_UNCERTAIN)
    return bool(candidate_words[odds < _UNCERTAIN].sum() > _MAX_UNCERTAIN_SHARE * candidate_words.sum())


def add_formulas(page: Blocks, found: list[Unit], is_main: NDArray[np.bool_]) -> None:
    """Adds displayed formulas next to main text to it: they have no words by which a block is classified.

    Those in a unit stay or go with it.

    Args:
        page: the blocks of the page.
        found: its units.
        is_main: which blocks are main text, shape (blocks,); changed in place.
    """
    in_unit = {index for unit in found for index in range(unit.first, unit.last)}
    formulas = [
        index
        for index, begin in enumerate(page.begin.tolist())
        for opening, closing in _DISPLAYED
        if index not in in_unit and page.source.startswith(opening, begin) and page.text(index).endswith(closing)
    ]
    for order, beside in ((formulas, -1), (reversed(formulas), 1)):
        for index in order:
            if 0 <= index + beside < len(page) and is_main[index + beside]:
                is_main[index] = True


def _is_comment(rows: NDArray[np.float32]) -> NDArray[np.bool_]:
    text = (rows[_LINK_SHARE] < _UNLINKED) & (rows[_WORDS] >= _SHORTEST_COMMENT)
    mask: NDArray[np.bool_] = text & (rows[_ENDS_SENTENCE] > 0)
    return mask


def block_odds(page: Blocks, rows: NDArray[np.float32], classifier: BlockClassifier) -> NDArray[np.float64]:
    """Returns the log odds that blocks are main text; `rows` are their `features`."""
    indices = np.flatnonzero(candidates(rows))
    odds = np.full(len(page), NEVER)
    if len(indices):
        odds[indices] = classifier.first.odds(rows[:, indices])
        around = context(page, rows, odds)
        odds[indices] = classifier.second.odds(np.concatenate((rows[:, indices], around[:, indices])))
    return odds


def candidates(rows: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Returns a mask of the blocks to classify: all but short links, which are half of all blocks."""
    mask: NDArray[np.bool_] = (rows[_LINK_SHARE] < _LINKED) | (rows[_WORDS] > _SHORT)
    return mask


@functools.cache
def default_classifier() -> BlockClassifier:
    """Returns the classifier with the weights of the package."""
    return parse_classifier(json.loads(files("tasks.stages.extract").joinpath("blocks.json").read_text("utf-8")))


def parse_classifier(weights: Mapping[str, Any]) -> BlockClassifier:
    """Returns the classifier with the weights of both passes, as in `blocks.json`."""
    return BlockClassifier(parse_trees(weights["first"], COLUMNS), parse_trees(weights["second"], (*COLUMNS, *CONTEXT)))


def parse_trees(weights: dict[str, Any], columns: tuple[str, ...]) -> Trees:
    """Returns the trees of one pass in a file of weights.

    A tree has a list of column names and a list of limits, both from the root down, and a list of leaves.
    """
    at = {name: index for index, name in enumerate(columns)}
    return Trees(
        columns=np.array([[at[name] for name in tree["columns"]] for tree in weights["trees"]], np.intp).T.copy(),
        limits=np.array([tree["limits"] for tree in weights["trees"]], np.float32).T.copy(),
        leaves=np.array([tree["leaves"] for tree in weights["trees"]], np.int64),
        base=weights["base"],
    )
