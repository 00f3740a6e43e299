"""The `blocks` extractor: main text of a page by resiliparse, with its lines classified by boosted trees.

Reads a parsed page. resiliparse has too many false positives (precision 0.92 at recall 0.99 on news pages): repeated
headlines, notices, teasers, bylines between the paragraphs. The trees of `trees` detect most of them from the features
of `line_features`.

The trees were trained on news and posts only. The result of resiliparse is therefore kept unchanged for pages with
preformatted text, code or definitions (documentation), pages with little prose, pages of which the trees would drop
much, and pages with many uncertain lines.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from tasks.stages.extract.line_features import features, prose, prose_around
from tasks.stages.extract.lines import Line, mark_container, split_lines
from tasks.stages.extract.main_text import BOILERPLATE
from tasks.stages.extract.trees import SCALE, Trees, trees

_OF_DOCUMENTATION = "code, dt"
# A page with a smaller share of characters in prose is a list or a table and is kept whole. Costs 0.01 points of F1 on
# news pages.
_MIN_PROSE = 0.2
# A page with a larger share of characters in uncertain lines is unlike the training pages and is kept whole. A line is
# uncertain if its odds of being main text are between 1 : 2.7 and 2.7 : 1. Costs 0.1 points of F1 on news pages.
_MAX_UNCERTAIN = 0.4
_UNCERTAIN = SCALE
# A longer page is a list or malicious; its features would take more memory than the page.
_MAX_LINES = 40_000


def reduced_lines(tree: HTMLTree, *, comments: bool = False) -> tuple[list[Line | None], float]:
    """Returns the lines of resiliparse's main text, and the result of `mark_container`.

    Returns no lines for a page of more than `_MAX_LINES`. The marks remain in the tree, so its text must not be
    extracted again.
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
        skip_elements=list(BOILERPLATE),
    )
    return split_lines(reduced) if reduced.count("\n") <= _MAX_LINES else [], share


def blocks_text(tree: HTMLTree, title: str, *, comments: bool = False) -> str:
    """Returns the main text of a page; marks the tree, see `reduced_lines`."""
    lines, share = reduced_lines(tree, comments=comments)
    if judged := to_judge(tree, lines):
        return joined(lines, judged, kept(judged, features(judged, title.lower(), share), trees()))
    return joined(lines)


def to_judge(tree: HTMLTree, lines: Sequence[Line | None]) -> list[Line]:
    """Returns the lines to classify: all non-empty ones, or none if the page looks like documentation.

    That is so for five of 91 news pages, and for nearly all of 530 pages of a programming language's manual, whose
    signatures and short notes the trees would drop.
    """
    found = [line for line in lines if line is not None]
    if any(line.fixed for line in found):
        return []
    document = tree.document
    return found if document is None or document.query_selector(_OF_DOCUMENTATION) is None else []


def kept(judged: Sequence[Line], measured: NDArray[np.float64], by: Trees) -> NDArray[np.bool_]:
    """Returns a mask of the kept lines: those that the trees keep and all prose, or every line (see the module)."""
    lengths = np.array([len(line.text) for line in judged])
    if lengths @ prose(measured) < _MIN_PROSE * lengths.sum():
        return np.ones(len(judged), np.bool_)
    odds = by.odds(measured)
    keeps = (odds >= by.threshold) | prose_around(measured)
    uncertain = np.abs(odds) < _UNCERTAIN
    reliable = lengths @ keeps >= by.min_kept * lengths.sum() and lengths @ uncertain <= _MAX_UNCERTAIN * lengths.sum()
    return keeps if reliable else np.ones_like(keeps)


def joined(
    lines: Sequence[Line | None], judged: Sequence[Line] = (), keeps: Sequence[bool] | NDArray[np.bool_] = ()
) -> str:
    """Returns the lines as text, without those of `judged` where `keeps` is false."""
    dropped = {id(line) for line, stays in zip(judged, keeps, strict=True) if not stays}
    return "\n".join(line.text if line else "" for line in lines if id(line) not in dropped)
