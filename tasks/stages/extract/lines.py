"""Lines of a page's main text, with their position relative to the element with most of its paragraphs.

Reads resiliparse's reduced HTML (text with `p`, `h1` to `h6`, `pre`, `li`, `a`).
"""

import html
import re
from typing import Any, NamedTuple

from resiliparse.parse.html import HTMLTree

# Marks of the start and end of the best element, its parent and its grandparent. Control characters, which cleaned text
# does not contain.
STARTS, ENDS = "\x01\x03\x05", "\x02\x04\x06"
LEVELS = len(STARTS)
_MARKS = re.compile("[\x01-\x06]")
_TAG = re.compile(r"<[^>]*>")
_PARAGRAPH = 60
"""Minimum length of paragraphs that count towards the best element."""
_MOST_PARAGRAPHS = 2_000


class Line(NamedTuple):
    """One line of the main text.

    Attributes:
        text: without tags and marks.
        markup: with tags.
        inside: for each marked element 0 before it, 1 within, 2 after it.
        fixed: whether it is preformatted text, which is not classified.
    """

    text: str
    markup: str
    inside: tuple[int, ...]
    fixed: bool


def mark_container(tree: HTMLTree) -> float:
    """Marks the element that is the parent of most paragraph text, and two around it.

    Returns:
        the element's share of the paragraph text; 0.0 if the page has no paragraphs.
    """
    lengths: dict[Any, int] = {}
    document = tree.document
    for paragraph in document.get_elements_by_tag_name("p")[:_MOST_PARAGRAPHS] if document is not None else ():
        length = len(paragraph.text or "")
        if length >= _PARAGRAPH:
            parent = paragraph.parent
            lengths[parent] = lengths.get(parent, 0) + length
    if not lengths:
        return 0.0
    element = best = max(lengths, key=lengths.__getitem__)
    for start, end in zip(STARTS, ENDS, strict=True):
        if element is None or element.tag in ("body", "html"):
            break
        element.prepend(tree.create_text_node(start))
        element.append(tree.create_text_node(end))
        element = element.parent
    return lengths[best] / sum(lengths.values())


def split_lines(reduced: str) -> list[Line | None]:
    """Splits reduced HTML into lines; None stands for an empty line."""
    found: list[Line | None] = []
    inside: tuple[int, ...] = (0,) * LEVELS
    fixed = False
    for raw in reduced.split("\n"):
        if not raw and not fixed:
            found.append(None)  # every other line is empty
            continue
        here, markup = inside, raw
        if _MARKS.search(raw):
            here, inside = _passed(raw, inside)
            markup = _MARKS.sub("", raw)
        begins = "<pre>" in markup
        text = _TAG.sub("", markup) if "<" in markup else markup
        text = html.unescape(text) if "&" in text else text
        stays = fixed or begins
        fixed = stays and "</pre>" not in markup
        found.append(Line(text, markup, here, stays) if text.strip() or stays else None)
    return found


def _passed(raw: str, before: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the position of a line with marks, and that of the next line."""
    here, inside = list(before), list(before)
    for mark in _MARKS.findall(raw):
        level = (ord(mark) - 1) // 2
        inside[level] = 1 if mark in STARTS else 2
        # A line at whose end the element ends belongs to it.
        here[level] = 1
    return tuple(here), tuple(inside)
