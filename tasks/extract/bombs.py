"""Pages made to stall a parser, told from their source before they are parsed.

Used by `html`. Time or memory of resiliparse 2.0.0 grows with the square of some numbers, all under the control of
whoever writes the page; measured on one core:

    nested elements            4,000: 0.3 s     100,000: 270 s
    attributes of an element  10,000: 0.2 s     100,000: 18 s
    options of a select       10,000: 0.4 s      50,000: 10 s
    formatting elements left open, 200, times paragraphs, 4,000: 1.2 s and 230 MB; 2,000 times 40,000 would be 20 GB

Honest pages stay far below: of 91 news pages none has more than 3,600 tags. Browsers stop nesting at 512.
"""

import re
from collections import Counter

from tasks.extract.row import Rejected

MAX_DEPTH = 4_000
MAX_ATTRIBUTES = 10_000
MAX_OPTIONS = 10_000
# A paragraph repeats every formatting element that was left open before it (HTML Living Standard, section 13.2.4.3).
MAX_REPEATED_FORMATS = 1_000_000

_LOOK_CLOSER = 2 * int(MAX_REPEATED_FORMATS**0.5)
"""Tags from which on one of the products can be exceeded; most pages have fewer and are passed at once."""

_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)")
# Elements that have no end tag, or whose end tag authors leave out: they do not nest.
_FLAT = frozenset(
    (
        *("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "wbr"),
        *("body", "colgroup", "dd", "dt", "head", "html", "li", "optgroup", "option", "p", "rp", "rt"),
        *("tbody", "td", "tfoot", "th", "thead", "tr", "track"),
    )
)
_FORMATTING = frozenset(
    ("a", "b", "big", "code", "em", "font", "i", "nobr", "s", "small", "strike", "strong", "tt", "u")
)
# Ten thousand attributes of one letter each, and the spaces between them.
_LONG = 2 * MAX_ATTRIBUTES
_LONG_TAG = re.compile(rf"<[a-zA-Z][^>]{{{_LONG - 2},}}")


def refuse_bombs(html: str) -> None:
    """Raises Rejected with reason `nesting`, `formatting`, `options` or `attributes` for a page made to stall."""
    if html.count("<") > _LOOK_CLOSER:
        _refuse_tags(html)
    if not _has_long_tag(html):
        return
    for tag in _LONG_TAG.finditer(html):
        if tag.group().count("=") > MAX_ATTRIBUTES or len(tag.group().split()) > MAX_ATTRIBUTES:
            raise Rejected("attributes")


def _refuse_tags(html: str) -> None:
    # An end tag without its start tag closes nothing, so each name is counted by itself.
    depth = deepest = formats = most_formats = starts = options = 0
    unclosed: Counter[str] = Counter()
    for end, written in _TAG.findall(html):
        name = written.lower()
        starts += not end
        options += name == "option" and not end
        if name in _FLAT or (end and not unclosed[name]):
            continue
        step = -1 if end else 1
        unclosed[name] += step
        depth += step
        deepest = max(deepest, depth)
        if name in _FORMATTING:
            formats += step
            most_formats = max(most_formats, formats)
    if deepest > MAX_DEPTH:
        raise Rejected("nesting")
    if most_formats * starts > MAX_REPEATED_FORMATS:
        raise Rejected("formatting")
    if options > MAX_OPTIONS:
        raise Rejected("options")


def _has_long_tag(html: str) -> bool:
    """Tells whether some stretch of `_LONG` characters ends no tag; jumps from stretch to stretch."""
    start = 0
    while start + _LONG < len(html):
        end = html.rfind(">", start, start + _LONG)
        if end < 0:
            return True
        start = end + 1
    return False
