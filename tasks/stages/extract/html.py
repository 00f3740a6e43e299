"""Extracts text and metadata of an HTML page with the recipe's extractor; rejects pages made to stall the parser.

Reads the decoded payload of one capture. Extractors: resiliparse's main text and all visible text are the fastest;
`blocks` classifies each block of a page; trafilatura (Barbaresi, ACL 2021 System Demonstrations), an extra that is
imported on first use, has a higher precision than resiliparse at a sixth of its speed. Measurements on real pages:
`python -m benchmarks.extraction`.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from tasks.core.errors import InputError
from tasks.formats.documents.structure import Block, write
from tasks.formats.documents.text import clean
from tasks.stages.extract.formulas import write_formulas
from tasks.stages.extract.page_metadata import PageMetadata, read_page_metadata
from tasks.stages.extract.rendering import render
from tasks.stages.extract.rendering.short_texts import WORD_JOINER, keep_characters
from tasks.stages.extract.rendering.source import as_scripted, join_lines
from tasks.stages.extract.row import ExtractOptions, Rejected

if TYPE_CHECKING:
    from tasks.stages.extract.config import ExtractConfig

# Extracted text of at least so many characters counts as the main text without a comparison.
_LONG_TEXT = 1_000

# resiliparse's main text, measured on 91 news and blog pages with manually extracted main text (4-word shingles, mean
# precision and recall per page); each line adds to the one before:
#     resiliparse's defaults                                           F1 0.908
#     without list markers and alternative texts of pictures              0.927
#     without readers' comments                                           0.936
#     without post data (author, date, share buttons)                     0.944
#     without captions, footers, boxes of related and popular pages       0.950
#     with embedded posts                                                 0.954
# Selectors of boilerplate with common names. Elements that may contain the whole page are not listed. `[class]` comes
# first, because most elements have no class, so that matching ends there.
BOILERPLATE = (
    "figcaption",
    "footer",
    '[class]:is(div, section, aside, p, span, ul):is([class*="caption"], [class*="related"], [class*="popular"])',
)

# Embedded posts of X. resiliparse mistakes their class for that of a share button.
_POST = b"twitter-tweet"
_POSTS = "blockquote.twitter-tweet"
_MOST_POSTS = 1_000

_MOST_MENUS = 10_000
# Menus in a chapter of a book, and the page numbers of its printed edition (WAI-ARIA, Digital Publishing Module 1.1).
_NOT_OF_A_BOOK = ", ".join(f'[role="{role}"]' for role in ("navigation", "doc-pagebreak", "doc-pagelist", "doc-toc"))

# Limits for input that makes resiliparse 2.0.0 slow or large: its time or memory grows with the product of two numbers
# that the author of a page controls. Measured on one core:
#     nested elements            4,000: 0.3 s     100,000: 270 s
#     attributes of an element  10,000: 0.2 s     100,000: 18 s
#     options of a select       10,000: 0.4 s      50,000: 10 s
#     formatting elements left open, 500, times paragraphs, 10,000, in 44 kB: 2 s and 1.9 GB
#     attributes of one that is left open, 3,000, times paragraphs, 5,000, in 36 kB: 2 s and 2.3 GB
# Ordinary pages are far below: none of 91 news pages has more than 3,600 tags. Browsers limit nesting to 512.
MAX_DEPTH = 4_000
MAX_ATTRIBUTES = 10_000
MAX_OPTIONS = 10_000
# A paragraph repeats every formatting element left open before it (HTML Living Standard, section 13.2.4.3) with its
# attributes, four of which weigh as much as one element.
MAX_REPEATED_FORMATS = 1_000_000

_TAG = re.compile(rb"<(/?)([a-zA-Z][a-zA-Z0-9]*)")
# Elements without an end tag, or whose end tag is optional: they do not nest.
_FLAT = frozenset(
    (
        *("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "wbr"),
        *("body", "colgroup", "dd", "dt", "head", "html", "li", "optgroup", "option", "p", "rp", "rt"),
        *("tbody", "td", "tfoot", "th", "thead", "tr", "track"),
    )
)
# Without `a` and `nobr`: a second one closes the first, so they do not accumulate, but one may be left open.
_FORMATTING = frozenset(("b", "big", "code", "em", "font", "i", "s", "small", "strike", "strong", "tt", "u"))
_TAG_START = re.compile(rb"<[a-zA-Z]")
# So few start tags exceed no limit: 1,000 formatting elements before 1,000 others are repeated a million times.
_FEW = 2_000
# Equal formatting elements are repeated at most three times, and there are twelve names.
_EQUAL = 36
# Maximum number of tags to analyze with arrays: a dozen arrays of this length take 60 MB.
_MOST_COUNTED = 500_000
# Letters of Khitan, a script that no page is written in, which stand for the joiners while trafilatura reads a page.
_STAND_INS = {"\u200c": "\U00018cd4", "\u200d": "\U00018cd5"}
_JOINER_SOURCES = {
    "\u200c": re.compile("\u200c|&(?:zwnj|#8204|#[xX]200[cC]);"),
    "\u200d": re.compile("\u200d|&(?:zwj|#8205|#[xX]200[dD]);"),
}
# Length of ten thousand attributes of one letter each, with the spaces between them.
_LONG = 2 * MAX_ATTRIBUTES


@dataclass(frozen=True)
class ExtractedPage:
    """Text and metadata of a page."""

    text: str
    metadata: PageMetadata
    whole: bool
    """Whether `text` is all visible text, by the setting or because no main text was found."""


def read_page(
    html: str,
    config: ExtractOptions | ExtractConfig | None = None,
    source: bytes | None = None,
    url: str = "",
    fetched_at: datetime | None = None,
) -> ExtractedPage:
    """Extracts the text of a page with its layout: paragraphs, line breaks, preformatted text.

    Args:
        html: the decoded page.
        config: settings, of which `extractor`, `text`, `comments`, `min_main_share` and `max_table_rows` are read; None
            for the defaults.
        source: the same page in UTF-8, if available: bytes are searched several times as fast as text.
        url: URL of the page, which may contain its date.
        fetched_at: time of its capture, after which it cannot have been published.

    Raises:
        Rejected: the page exceeds the limits of the parser; see `refuse_bombs`.
        InputError: the extractor is not installed.
    """
    config = config or _defaults()
    tree, source = parsed(html, source)
    metadata = read_page_metadata(tree, url, fetched_at)
    changed = show(tree, source)
    if config.extractor == "trafilatura":
        html = str(tree) if changed else source.decode("utf-8", "surrogatepass")
    text, whole = _text(html, tree, metadata.stated_title, config)
    return ExtractedPage(text, metadata, whole)


@functools.cache
def _defaults() -> ExtractOptions:
    from tasks.stages.extract.config import ExtractConfig

    return ExtractConfig().options()


def _text(html: str, tree: HTMLTree, title: str, config: ExtractOptions | ExtractConfig) -> tuple[str, bool]:
    """Returns the clean text of a page, and whether it is all visible text."""
    if config.extractor == "visible":
        return _written(tree, visible_text(tree), config), True
    text = ""
    if config.extractor == "trafilatura":
        text = _written(tree, trafilatura_text(html, comments=config.comments), config)
    elif config.extractor == "blocks":
        from tasks.stages.extract.blocks import main_blocks  # imported here, because it needs NumPy and the weights

        blocks = main_blocks(tree, title, comments=config.comments, most_rows=config.max_table_rows)
        text = write(blocks, config.text)
    # Pages that trafilatura does not recognize as articles (lists, tables, documentation) may have main text.
    text = text or _written(tree, main_text(tree, comments=config.comments), config)
    # All visible text is shorter than the source, so for most pages this check makes a second extraction unnecessary.
    if len(text) < min(_LONG_TEXT, config.min_main_share * len(html)):
        everything = visible_text(tree)
        if len(text) < config.min_main_share * len(everything):
            return _written(tree, everything, config), True
    return text, False


def show(tree: HTMLTree, source: bytes) -> bool:
    """Changes a parsed page into what a browser shows, with formulas as TeX; returns whether text was changed.

    Args:
        tree: the page.
        source: the same page in UTF-8, as `parsed` returns it.
    """
    keep_posts(tree, source)
    has_formulas = write_formulas(tree, source)
    return render(tree, source) or has_formulas


def _shown_source(html: str, source: bytes) -> tuple[str, bytes]:
    """Returns a page, as text and in UTF-8, as a browser that runs scripts reads it before it shows it."""
    scripted = as_scripted(source)
    if scripted is not source:
        html, source = scripted.decode("utf-8", "surrogatepass"), scripted
    joined = join_lines(html)
    return (html, source) if joined is html else (joined, joined.encode("utf-8", "surrogatepass"))


def _written(tree: HTMLTree, text: str, config: ExtractOptions | ExtractConfig) -> str:
    """Returns the text of another extractor, clean, in the form of the recipe."""
    if config.text == "plain" or not text:
        return clean(text)
    from tasks.stages.extract.blocks import blocks_of_text

    return write(blocks_of_text(tree, text, most_rows=config.max_table_rows), "markdown") or clean(text)


def keep_posts(tree: HTMLTree, source: bytes) -> None:
    """Removes the class of embedded posts, so that the main text contains them; `source` is the page in UTF-8."""
    if _POST in source and (document := tree.document) is not None:
        for post in document.query_selector_all(_POSTS)[:_MOST_POSTS]:
            post.remove_attribute("class")


def whole_page(html: str, source: bytes | None = None) -> list[Block]:
    """Returns all blocks of a page, such as a chapter of a book.

    A page with more blocks than `page_blocks` reads at once gives its visible text as paragraphs.

    Args:
        html: the decoded page.
        source: the same page in UTF-8, if available.

    Raises:
        Rejected: the page exceeds the limits of the parser; see `refuse_bombs`.
    """
    from tasks.stages.extract.blocks import all_blocks
    from tasks.stages.extract.page_blocks import MOST_BLOCKS

    tree, source = parsed(html, source)
    if (document := tree.document) is not None:
        # A slice, because iterating over n elements of resiliparse 2.0.0 takes time with the square of n.
        for element in document.query_selector_all(_NOT_OF_A_BOOK)[:_MOST_MENUS][::-1]:  # those inside others first
            element.decompose()
    show(tree, source)
    blocks = all_blocks(tree)
    if not blocks and source.count(b"<") > MOST_BLOCKS:
        blocks = [Block("paragraph", text) for text in clean(visible_text(tree)).split("\n\n") if text]
    return blocks


def parsed(html: str, source: bytes | None = None) -> tuple[HTMLTree, bytes]:
    """Returns the tree of a page and the page in UTF-8, both as a browser that runs scripts reads them."""
    # The parser drops NULs (HTML Living Standard, section 13.2.6.4.7), but takes minutes for millions of them.
    source = html.encode("utf-8", "surrogatepass") if source is None else source
    if b"\0" in source:
        source = source.replace(b"\0", b"")
        html = html.replace("\0", "")
    html, source = _shown_source(html, source)
    refuse_bombs(source)
    return HTMLTree.parse(html), source


def main_text(tree: HTMLTree, *, comments: bool = False) -> str:
    """Returns resiliparse's main text without boilerplate; `comments` keeps readers' comments."""
    text: str = extract_plain_text(
        keep_characters(tree),
        preserve_formatting=True,
        main_content=True,
        comments=comments,
        post_meta=False,
        list_bullets=False,
        alt_texts=False,
        skip_elements=list(BOILERPLATE),
    )
    return text.replace(WORD_JOINER, "")


def visible_text(tree: HTMLTree) -> str:
    """Returns all visible text, including menus."""
    text: str = extract_plain_text(tree, preserve_formatting=True, list_bullets=False, alt_texts=False)
    return text


def check_installed(config: ExtractConfig) -> None:
    """Raises InputError if the recipe's extractor is not installed."""
    if config.extractor == "trafilatura" and importlib.util.find_spec("trafilatura") is None:
        raise InputError(
            'the recipe has [extract] extractor = "trafilatura", and trafilatura is not installed',
            "install it where the stage runs (pip install 'sluice[careful]'), or choose extractor = \"blocks\"",
        )


