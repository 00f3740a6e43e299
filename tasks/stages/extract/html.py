"""Text of a page by the extractor of the recipe, and the page's metadata.

Reads the decoded payload of one capture. The extractors are in `main_text` (resiliparse and visible), `blocks` and
`careful` (trafilatura, an extra). Figures on real pages: `python -m benchmarks.extraction`.

The main text of a page by resiliparse, and all its visible text: the fast extractors.

Reads a parsed page. Measured on 91 news and blog pages with hand-made main text (4-word shingles, mean precision and
recall per page):

    main text as resiliparse gives it                                F1 0.908
    without list markers and alternative texts of pictures              0.927
    without readers' comments                                           0.936
    without post data (author, date, share buttons)                     0.944
    without captions, footers, boxes of related and popular pages       0.950
    with embedded posts                                                 0.954

Main text of a page by trafilatura: a higher precision than resiliparse at a tenth of its speed.

Reads the source of a page. trafilatura (Barbaresi, ACL 2021 System Demonstrations) is an extra and is imported on first
use only.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from tasks.core.errors import InputError
from tasks.formats.documents.text import clean
from tasks.stages.extract.bombs import refuse_bombs
from tasks.stages.extract.page_metadata import About, read_about
from tasks.stages.extract.row import Choices

if TYPE_CHECKING:
    from tasks.stages.extract.config import ExtractConfig
if TYPE_CHECKING:
    from tasks.stages.extract.config import ExtractConfig


# Characters from which extracted text is taken for the main text without a comparison.
_FOUND = 1_000


@dataclass(frozen=True)
class Page:
    """Text and metadata of a page."""

    text: str
    about: About
    whole: bool
    """Whether `text` is all visible text: by the setting, or because no main text was found."""


def read_page(
    html: str, config: Choices | ExtractConfig | None = None, source: bytes | None = None, url: str = ""
) -> Page:
    """Extracts the text of a page, layout kept: paragraphs, line breaks, preformatted text.

    Args:
        html: the decoded page.
        config: `extractor`, `comments` and `min_main_share` are read; None stands for the defaults.
        source: the same page in UTF-8, if the caller has it: bytes are searched several times as fast.
        url: of the page, which may state its date.

    Raises:
        Rejected: a page made to stall the parser; see `refuse_bombs`.
        InputError: the extractor is not installed.
    """
    config = config or _defaults()
    # The parser drops NULs (HTML Living Standard, section 13.2.6.4.7), but takes minutes over millions of them.
    source = html.encode("utf-8", "surrogatepass") if source is None else source
    if b"\0" in source:
        source = source.replace(b"\0", b"")
        html = html.replace("\0", "")
    refuse_bombs(source)
    tree = HTMLTree.parse(html)
    about = read_about(tree, url)
    keep_posts(tree, source)
    text, whole = _text(html, tree, about.stated_title, config)
    return Page(clean(text), about, whole)


@functools.cache
def _defaults() -> Choices:
    from tasks.stages.extract.config import ExtractConfig

    return Choices.of(ExtractConfig())


def _text(html: str, tree: HTMLTree, title: str, config: Choices | ExtractConfig) -> tuple[str, bool]:
    if config.extractor == "visible":
        return visible_text(tree), True
    text = ""
    if config.extractor == "trafilatura":
        text = careful_text(html, comments=config.comments)
    elif config.extractor == "blocks":
        from tasks.stages.extract.blocks import blocks_text  # NumPy and the weights, for those who want it

        text = blocks_text(tree, title, comments=config.comments)
    # What trafilatura takes for no article at all (lists, tables, documentation) may have main text all the same.
    text = text or main_text(tree, comments=config.comments)
    # All visible text is shorter than the page's source, so most pages need no second extraction to pass.
    if len(text) < min(_FOUND, config.min_main_share * len(html)):
        everything = visible_text(tree)
        if len(text) < config.min_main_share * len(everything):
            return everything, True
    return text, False


# Selectors of boilerplate with common names. Elements that may contain the whole page are not listed. `[class]` comes
# first because most elements have none, which ends the matching.
BOILERPLATE = (
    "figcaption",
    "footer",
    '[class]:is(div, section, aside, p, span, ul):is([class*="caption"], [class*="related"], [class*="popular"])',
)


# Embedded posts of X. resiliparse takes their class for that of a button.
_POST = b"twitter-tweet"
_POSTS = "blockquote.twitter-tweet"
_MOST_POSTS = 1_000


def keep_posts(tree: HTMLTree, source: bytes) -> None:
    """Removes the class of embedded posts, so that they stay in the main text; `source` is the page in UTF-8."""
    if _POST in source and (document := tree.document) is not None:
        for post in document.query_selector_all(_POSTS)[:_MOST_POSTS]:
            post.remove_attribute("class")


def main_text(tree: HTMLTree, *, comments: bool = False) -> str:
    """Returns resiliparse's main text without boilerplate; `comments` keeps readers' comments."""
    found: str = extract_plain_text(
        tree,
        preserve_formatting=True,
        main_content=True,
        comments=comments,
        post_meta=False,
        list_bullets=False,
        alt_texts=False,
        skip_elements=list(BOILERPLATE),
    )
    return found


def visible_text(tree: HTMLTree) -> str:
    """Returns all visible text, including menus."""
    found: str = extract_plain_text(tree, preserve_formatting=True, list_bullets=False, alt_texts=False)
    return found


def check_installed(config: ExtractConfig) -> None:
    """Raises InputError if the recipe's extractor is not installed."""
    if config.extractor == "trafilatura" and importlib.util.find_spec("trafilatura") is None:
        raise InputError(
            'the recipe says [extract] extractor = "trafilatura", and trafilatura is not installed here',
            "install it where the stage runs (pip install 'sluice[careful]'), or choose extractor = \"blocks\"",
        )


def careful_text(html: str, *, comments: bool = False) -> str:
    """Returns trafilatura's main text, favouring precision; "" if it finds none."""
    import trafilatura

    # It logs a warning for every page without main text; the stage counts them.
    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)
    found: str | None = trafilatura.extract(html, favor_precision=True, include_comments=comments)
    return found or ""
