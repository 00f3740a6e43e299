"""The main text of a page by resiliparse, its lines judged once more by a small network: the `blocks` extractor.

Reads a parsed page and the weights in `blocks.json`, used by `html`. resiliparse takes too much (precision 0.92 at
recall 0.985 on news pages): headlines that are the title once more, notices, teasers, bylines between the paragraphs.
What `lines` measures of each line tells most of them apart. `python -m benchmarks.train_blocks` makes the weights and
prints how the network does on hosts that it was not trained on.

Weights and inputs are whole numbers, held as 64-bit floats: sums of them are exact, so every machine gives the same.
"""

import functools
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from tasks.extract.lines import Line, features, mark_container, prose, split_lines
from tasks.extract.main_text import FURNITURE

SCALE = 64
"""Steps per standard deviation of an input; weights have `SCALE`**2 steps per unit."""
_CLIP = 8 * SCALE
# When less than this share of the words would stay, the page is unlike those that the network knows: all stays.
MIN_KEPT = 0.35
# A longer page is a list, or made to harm; its features would take more memory than the page.
_MAX_LINES = 40_000


@dataclass(frozen=True)
class Network:
    """A mean of small networks with one hidden layer of rectified linear units each.

    Attributes:
        mean: of each feature.
        deviation: of each feature.
        first: weights of the hidden units as whole numbers: network, feature, unit.
        bias: of the hidden units: network, 1, unit.
        second: weights of the output: network, unit, 1.
        offset: of the sum of all outputs.
        threshold: a line stays when the mean output is at least this.
    """

    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]
    first: NDArray[np.float64]
    bias: NDArray[np.float64]
    second: NDArray[np.float64]
    offset: float
    threshold: float

    def keeps(self, rows: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Tells for each row of `lines.features` whether its line is main text."""
        return self.outputs(rows) >= self.threshold

    def outputs(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the mean of the networks' outputs, in log odds times `SCALE`**5."""
        inputs = np.rint((rows - self.mean) / self.deviation * SCALE)
        # Not `np.clip`, which takes longer than both on the few rows of a page.
        inputs = np.minimum(np.maximum(inputs, -_CLIP), _CLIP)
        # A product for each network: one of all is soon so large that threads share it, which costs more than it saves.
        hidden = np.maximum(inputs @ self.first + self.bias, 0.0)
        outputs: NDArray[np.float64] = (hidden @ self.second).sum(axis=0)[:, 0] + self.offset
        return outputs / len(self.first)


@functools.cache
def network() -> Network:
    """Returns the network whose weights come with the package."""
    return parsed(json.loads(files("tasks.extract").joinpath("blocks.json").read_text("utf-8")))


def parsed(held: dict[str, Any]) -> Network:
    """Returns the network that a file of weights holds."""
    array = functools.partial(np.array, dtype=np.float64)
    nets = held["nets"]
    return Network(
        mean=array(held["mean"]),
        deviation=array(held["deviation"]),
        first=array([one["first"] for one in nets]),
        bias=array([[one["bias"]] for one in nets]),
        second=array([one["second"] for one in nets])[..., np.newaxis],
        offset=float(sum(one["offset"] for one in nets)),
        threshold=float(held["threshold"]),
    )


def reduced_lines(tree: HTMLTree, *, comments: bool = False) -> tuple[list[Line | None], float]:
    """Returns the lines of what resiliparse takes for the main text, and the share that `mark_container` found.

    There are none of a page of more than `_MAX_LINES`.

    The marks stay in the tree, so the tree is good for nothing but what reads markup afterwards.
    """
    share = mark_container(tree)
    reduced: str = extract_plain_text(
        tree,
        preserve_formatting="minimal_html",
        main_content=True,
        comments=comments,
        post_meta=False,
        list_bullets=False,
        alt_texts=False,
        links=True,
        skip_elements=list(FURNITURE),
    )
    return split_lines(reduced) if reduced.count("\n") <= _MAX_LINES else [], share


def blocks_text(tree: HTMLTree, title: str, *, comments: bool = False) -> str:
    """Returns the main text of a page, or "" for one that is not judged; the tree is marked, see `reduced_lines`."""
    lines, share = reduced_lines(tree, comments=comments)
    judged = [line for line in lines if line is not None and not line.fixed]
    if not judged:
        return "\n".join(line.text if line else "" for line in lines)
    rows = features(judged, title.lower(), share)
    return joined(lines, judged, kept(judged, rows, network()))


def kept(judged: list[Line], rows: NDArray[np.float64], by: Network) -> NDArray[np.bool_]:
    """Tells which lines stay: what the network keeps, and all prose.

    Prose around the best element costs 0.0003 of F1 on news pages, and protects pages of other kinds: the network has
    seen articles only.
    """
    return by.keeps(rows) | prose(judged, rows)


def joined(lines: Sequence[Line | None], judged: Sequence[Line], keeps: NDArray[np.bool_]) -> str:
    """Returns the lines as text, without those of `judged` that `keeps` does not keep."""
    stay = keeps.tolist()
    lengths = [len(line.text) for line in judged]
    if sum(itertools.compress(lengths, stay)) < MIN_KEPT * sum(lengths):
        return "\n".join(line.text if line else "" for line in lines)
    dropped = {id(line) for line, stays in zip(judged, stay, strict=True) if not stays}
    return "\n".join(line.text if line else "" for line in lines if id(line) not in dropped)
