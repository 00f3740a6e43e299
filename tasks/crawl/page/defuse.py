"""Makes a page harmless to the parser, without a loss of links or meta elements: by other names in its source.

Work and memory of an HTML parser can be the product of two numbers that are both up to whoever writes the page
(selectolax 1.0.2, one core):

    formatting elements left open x blocks behind them   500 <b a=..> and 10,000 <p>x, 44 kB            4.8 s, 1.8 GB
    their attributes x blocks behind them                an <a> of 3,000 attributes, 5,000 <p>x, 36 kB  2.2 s, 2.2 GB
    nested elements, squared                             30,000 <dl>, 117 kB                            1.4 s
    options, or attributes of <body>, squared            15,000, 120 kB                                 0.4 s

The first two come of the rule that formatting elements which a block has closed are opened again behind it (HTML Living
Standard, 13.2.4.3). Whether a page leaves any open only a parser can tell: comments, quotes and tables hide end tags.
So no page has any: `<b>` becomes `<j>`, which nobody knows and which is opened once; 0.08 ms for a page of 160 KB. A
page of the other kinds is flattened: what holds other elements becomes empty.
"""

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tasks.open_elements import Tags

ANCHORS = frozenset({"z", "area"})
"""What links are called in a page that was made harmless."""

# So few cannot cost more than 7 ms however they are nested; 99 % of articles have no more.
_FEW_TAGS = 2048
_MAX_DEPTH = 512
# Of so many tags the arrays that tell how deep they are take 60 MB.
_MOST_COUNTED = 500_000
_MAX_OPTIONS = 1000
# Attributes of every further one are added to the first one, and compared with all that it has.
_MAX_ROOTS = 16
# Elements that never nest in themselves without another element between, or have no content.
_FLAT = (
    *("area", "base", "br", "col", "dd", "dt", "embed", "hr", "img", "input", "li", "link", "meta", "option", "p"),
    *("param", "source", "td", "th", "tr", "track", "wbr"),
)

_BEHIND_NAME = b"\t\n\f\r />"
# What tells an element by its first letters from all others that HTML knows: formatting elements, and what is counted.
_FORMATTING = (b"a", b"b", b"i", b"s", b"u", b"tt", b"em", b"big", b"cod", b"fon", b"nob", b"sma", b"str")
_OPTION, _ROOT = 254, 255
_COUNTED = ((b"opt", _OPTION), (b"bod", _ROOT), (b"htm", _ROOT))
# First letters with which the names of formatting elements are unknown names.
_OLD, _NEW = "abcefinstuABCEFINSTU", "zjywgkmvoxZJYWGKMVOX"
_RENAMED_LETTER = np.frombuffer(bytes.maketrans(_OLD.encode(), _NEW.encode()), np.uint8)
_BACK = str.maketrans(_NEW, _OLD)
_RENAMED = re.compile(r"(</?)((?:[zjkvx]|ot|wm)(?=[\t\n\f\r />])|jig|yod|gon|mob|vma|vtr)", re.I)

# In a flattened page, elements that say something, and those whose content is no markup. `bgsound` is an empty element
# that may stand in a head, so the head goes on behind it.
_FLATTENED = {b"a": b"area", b"html": b"bgsound", b"head": b"bgsound"} | {
    name: name
    for name in b"area base iframe link meta noembed noframes p plaintext script style textarea title xmp".split()
}
_PIECE = 256 << 10
_TAG = re.compile(rb"<(/?)([a-zA-Z][^\t\n\f\r /><]*)(?:(>)|((?=<))|)")


def _tables() -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Returns the kind of a name by its first two bytes, 0 for most, and which third bytes a name of a kind has."""
    kinds = np.zeros(1 << 16, np.uint8)
    thirds = np.zeros((256, 256), np.bool_)
    for begin, kind in (*zip(_FORMATTING, range(1, 100), strict=False), *_COUNTED):
        first, second, third = ([*((letter, letter ^ 32) for letter in begin), _BEHIND_NAME, range(256)])[:3]
        for one in first:
            for two in second:
                kinds[one | two << 8] = kind
        thirds[kind, list(third)] = True
    return kinds, thirds


_KINDS, _THIRDS = _tables()


def defused(html: bytes) -> bytes:
    """Returns a page in which elements neither multiply nor nest without bound; its links: see `ANCHORS`.

    Attribute values that hold tags are renamed like tags: see `as_written`.

    Args:
        html: the page in UTF-8, or what claims to be.
    """
    data = np.frombuffer(html + b"   ", np.uint8)
    at = np.flatnonzero(data == ord("<"))
    at += 1
    ends = data.take(at) == ord("/")
    starts = len(at) - int(np.count_nonzero(ends))
    if starts > _FEW_TAGS and _is_deep(html, len(at)):
        return flattened(html)
    at += ends
    kinds = _KINDS.take(np.ndarray(len(data) - 1, "<u2", data, strides=(1,))[at])
    named = np.flatnonzero(kinds)
    at, kinds = at[named], kinds[named]
    known = _THIRDS[kinds, data.take(at + 2)]
    at, kinds = at[known], kinds[known]
    counts = np.bincount(kinds, minlength=256)
    if counts[_OPTION] > _MAX_OPTIONS or counts[_ROOT] > _MAX_ROOTS:
        return flattened(html)
    at = at[kinds < _OPTION]
    tame = np.frombuffer(bytearray(html), np.uint8)
    tame[at] = _RENAMED_LETTER[data[at]]
    return tame.tobytes()


def _is_deep(html: bytes, tags: int) -> bool:
    return tags > _MOST_COUNTED or Tags(html).most_open(_FLAT, ()).nested > _MAX_DEPTH


def flattened(html: bytes) -> bytes:
    """Returns a page in which no element holds another, links being `area` elements; not much longer than the page.

    Kept are links, meta elements, the title, paragraphs (which never nest by themselves), and what hides markup from a
    parser: scripts, styles and the like.
    """
    return b"".join(_TAG.sub(_flat, piece) for piece in _pieces(html))


def _pieces(html: bytes) -> Iterator[bytes]:
    """Yields a page in pieces that begin with a "<": what a substitution holds is twenty times as long as its text."""
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