def trafilatura_text(html: str, *, comments: bool = False) -> str:
    """Returns trafilatura's main text, favoring precision; "" if it finds none."""
    import trafilatura

    # It logs a warning for every page without main text; the stage counts these pages.
    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)
    # It removes all invisible characters, also the joiners without which Persian and Indic words are misspelled.
    for joiner, stand_in in _STAND_INS.items():
        html = _JOINER_SOURCES[joiner].sub(stand_in, html)
    text: str = trafilatura.extract(html, favor_precision=True, include_comments=comments) or ""
    for joiner, stand_in in _STAND_INS.items():
        text = text.replace(stand_in, joiner)
    return text


def refuse_bombs(source: bytes) -> None:
    """Rejects pages made to stall the parser.

    Examines the source before it is parsed. End tags inside comments, quotes or tables are counted as end tags; pages
    that evade detection in this way are stopped by the limits of the child process (`guard`).

    Args:
        source: the page in UTF-8.

    Raises:
        Rejected: with the reason "nesting", "formatting", "options" or "attributes".
    """
    if len(source) >= _FEW * len(b"<b>"):
        _refuse_many(source)
    if any(map(_has_many_attributes, _long_stretches(source))):
        raise Rejected("attributes")


def _refuse_many(source: bytes) -> None:
    """Rejects pages with too many tags.

    Checks upper bounds first, from the cheapest to the most expensive; nearly all pages are below them.
    """
    from tasks.formats.web.html_tags import TagNames, all_tags, formatting_tags

    tags = all_tags(source)
    # A link left open at most doubles a page, so only its attributes count.
    limit = 1 + MAX_REPEATED_FORMATS // max(1, tags.starts)
    formats = formatting_tags(source, tags, limit)
    if formats.heaviest_link > limit:
        raise Rejected("formatting")
    if tags.starts <= _FEW and not _repeats(
        min(formats.number, _EQUAL + formats.unequal), tags.starts, formats.heaviest
    ):
        return
    if len(tags.at) <= _MOST_COUNTED:
        names = TagNames(source)
        maxima = names.most_open(_FLAT, _FORMATTING)
        repeats = _repeats(maxima.formatting, maxima.starts, formats.heaviest)
        if maxima.nested <= MAX_DEPTH and not repeats and names.starts("option") <= MAX_OPTIONS:
            return
    _refuse_tags(source, formats.heaviest)


