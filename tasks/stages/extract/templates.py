"""Page templates of known software that mark their content: what is in the marked element is main text.

The trees of `blocks` were trained mostly on prose, and drop declarations, tables of links and short lines of reference
pages. MediaWiki puts an article into one element, where boxes that are not part of the article have classes of their
own (https://www.mediawiki.org/wiki/Manual:Interface/IDs_and_classes); DocBook's style sheets do the same for the pages
of a reference.
"""

import re
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.stages.extract.page_blocks import Blocks


@dataclass(frozen=True)
class Template:
    """How the pages of one software mark their content.

    Attributes:
        mark: a text that every such page has.
        content: matches the start tag of the element with the content.
        other: matches the start tags of elements in it that are not content.
    """

    mark: str
    content: re.Pattern[str]
    other: re.Pattern[str]


_TEMPLATES = (
    Template(  # MediaWiki
        mark='id="mw-content-text"',
        content=re.compile(r'<(?:div\b[^>]*\sid="mw-content-text"|h1\b[^>]*\sid="firstHeading")'),
        other=re.compile(
            # Names of classes only: the ids of sections and footnotes are words of the article.
            r'(?i)\s(?:role="navigation"|class="[^"]*\b(?:navigation|nav(?:box|bar|head|frame)|v?toc|toctitle|toccolours'
            r"|noprint|metadata|catlinks|printfooter|jump-link|sister\w*|portalbox|hatnote|mbox\w*|ambox\w*|stub)\b)"
            r'|\sid="(?:toc|catlinks|siteSub|contentSub|jump-to-nav)"'
        ),
    ),
    Template(  # DocBook: a page of a reference, also of GTK-Doc
        mark='class="refentry"',
        content=re.compile(r'<div\b[^>]*\sclass="refentry"'),
        other=re.compile(r'\sclass="(?:navigation|navheader|navfooter|toc)\b'),
    ),
)


def content(page: Blocks) -> NDArray[np.bool_] | None:
    """Returns a mask of the blocks in the content of a page of a known template, shape (blocks,); None for others."""
    for template in _TEMPLATES:
        if template.mark not in page.source:
            continue
        marked = [element for element, tag in enumerate(page.tags) if template.content.match(tag)]
        if marked:
            return _in_content(page, marked, template.other)
    return None


def _in_content(page: Blocks, marked: list[int], other: re.Pattern[str]) -> NDArray[np.bool_]:
    """Returns a mask of the blocks in marked elements, but not in others inside; each tag is looked at once at most."""
    mask = np.zeros(len(page), np.bool_)
    opened, closed = page.opened.tolist(), page.closed.tolist()
    end = -1
    for element in marked:
        if opened[element] < end:
            continue  # inside the one before
        end, dropped = closed[element], -1
        mask[page.first[element] : page.last[element]] = True
        for inner in range(element + 1, bisect_left(opened, end)):
            if opened[inner] >= dropped and '="' in page.tags[inner] and other.search(page.tags[inner]):
                mask[page.first[inner] : page.last[inner]] = False
                dropped = closed[inner]
    return mask
