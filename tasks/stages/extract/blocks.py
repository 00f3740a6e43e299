"""The `blocks` extractor: the main text of a page as boosted trees find it among all its blocks.

Reads a parsed page, and `blocks.json` with the weights, which `python -m benchmarks.train_blocks` writes. The trees
judge each block twice: by what is measured of it and of the elements around it (`block_features`), then by the same and
by the first judgement of its neighbours, so that a short paragraph between two kept ones stays and a lone sentence in a
sidebar does not.

The trees are oblivious: all nodes of one depth compare the same number with the same limit (Prokhorenkova et al.,
"CatBoost: unbiased boosting with categorical features", NeurIPS 2018), so all blocks pass all trees in a few calls of
NumPy. Leaves are whole numbers, whose sums every machine computes the same.

The trees were trained on articles and would drop the signatures and short notes of a manual. Of documentation, and of
pages where they find no main text at all, the caller takes the main text as resiliparse finds it.
"""

import functools
import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray
from resiliparse.parse.html import HTMLTree

from tasks.stages.extract.block_features import COLUMNS, CONTEXT, context, features
from tasks.stages.extract.page_blocks import Blocks, read_blocks

SCALE = 1 << 12
"""Steps of a leaf per unit of log odds."""
MAX_DEPTH = 8
"""So that the number of a leaf is one byte."""
_AT_ONCE = 1_000

_AT = {name: index for index, name in enumerate(COLUMNS)}
_WORDS, _LINK_SHARE, _ENDS_SENTENCE, _IN_COMMENTS = (
    _AT[name] for name in ("words", "link_share", "ends_sentence", "named_comment")
)
_LINKED, _SHORT, _NEVER = 0.9, 6, -9.0
_OF_DOCUMENTATION = "pre, code, dt"
# An article on programming has a few of these elements, a manual many: 2 % of real articles have as many.
_DOCUMENTATION = 16
# An element named after comments that holds more of the page holds the article, too.
_MOST_COMMENTS = 0.8
_UNLINKED, _SHORTEST_COMMENT = 0.3, 4
_SHORTEST_PARAGRAPH = 15  # words
# A page with most of its possible text in blocks whose odds are between 1 : 2.7 and 2.7 : 1 is unlike those trained on.
_UNCERTAIN, _MOST_IN_DOUBT = 1.0, 0.7
_SEPARATORS = ("\t", "\n", "\n\n")


@dataclass(frozen=True)
class Trees:
    """Boosted oblivious trees of one depth.

    Attributes:
        columns: which feature is compared: depth, tree.
        limits: a number above its limit goes to the upper half of the leaves: depth, tree.
        leaves: what a leaf adds to the log odds, in steps of 1 / `SCALE`: tree, leaf.
        base: what stands before all trees, in the same steps.
    """

    columns: NDArray[np.intp]
    limits: NDArray[np.float32]
    leaves: NDArray[np.int64]
    base: int

    def odds(self, measured: NDArray[np.float32]) -> NDArray[np.float64]:
        """Returns the log odds that a block is main text; `measured` by `block_features`."""
        found = [self._odds(measured[:, at : at + _AT_ONCE]) for at in range(0, measured.shape[1], _AT_ONCE)]
        return np.concatenate(found) / SCALE

    def _odds(self, measured: NDArray[np.float32]) -> NDArray[np.int64]:
        depth, trees = self.columns.shape
        above = measured.take(self.columns.ravel(), axis=0) > self.limits.reshape(-1, 1)
        bits = above.view(np.uint8).reshape(depth, trees, -1)
        leaf = bits[0]
        for level in bits[1:]:
            leaf = (leaf << 1) | level
        starts = np.arange(trees)[:, np.newaxis] * self.leaves.shape[1]
        added: NDArray[np.int64] = self.leaves.ravel().take(leaf + starts).sum(axis=0) + self.base
        return added


@dataclass(frozen=True)
class BlockClassifier:
    """Trees that see one block at a time, and those that see the verdicts of the first on its neighbours, too."""

    first: Trees
    second: Trees