def _repeats(formats: int, starts: int, weight: int = 1) -> bool:
    # Elements repeat the formats before them; the product is largest for as many formats as other elements.
    repeated = min(formats, starts // 2)
    return weight * repeated * (starts - repeated) > MAX_REPEATED_FORMATS


def _refuse_tags(source: bytes, weight: int = 1) -> None:
    # An end tag without its start tag closes nothing, so each name is counted separately.
    depth = formats = most_formats = starts = options = 0
    unclosed: Counter[str] = Counter()
    for tag in _TAG.finditer(source):
        end, raw_name = tag.groups()
        name = raw_name.lower().decode()
        starts += not end
        options += name == "option" and not end
        if name in _FLAT or (end and not unclosed[name]):
            continue
        step = -1 if end else 1
        unclosed[name] += step
        depth += step
        if depth > MAX_DEPTH:
            raise Rejected("nesting")
        if name in _FORMATTING:
            formats += step
            most_formats = max(most_formats, formats)
    if _repeats(most_formats, starts, weight):
        raise Rejected("formatting")
    if options > MAX_OPTIONS:
        raise Rejected("options")


def _long_stretches(source: bytes) -> Iterator[bytes]:
    """Yields the parts of the source of at least `_LONG` bytes without ">"."""
    start = 0
    while start + _LONG <= len(source):
        end = source.rfind(b">", start, start + _LONG)
        if end >= 0:
            start = end + 1
            continue
        end = source.find(b">", start)
        end = len(source) if end < 0 else end
        yield source[start:end]
        start = end + 1


def _has_many_attributes(stretch: bytes) -> bool:
    if not (tag := _TAG_START.search(stretch)):
        return False  # a script or text
    inside = stretch[tag.start() :]
    return inside.count(b"=") > MAX_ATTRIBUTES or len(inside.split()) > MAX_ATTRIBUTES
