"""A page's main text, title and language, by resiliparse.

Reads the decoded payload of one capture, used by `captures`. Measured on 91 news and blog pages with hand-made main
text (4-word shingles, mean precision and recall per page), at some 600 pages per CPU-second:

    main text as resiliparse gives it                                F1 0.908
    without list markers and alternative texts of pictures              0.927
    without readers' comments                                           0.936
    without post data (author, date, share buttons)                     0.944
    without captions, footers, boxes of related and popular pages       0.950
"""

import re
from dataclasses import dataclass

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from tasks.extract.bombs import refuse_bombs
from tasks.text import clean

# What pages put around their text and name the same way everywhere. Elements that may hold the whole page are spared.
_FURNITURE = [
    "figcaption",
    "footer",
    ':is(div, section, aside, p, span, ul):is([class*="caption"], [class*="related"], [class*="popular"])',
]
_NOINDEX = frozenset(("noindex", "none"))
# Directives that take a value after a colon, and so look like the name of a crawler.
_WITH_VALUE = frozenset(("unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"))
_MAX_TITLE = 500
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True)
class Page:
    """What a page says, and what it says about itself."""

    text: str
    title: str
    language: str
    noindex: bool
    whole: bool
    """True when `text` is all that is visible: asked for, or because no main text was found."""


def read_page(html: str, *, main: bool = True, comments: bool = False, min_main_share: float = 0.05) -> Page:
    """Extracts the main text of a page, layout kept: paragraphs, line breaks, preformatted text.

    Args:
        html: the decoded page.
        main: leave out what surrounds the main text.
        comments: keep readers' comments.
        min_main_share: below this share of all visible text, the whole visible text is taken instead.

    Raises:
        Rejected: a page made to stall the parser; see `refuse_bombs`.
    """
    refuse_bombs(html)
    tree = HTMLTree.parse(html)
    text = _text(tree, main=main, comments=comments)
    whole = not main
    # All visible text is shorter than the page's source, so most pages need no second extraction to pass.
    if main and len(text) < min_main_share * len(html):
        everything = _text(tree, main=False, comments=comments)
        whole = len(text) < min_main_share * len(everything)
        text = everything if whole else text
    title, language, noindex = _self_description(tree)
    return Page(clean(text), title, language, noindex, whole)


def _self_description(tree: HTMLTree) -> tuple[str, str, bool]:
    document = tree.document
    if document is None:
        return "", "", False
    # Not tree.title: in resiliparse 2.0.0 it writes past the end of its buffer on some real pages (seen with valgrind,
    # in lxb_html_title_element_strict_text), and the worker dies later, somewhere else.
    title = document.query_selector("head > title")
    root = document.query_selector("html")
    metas = document.query_selector_all('meta[name="robots" i]')
    return (
        _SPACE.sub(" ", clean(title.text or "")).strip()[:_MAX_TITLE] if title else "",
        (root.getattr("lang") or "").strip()[:35] if root else "",
        any(forbids_index(meta.getattr("content") or "") for meta in metas),
    )


def _text(tree: HTMLTree, *, main: bool, comments: bool) -> str:
    found: str = extract_plain_text(
        tree,
        preserve_formatting=True,
        main_content=main,
        comments=comments,
        post_meta=False,
        list_bullets=False,
        alt_texts=False,
        skip_elements=_FURNITURE if main else None,
    )
    return found


def forbids_index(directives: str) -> bool:
    """Tells whether a robots meta tag or X-Robots-Tag header asks not to be indexed.

    A header may begin with the name of the one crawler it is meant for ("otherbot: noindex, nofollow"); unless that is
    "*", it is passed over. Source: Google, "Robots meta tag, data-nosnippet, and X-Robots-Tag specifications".
    """
    first, colon, rest = directives.lower().partition(":")
    agent = first.strip()
    if colon and agent not in _WITH_VALUE and "," not in agent:
        directives = rest if agent == "*" else ""
    return any(directive.strip() in _NOINDEX for directive in directives.lower().split(","))
