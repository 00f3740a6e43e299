"""Detection of pages made to stall a parser, from their source before parsing.

Time or memory of resiliparse 2.0.0 grows with the product of numbers that the author of a page controls; measured on
one core:

    nested elements            4,000: 0.3 s     100,000: 270 s
    attributes of an element  10,000: 0.2 s     100,000: 18 s
    options of a select       10,000: 0.4 s      50,000: 10 s
    formatting elements left open, 500, times paragraphs, 10,000, in 44 kB: 2 s and 1.9 GB
    attributes of one that is left open, 3,000, times paragraphs, 5,000, in 36 kB: 2 s and 2.3 GB

Ordinary pages are far below: of 91 news pages none has more than 3,600 tags. Browsers stop nesting at 512. End tags
inside comments, quotes or tables are counted as real ones; pages that evade detection this way are stopped by the
limits of the child process (`guard`).
"""

import re
from collections import Counter
from collections.abc import Iterator

from tasks.stages.extract.row import Rejected

MAX_DEPTH = 4_000
MAX_ATTRIBUTES = 10_000
MAX_OPTIONS = 10_000
# A paragraph repeats every formatting element that was left open before it (HTML Living Standard, section 13.2.4.3),
# with its attributes, four of which weigh as much as an element.
MAX_REPEATED_FORMATS = 1_000_000

_TAG = re.compile(rb"<(/?)([a-zA-Z][a-zA-Z0-9]*)")
# Elements that have no end tag, or whose end tag authors leave out: they do not nest.
_FLAT = frozenset(
    (
        *("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "wbr"),
        *("body", "colgroup", "dd", "dt", "head", "html", "li", "optgroup", "option", "p", "rp", "rt"),
        *("tbody", "td", "tfoot", "th", "thead", "tr", "track"),
    )
)
# Without `a` and `nobr`: a second one closes the first, so they do not pile up, but one may be left open.
_FORMATTING = frozenset(("b", "big", "code", "em", "font", "i", "s", "small", "strike", "strong", "tt", "u"))
_TAG_START = re.compile(rb"<[a-zA-Z]")
# So few start tags pass no limit: 1,000 formatting elements before 1,000 others are repeated a million times.
_FEW = 2_000
# Formatting elements that are equal are repeated three times at most, whatever is left open: twelve names.
_EQUAL = 36
# Maximum number of tags to analyse in arrays: a dozen of them take 60 MB.
_MOST_COUNTED = 500_000
# Ten thousand attributes of one letter each, and the spaces between them.
_LONG = 2 * MAX_ATTRIBUTES


def refuse_bombs(source: bytes) -> None:
    """Raises Rejected with reason `nesting`, `formatting`, `options` or `attributes` for a page made to stall.

    Args:
        source: the page in UTF-8.
    """
    if len(source) >= _FEW * len(b"<b>"):
        _refuse_many(source)
    if any(map(_has_many_attributes, _long_stretches(source))):
        raise Rejected("attributes")


def _refuse_many(source: bytes) -> None:
    """Rejects pages with too many tags; checks upper bounds first, the cheapest first, which nearly all pages meet."""
    from tasks.formats.web.html_tags import TagNames, all_tags, formats_in

    tags = all_tags(source)
    # One link left open doubles a page at most; only its attributes count.
    most = 1 + MAX_REPEATED_FORMATS // max(1, tags.starts)
    formats = formats_in(source, tags, most)
    if formats.heaviest_link > most:
        raise Rejected("formatting")
    if tags.starts <= _FEW and not _repeats(
        min(formats.number, _EQUAL + formats.unequal), tags.starts, formats.heaviest
    ):
        return
    if len(tags.at) <= _MOST_COUNTED:
        found = TagNames(source)
        at_once = found.most_open(_FLAT, _FORMATTING)
        repeats = _repeats(at_once.formatting, at_once.starts, formats.heaviest)
        if at_once.nested <= MAX_DEPTH and not repeats and found.starts("option") <= MAX_OPTIONS:
            return
    _refuse_tags(source, formats.heaviest)


def _repeats(formats: int, starts: int, weight: int = 1) -> bool:
    # Only what follows them repeats them. With as many formats as other elements this is largest.
    most = min(formats, starts // 2)
    return weight * most * (starts - most) > MAX_REPEATED_FORMATS


def _refuse_tags(source: bytes, weight: int = 1) -> None:
    # An end tag without its start tag closes nothing, so each name is counted by itself.
    depth = formats = most_formats = starts = options = 0
    unclosed: Counter[str] = Counter()
    for tag in _TAG.finditer(source):
        end, written = tag.groups()
        name = written.lower().decode()
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
    """Yields the stretches of at least `_LONG` bytes without ">"; skips the rest."""
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
        return False  # a script or a text
    inside = stretch[tag.start() :]
    return inside.count(b"=") > MAX_ATTRIBUTES or len(inside.split()) > MAX_ATTRIBUTES
