"""The main text of a page by resiliparse, its lines judged once more: the `blocks` extractor.

Reads a parsed page, used by `html`. resiliparse takes too much (precision 0.92 at recall 0.99 on news pages): headlines
that are the title once more, notices, teasers, bylines between the paragraphs. What `line_features` measures of each
line tells most of them apart, by the trees of `trees`.

The trees have seen news and posts only. So a page of another kind keeps what resiliparse found: one that holds
preformatted text, one of which the trees would drop much, and one where they are in doubt about much.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from tasks.extract.line_features import features, prose
from tasks.extract.lines import Line, mark_container, split_lines
from tasks.extract.main_text import FURNITURE
from tasks.extract.trees import SCALE, Trees, trees

# When less than this share of the characters would stay, or the trees are in doubt about more than that share, the page
# is unlike those that they know: all stays. They are in doubt where main text is no more than 2.7 times as likely as
# anything else, or as little less likely.
MIN_KEPT = 0.7
MAX_DOUBTED = 0.4
_DOUBT = SCALE
# A longer page is a list, or made to harm; what is measured of it would take more memory than the page.
_MAX_LINES = 40_000


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
    if judged := to_judge(lines):
        return joined(lines, judged, kept(judged, features(judged, title.lower(), share), trees()))
    return joined(lines)


def to_judge(lines: Sequence[Line | None]) -> list[Line]:
    """Returns the lines that are judged: all but empty ones, or none where any is preformatted."""
    found = [line for line in lines if line is not None]
    return [] if any(line.fixed for line in found) else found


def kept(judged: Sequence[Line], measured: NDArray[np.float64], by: Trees) -> NDArray[np.bool_]:
    """Tells which lines stay: what the trees keep, and all prose; or every line, see the module's docstring."""
    odds = by.odds(measured)
    keeps = (odds >= by.threshold) | prose(measured)
    lengths = np.array([len(line.text) for line in judged])
    doubted = np.abs(odds) < _DOUBT
    known = lengths @ keeps >= MIN_KEPT * lengths.sum() and lengths @ doubted <= MAX_DOUBTED * lengths.sum()
    return keeps if known else np.ones_like(keeps)


def joined(
    lines: Sequence[Line | None], judged: Sequence[Line] = (), keeps: Sequence[bool] | NDArray[np.bool_] = ()
) -> str:
    """Returns the lines as text, without those of `judged` that `keeps` does not keep."""
    dropped = {id(line) for line, stays in zip(judged, keeps, strict=True) if not stays}
    return "\n".join(line.text if line else "" for line in lines if id(line) not in dropped)