def blocks_text(tree: HTMLTree, title: str, *, comments: bool = False, by: BlockClassifier | None = None) -> str:
    """Returns the main text of a page; "" for documentation, in doubt, and where no paragraph is main text.

    Args:
        tree: the page.
        title: its title element.
        comments: whether readers' comments stay, too.
        by: other trees than those of the package.
    """
    page = None if _is_documentation(tree) else read_blocks(tree)
    if page is None:
        return ""
    measured = features(page, title.lower())
    odds = block_odds(page, measured, by or default_classifier())
    keeps = odds > 0
    if not (keeps & (measured[_WORDS] >= _SHORTEST_PARAGRAPH)).any() or _in_doubt(odds, measured[_WORDS]):
        return ""
    if comments:
        keeps |= _comments(measured)
    return join_blocks(page, keeps)


def _is_documentation(tree: HTMLTree) -> bool:
    document = tree.document
    return document is not None and len(document.query_selector_all(_OF_DOCUMENTATION)) >= _DOCUMENTATION


def _in_doubt(odds: NDArray[np.float64], words: NDArray[np.float32]) -> bool:
    possible = words * (odds > -_UNCERTAIN)
    return bool(possible[odds < _UNCERTAIN].sum() > _MOST_IN_DOUBT * possible.sum())


def _comments(measured: NDArray[np.float32]) -> NDArray[np.bool_]:
    text = (measured[_LINK_SHARE] < _UNLINKED) & (measured[_WORDS] >= _SHORTEST_COMMENT)
    found: NDArray[np.bool_] = text & (measured[_ENDS_SENTENCE] > 0) & (measured[_IN_COMMENTS] <= _MOST_COMMENTS)
    return found


def block_odds(page: Blocks, measured: NDArray[np.float32], by: BlockClassifier) -> NDArray[np.float64]:
    """Returns the log odds that blocks are main text; `measured` by `features`."""
    possible = np.flatnonzero(candidates(measured))
    found = np.full(len(page), _NEVER)
    if len(possible):
        found[possible] = by.first.odds(measured[:, possible])
        around = context(page, measured, found)
        found[possible] = by.second.odds(np.concatenate((measured[:, possible], around[:, possible])))
    return found


def candidates(measured: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Returns a mask of the blocks that are judged; a short link is never main text, and half of all blocks are one."""
    found: NDArray[np.bool_] = (measured[_LINK_SHARE] < _LINKED) | (measured[_WORDS] > _SHORT)
    return found


def join_blocks(page: Blocks, keeps: NDArray[np.bool_]) -> str:
    """Returns the text of the kept blocks; dropped ones leave their separators."""
    kept = np.flatnonzero(keeps)
    if not len(kept):
        return ""
    # The widest separator since the kept block before.
    widest = np.maximum.reduceat(page.separator[: kept[-1] + 1], np.append(0, kept[:-1] + 1))
    found: list[str] = []
    for index, separator in zip(kept.tolist(), widest.tolist(), strict=True):
        found += (_SEPARATORS[separator], page.text(index))
    return "".join(found[1:])


@functools.cache
def default_classifier() -> BlockClassifier:
    """Returns the trees whose weights come with the package."""
    held = json.loads(files("tasks.stages.extract").joinpath("blocks.json").read_text("utf-8"))
    return BlockClassifier(parse_trees(held["first"], COLUMNS), parse_trees(held["second"], (*COLUMNS, *CONTEXT)))


def parse_trees(weights: dict[str, Any], columns: tuple[str, ...]) -> Trees:
    """Returns the trees of a file of weights.

    A tree is a list of names of columns and one of limits, each from the root down, and a list of leaves.
    """
    at = {name: index for index, name in enumerate(columns)}
    return Trees(
        columns=np.array([[at[name] for name in tree["columns"]] for tree in weights["trees"]], np.intp).T.copy(),
        limits=np.array([tree["limits"] for tree in weights["trees"]], np.float32).T.copy(),
        leaves=np.array([tree["leaves"] for tree in weights["trees"]], np.int64),
        base=weights["base"],
    )
