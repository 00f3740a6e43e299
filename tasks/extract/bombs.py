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
from collections.abc import Iterator
from typing import NamedTuple

from tasks.extract.row import Rejected

MAX_DEPTH = 4_000
MAX_ATTRIBUTES = 10_000
MAX_OPTIONS = 10_000
# A paragraph repeats every formatting element that was left open before it (HTML Living Standard, section 13.2.4.3).
MAX_REPEATED_FORMATS = 1_000_000

_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)")
# Elements that have no end tag, or whose end tag authors leave out: they do not nest.
_FLAT = frozenset(
    (
        *("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "wbr"),
        *("body", "colgroup", "dd", "dt", "head", "html", "li", "optgroup", "option", "p", "rp", "rt"),
        *("tbody", "td", "tfoot", "th", "thead", "tr", "track"),
    )
)
# Without `a` and `nobr`: a second one closes the first, so they do not pile up.
_FORMATTING = ("b", "big", "code", "em", "font", "i", "s", "small", "strike", "strong", "tt", "u")
_FORMAT_TAGS = frozenset((*_FORMATTING, *(f"/{name}" for name in _FORMATTING)))
# Names in both cases spelled out, because that takes half as long as the flag; the first letter tells most tags apart.
_EITHER_CASE = ("".join(f"[{letter}{letter.upper()}]" for letter in name) for name in _FORMATTING)
_FORMAT_START = re.compile(rf"<(?=[bcefistuBCEFISTU])(?:{'|'.join(_EITHER_CASE)})[\s/>]")
_TAG_START = re.compile(r"<[a-zA-Z]")
_TAG_NAME = re.compile(r"<(/?[a-zA-Z][a-zA-Z0-9]*)")
# So few start tags pass no limit: 1,000 formatting elements before 1,000 others are repeated a million times.
_FEW = 2_000
# Tags that are counted at one time, and tags of which a list of all names is no burden.
_STRETCH = 1_000
_MOST_LISTED = 200_000
# Ten thousand attributes of one letter each, and the spaces between them.
_LONG = 2 * MAX_ATTRIBUTES


def refuse_bombs(html: str) -> None:
    """Raises Rejected with reason `nesting`, `formatting`, `options` or `attributes` for a page made to stall."""
    if _may_stall(html):
        _refuse_tags(html)
    if any(map(_has_many_attributes, _long_stretches(html))):
        raise Rejected("attributes")


def _may_stall(html: str) -> bool:
    """Tells whether tags may pass a limit, by upper bounds, the cheapest first: nearly every page stays below them."""
    tags = html.count("<")
    if tags <= _FEW:
        return False
    # A start tag has no slash: on most pages that halves the number.
    starts = tags if tags <= MAX_DEPTH else tags - html.count("</")
    if starts <= _FEW or (starts <= MAX_DEPTH and not _repeats(len(_FORMAT_START.findall(html)), starts)):
        return False
    if tags > _MOST_LISTED:
        return True
    names = _TAG_NAME.findall(html)
    bound = _bound(names)
    return (
        bound.depth > MAX_DEPTH
        or bound.options > MAX_OPTIONS
        or (_repeats(bound.formats, starts) and _repeats(_open_formats(names), starts))
    )


def _repeats(formats: int, starts: int) -> bool:
    # Only what follows them repeats them. With as many formats as other elements this is largest.
    return min(formats, starts // 2) * (starts - min(formats, starts // 2)) > MAX_REPEATED_FORMATS


class _Bound(NamedTuple):
    """What is never less than the elements open at one time, of them the formatting ones, and all options."""

    depth: int
    formats: int
    options: int


def _bound(names: list[str]) -> _Bound:
    """Bounds what tags of these names do, in this order; those of end tags begin with a slash.

    Names are counted by stretches: of the elements that are open before a stretch its end tags close what they can, and
    none of the elements that begin in it. So what comes out is never less than what going from tag to tag would find.
    """
    still_open: Counter[str] = Counter()
    depth = formats = options = 0
    for begin in range(0, len(names), _STRETCH):
        opened: Counter[str] = Counter()
        closed: Counter[str] = Counter()
        for written, count in Counter(names[begin : begin + _STRETCH]).items():
            name = written.lower()
            if name[0] == "/":
                closed[name[1:]] += count
            elif name not in _FLAT:
                opened[name] += count
            elif name == "option":
                options += count
        depth = max(depth, still_open.total() + opened.total())
        formats = max(formats, sum(still_open[name] + opened[name] for name in _FORMATTING))
        for name in closed.keys() & still_open.keys():
            still_open[name] = max(0, still_open[name] - closed[name])
        still_open.update(opened)
    return _Bound(depth, formats, options)


def _open_formats(names: list[str]) -> int:
    """Returns how many formatting elements are open at one time, at most."""
    formatting = {name: name.lower() for name in set(names) if name.lower() in _FORMAT_TAGS}
    still_open = dict.fromkeys(_FORMATTING, 0)
    formats = most = 0
    for written in filter(formatting.__contains__, names):
        tag = formatting[written]
        if tag[0] != "/":
            still_open[tag] += 1
            formats += 1
            most = max(most, formats)
        elif still_open[tag[1:]]:
            still_open[tag[1:]] -= 1
            formats -= 1
    return most


def _refuse_tags(html: str) -> None:
    # An end tag without its start tag closes nothing, so each name is counted by itself.
    depth = formats = most_formats = starts = options = 0
    unclosed: Counter[str] = Counter()
    for tag in _TAG.finditer(html):
        end, written = tag.groups()
        name = written.lower()
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
    if _repeats(most_formats, starts):
        raise Rejected("formatting")
    if options > MAX_OPTIONS:
        raise Rejected("options")


def _long_stretches(html: str) -> Iterator[str]:
    """Yields the stretches of at least `_LONG` characters that end no tag; jumps over the rest."""
    start = 0
    while start + _LONG <= len(html):
        end = html.rfind(">", start, start + _LONG)
        if end >= 0:
            start = end + 1
            continue
        end = html.find(">", start)
        end = len(html) if end < 0 else end
        yield html[start:end]
        start = end + 1


def _has_many_attributes(stretch: str) -> bool:
    if not (tag := _TAG_START.search(stretch)):
        return False  # a script or a text
    inside = stretch[tag.start() :]
    return inside.count("=") > MAX_ATTRIBUTES or len(inside.split()) > MAX_ATTRIBUTES
