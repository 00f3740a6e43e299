"""Preprocessing of hostile pages: renames elements in the source that make the parser slow, keeping links and metas.

Time and memory of an HTML parser can be the product of two numbers that are both under the page author's control
(selectolax 1.0.2, one core):

    formatting elements left open x blocks behind them   500 <b a=..> and 10,000 <p>x, 44 kB            4.8 s, 1.8 GB
    their attributes x blocks behind them                an <a> of 3,000 attributes, 5,000 <p>x, 36 kB  2.2 s, 2.2 GB
    nested elements, squared                             30,000 <dl>, 117 kB                            1.4 s
    options, or attributes of <body>, squared            15,000, 120 kB                                 0.4 s

The first two follow from the rule that formatting elements which a block has closed are reopened behind it (HTML Living
Standard, 13.2.4.3). Only a parser can determine whether a page leaves any open: comments, quotes and tables hide end
tags. So all are renamed: `<b>` becomes `<j>`, an unknown element that is not reopened; 0.08 ms for a page of 160 KB. A
page of the other kinds is flattened: elements with children become empty ones.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import compress
from typing import NamedTuple

import numpy as np

from tasks.formats.html.open_elements import Tags
from tasks.formats.html.tag_names import FORMATTING, Names, all_tags

REPORTED = ("a", "area", "base", "frame", "iframe", "link", "meta", "p", "title")
"""Elements whose presence in a page is reported."""
ANCHOR = "z"
"""Name of the element `a` in a preprocessed page; in a flattened one it is an `area`."""

# So few cannot cost more than 7 ms however they are nested; 99 % of articles have no more.
_FEW_TAGS = 2048
_MAX_DEPTH = 512
# With so many tags the arrays of their depth take 60 MB.
_MOST_COUNTED = 500_000
_MAX_OPTIONS = 1000
# Attributes of every further one are added to the first one, and compared with all that it has.
_MAX_ROOTS = 16
# Elements that never nest in themselves without another element between, or have no content.
_FLAT = (
    *("area", "base", "br", "col", "dd", "dt", "embed", "hr", "img", "input", "li", "link", "meta", "option", "p"),
    *("param", "source", "td", "th", "tr", "track", "wbr"),
)

_A, _OPTION, _ROOT = 1, 254, 255
_NAMES = Names(
    dict(zip(FORMATTING, range(_A, 100), strict=False))
    | {b"opt": _OPTION, b"bod": _ROOT, b"htm": _ROOT}
    # The first in `REPORTED` is `a`.
    | {name.encode()[:3]: 100 + number for number, name in enumerate(REPORTED) if number}
)
_ALL = frozenset(REPORTED)
# Indices of `REPORTED` in the counts of kinds.
_COUNTS = np.array([_A, *range(101, 100 + len(REPORTED))])
# First letters with which the names of formatting elements are unknown names.
_OLD, _NEW = "abcefinstuABCEFINSTU", "zjywgkmvoxZJYWGKMVOX"
_RENAMED_LETTER = np.frombuffer(bytes.maketrans(_OLD.encode(), _NEW.encode()), np.uint8)
_BACK = str.maketrans(_NEW, _OLD)
_RENAMED = re.compile(r"(</?)((?:[zjkvx]|ot|wm)(?=[\t\n\f\r />])|jig|yod|gon|mob|vma|vtr)", re.I)

# In a flattened page, elements that say something, and those whose content is no markup. `bgsound` is an empty element
# that is allowed in a head, so the head continues behind it.
_FLATTENED = {b"a": b"area", b"html": b"bgsound", b"head": b"bgsound"} | {
    name: name
    for name in b"area base iframe link meta noembed noframes p plaintext script style textarea title xmp".split()
}
_PIECE = 256 << 10
_TAG = re.compile(rb"<(/?)([a-zA-Z][^\t\n\f\r /><]*)(?:(>)|((?=<))|)")


class Harmless(NamedTuple):
    """A page in which elements neither multiply nor nest without bound.

    Attributes:
        source: the page. Tags in attribute values are renamed like tags: see `as_written`.
        holds: those of `REPORTED` that it may contain; no others.
    """

    source: bytes
    holds: frozenset[str]


def defused(html: bytes) -> Harmless:
    """Makes a page harmless.

    Args:
        html: the page in UTF-8, or what claims to be.
    """
    tags = all_tags(html)
    if tags.starts > _FEW_TAGS and _is_deep(html, len(tags.at)):
        return Harmless(flattened(html), _ALL)
    named, kinds = _NAMES.find(html, tags)
    counts = np.bincount(kinds, minlength=256)
    if counts[_OPTION] > _MAX_OPTIONS or counts[_ROOT] > _MAX_ROOTS:
        return Harmless(flattened(html), _ALL)
    at = tags.at.take(named[kinds < 100])
    source = bytearray(html)
    octets = np.frombuffer(source, np.uint8)
    octets[at] = _RENAMED_LETTER.take(octets.take(at))
    return Harmless(bytes(source), _reported((counts.take(_COUNTS) > 0).tobytes()))


@lru_cache(maxsize=1 << len(REPORTED))
def _reported(some: bytes) -> frozenset[str]:
    return frozenset(compress(REPORTED, some))


def _is_deep(html: bytes, tags: int) -> bool:
    return tags > _MOST_COUNTED or Tags(html).most_open(_FLAT, ()).nested > _MAX_DEPTH


def flattened(html: bytes) -> bytes:
    """Returns a page without nested elements, links being `area` elements; not much longer than the page.

    Kept are links, meta elements, the title, paragraphs (which never nest by themselves), and what hides markup from a
    parser: scripts, styles and the like.
    """
    return b"".join(_TAG.sub(_flat, piece) for piece in _pieces(html))


def _pieces(html: bytes) -> Iterator[bytes]:
    """Yields a page in pieces that begin with a "<": a substitution needs twenty times the memory of its text."""
    at = 0
    while at < len(html):
        end = html.find(b"<", at + _PIECE)
        end = end if end >= 0 else len(html)
        yield html[at:end]
        at = end


def _flat(tag: re.Match[bytes]) -> bytes:
    end, name, closed, runs_on = tag.groups()
    new = _FLATTENED.get(name.lower())
    # A name that runs into the next tag is no tag but text, as "a<b" is at the end of a style sheet. A tag without
    # attributes has nothing to lose; the blank keeps a "<" before it from becoming one with what stands behind.
    if runs_on is not None or (new is None and closed):
        return b" " if tag.string[tag.start() - 1 : tag.start()] in (b"<", b"") else b""
    return b"<" + end + (new or b"wbr") + (closed or b"")


def as_written(value: str) -> str:
    """Returns the value of an attribute of a harmless page as the page has it.

    >>> as_written("/find?q=<j>x</j>")
    '/find?q=<b>x</b>'
    """
    return _RENAMED.sub(lambda tag: tag[1] + tag[2][0].translate(_BACK) + tag[2][1:], value) if "<" in value else value
