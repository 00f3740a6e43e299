"""The main text of a page by resiliparse, its lines judged once more: the `blocks` extractor.

Reads a parsed page. resiliparse takes too much (precision 0.92 at recall 0.99 on news pages): headlines that are the
title once more, notices, teasers, bylines between the paragraphs. What `line_features` measures of each line tells most
of them apart, by the trees of `trees`.

The trees have seen news and posts only. So a page of another kind keeps what resiliparse found: one that holds
preformatted text, code or definitions, as documentation does, one with little prose, one of which the trees would drop
much, and one where they are in doubt about much.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from tasks.stages.extract.line_features import features, prose, prose_around
from tasks.stages.extract.lines import Line, mark_container, split_lines
from tasks.stages.extract.main_text import FURNITURE
from tasks.stages.extract.trees import SCALE, Trees, trees

_OF_DOCUMENTATION = "code, dt"
# A page of which prose holds less than this share of the characters is a list or a table: all stays. It costs 0.01
# points of F1 on news pages.
_MIN_PROSE = 0.2
# When the trees are in doubt about more than this share of the characters, the page is unlike those that they know: all
# stays. They are in doubt where main text is no more than 2.7 times as likely as anything else, or as little less
# likely. On news pages it costs 0.1 points of F1.
_MAX_DOUBTED = 0.4
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
    if judged := to_judge(tree, lines):
        return joined(lines, judged, kept(judged, features(judged, title.lower(), share), trees()))
    return joined(lines)


def to_judge(tree: HTMLTree, lines: Sequence[Line | None]) -> list[Line]:
    """Returns the lines that are judged: all but empty ones, or none where the page looks like documentation.

    Of 91 news pages five do, of 530 pages of a programming language's manual all but a few, whose signatures and short
    notes the trees would drop.
    """
    found = [line for line in lines if line is not None]
    if any(line.fixed for line in found):
        return []
    document = tree.document
    return found if document is None or document.query_selector(_OF_DOCUMENTATION) is None else []


def kept(judged: Sequence[Line], measured: NDArray[np.float64], by: Trees) -> NDArray[np.bool_]:
    """Tells which lines stay: what the trees keep, and all prose; or every line, see the module's docstring."""
    lengths = np.array([len(line.text) for line in judged])
    if lengths @ prose(measured) < _MIN_PROSE * lengths.sum():
        return np.ones(len(judged), np.bool_)
    odds = by.odds(measured)
    keeps = (odds >= by.threshold) | prose_around(measured)
    doubted = np.abs(odds) < _DOUBT
    known = lengths @ keeps >= by.min_kept * lengths.sum() and lengths @ doubted <= _MAX_DOUBTED * lengths.sum()
    return keeps if known else np.ones_like(keeps)


def joined(
    lines: Sequence[Line | None], judged: Sequence[Line] = (), keeps: Sequence[bool] | NDArray[np.bool_] = ()
) -> str:
    """Returns the lines as text, without those of `judged` that `keeps` does not keep."""
    dropped = {id(line) for line, stays in zip(judged, keeps, strict=True) if not stays}
    return "\n".join(line.text if line else "" for line in lines if id(line) not in dropped)
