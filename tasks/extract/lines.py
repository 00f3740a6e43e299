"""The lines of a page's main text as numbers: what the classifier of `blocks` sees of each line.

Reads resiliparse's reduced HTML (text with `p`, `h1` to `h6`, `pre`, `li`, `a`), used by `blocks` and by the script
that trains it. Nothing in here knows a language or a site: the numbers are lengths, shares of links, punctuation, the
place in the page, the lines around, and whether a line stands in the element that holds most of the page's paragraphs.
After Kohlschütter, Fankhauser, Nejdl, "Boilerplate Detection using Shallow Text Features" (WSDM 2010).
"""

import html
import math
import re
from collections import Counter
from itertools import accumulate, compress, pairwise, product
from operator import mul
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from resiliparse.parse.html import HTMLTree

# Stand in the text where the best element begins and ends, then its parent, then the parent of that. Control characters
# which no text holds any more when it has been cleaned.
STARTS, ENDS = "\x01\x03\x05", "\x02\x04\x06"
_MARKS = re.compile("[\x01-\x06]")
_TAG = re.compile(r"<[^>]*>")
_LINK = re.compile(r"<a [^>]*>(.*?)</a>")
_FIRST = re.compile(r"\s*<(h[1-6]|p|ul|ol|li)\b")
_SENTENCE_END = re.compile(r"[.!?…。！？][\"”’»)]*(?!\S)")
_SOCIAL = re.compile(r"https?://[^\"/]*(?:facebook|twitter|instagram|whatsapp|youtube|pinterest|linkedin)\.")
_NO_DIGITS = bytes(set(range(256)) - set(b"0123456789"))
_ENDS = frozenset(".!?…。！？")
_CLOSING = '"”’»)] '
_BULLETS = frozenset("[(•-–—>»*+|")
_QUOTES = frozenset("\"“«'‘„「")
_PARAGRAPH = 60
"""Characters from which a paragraph counts towards the best element."""
_LOOKED_AT = 16
_FAR = 5.0
_MOST_PARAGRAPHS = 2_000
# For each level one of three: before it, within, behind it.
_STATES = {
    inside: [float(state == held) for held in inside for state in range(3)]
    for inside in product(range(3), repeat=len(STARTS))
}
_GOOD = 20
"""Words from which a line of prose counts as such."""


class Line(NamedTuple):
    """One line of the main text.

    Attributes:
        text: without tags and marks; what is kept of the line.
        markup: with tags.
        inside: for each marked element 0 before it, 1 within, 2 behind it.
        fixed: preformatted text, which is not judged.
    """

    text: str
    markup: str
    inside: tuple[int, ...]
    fixed: bool


def mark_container(tree: HTMLTree) -> float:
    """Marks the element that is the parent of most paragraph text, and two around it.

    Returns:
        The share of the paragraph text that it holds; 0.0 where the page has no paragraphs.
    """
    held: dict[Any, int] = {}
    document = tree.document
    for paragraph in document.get_elements_by_tag_name("p")[:_MOST_PARAGRAPHS] if document is not None else ():
        length = len(paragraph.text or "")
        if length >= _PARAGRAPH:
            parent = paragraph.parent
            held[parent] = held.get(parent, 0) + length
    if not held:
        return 0.0
    element = best = max(held, key=held.__getitem__)
    for start, end in zip(STARTS, ENDS, strict=True):
        if element is None or element.tag in ("body", "html"):
            break
        element.prepend(tree.create_text_node(start))
        element.append(tree.create_text_node(end))
        element = element.parent
    return held[best] / sum(held.values())


def split_lines(reduced: str) -> list[Line | None]:
    """Splits reduced HTML into lines; None stands for an empty line."""
    found: list[Line | None] = []
    inside: tuple[int, ...] = (0,) * len(STARTS)
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
    """Returns where a line with marks stands, and where the one behind it does."""
    here, inside = list(before), list(before)
    for mark in _MARKS.findall(raw):
        level = (ord(mark) - 1) // 2
        inside[level] = 1 if mark in STARTS else 2
        # A line at whose end the element ends belongs to it.
        here[level] = 1
    return tuple(here), tuple(inside)


def features(lines: list[Line], title: str, share: float) -> NDArray[np.float64]:
    """Returns one row of numbers for each line; `share` is what `mark_container` returned."""
    words = [line.text.split() for line in lines]
    counts = [len(held) for held in words]
    repeats = Counter([line.text for line in lines])
    starts = [tuple(held[:2]) for held in words]
    openings = Counter(starts)
    # Few calls of numpy: each takes a microsecond or two whatever it is asked for, and a page has thirty lines. And
    # flat lists: numpy takes several times as long to see how lists are nested.
    flat: list[float] = []
    for line, held, start in zip(lines, words, starts, strict=True):
        flat += _own(line, held, title)
        flat += (math.log(repeats[line.text]), math.log(openings[start]))
        flat += _STATES[line.inside]
    columns = np.zeros((_COLUMNS, len(lines)))
    own = columns[:_PLACE]
    np.minimum(np.fromiter(flat, np.float64, len(flat)).reshape(len(lines), -1).T, _MOST, out=own)
    good = (np.array(counts) >= _GOOD) & _unlinked_sentence(own.T)
    flat = _places(counts, good.tolist())
    columns[_PLACE:_SHARE] = np.fromiter(flat, np.float64, len(flat)).reshape(-1, len(lines))
    columns[_SHARE] = share
    _around(own, columns[_SHARE + 1 :])
    return np.ascontiguousarray(columns.T)


def prose(lines: list[Line], rows: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Tells which lines are sentences of some length, with few links, around the best element; `rows` by `features`."""
    held = np.array([line.inside[1] == 1 for line in lines])
    return held & (rows[:, _LOG_WORDS] >= math.log1p(_GOOD)) & _unlinked_sentence(rows)


def _unlinked_sentence(rows: NDArray[np.float64]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (rows[:, _LINK_SHARE] < 0.3) & (rows[:, _ENDS_SENTENCE] > 0)
    return found


# Columns of `_own` that the lines around are asked for.
_LOG_WORDS, _LINK_SHARE, _IS_PARAGRAPH, _IS_HEADING, _ENDS_SENTENCE = range(5)
# Where the columns of `_places` begin, the one behind them, and how many columns there are.
_PLACE, _SHARE, _COLUMNS = 39, 55, 83
# What each column before those holds at most: shares 1, the numbers of links, sentences and bars, the length of words.
_MOST = np.full((_PLACE, 1), np.inf)
_MOST[[_LINK_SHARE, 11, 13, 18, 21, 26, 27], 0] = 1, 5, 5, 3, 20, 3, 3


def _own(line: Line, words: list[str], title: str) -> list[float]:
    text, markup = line.text.strip(), line.markup
    count, length = len(words) or 1, len(text) or 1
    first = _FIRST.match(markup)
    tag = first[1] if first else ""
    links = markup.count("<a ")
    linked = sum([len(_TAG.sub("", one)) for one in _LINK.findall(markup)]) / length if links else 0.0
    some = words[:_LOOKED_AT]
    ends = text.rstrip(_CLOSING)[-1:]
    begins = text[:1]
    return [
        math.log1p(len(words)),
        linked,
        tag == "p",
        tag[:1] == "h",
        ends in _ENDS,
        tag == "h1",
        tag == "h2",
        tag[1:] in ("i", "l"),
        tag == "",
        math.log1p(length),
        linked > 0.9,
        links,
        ends == ":",
        len(_SENTENCE_END.findall(text, 0, 400)),
        sum(map(str.isupper, [word[0] for word in some])) / (len(some) or 1),
        # In bytes, which are looked up in a table: no other way is as fast.
        len(text.encode("utf-8", "surrogatepass").translate(None, _NO_DIGITS)) / length,
        sum(map(title.__contains__, text.lower().split())) / count if count <= _LOOKED_AT else 0.0,
        text.count(",") / count,
        text.count("|"),
        "©" in text or "@" in text,
        text.isupper(),
        length / count,
        begins in _BULLETS,
        begins.islower(),
        begins in _QUOTES,
        bool(links and _SOCIAL.search(markup)),
        markup.count('href="#') if links else 0,
        markup.count('href="/') if links else 0,
    ]


def _places(counts: list[int], good: list[bool]) -> list[float]:
    """Returns where lines stand: in the page, and between the first and the last line of prose; column by column."""
    number = len(counts)
    # Of every distance there may be; by numpy, as in training, for `math.log1p` may differ in the last digit.
    logs: list[float] = np.log1p(np.arange(number + 1)).tolist()
    places = list(compress(range(number), good))
    first, last = (places[0], places[-1]) if places else (0, number - 1)
    ahead, behind = logs[first:0:-1], logs[1 : number - last]
    previous = following = [_FAR] * number
    if places:
        gaps = [later - earlier for earlier, later in pairwise(places)]
        previous = [_FAR] * (first + 1) + [log for gap in gaps for log in logs[1 : gap + 1]] + behind
        following = ahead + [log for gap in gaps for log in logs[gap:0:-1]] + [_FAR] * (number - last)
    prose = list(map(mul, counts, good))
    all_prose, all_words = sum(prose) or 1, sum(counts) or 1
    return [
        *[index / number for index in range(number)],
        *logs[:-1],
        *logs[:0:-1],
        *[(upto - count) / all_words for upto, count in zip(accumulate(counts), counts, strict=True)],
        *[count / all_words for count in counts],
        *[1.0] * first + [0.0] * (number - first),
        *[0.0] * (last + 1) + [1.0] * (number - last - 1),
        *ahead + [0.0] * (number - first),
        *[0.0] * (last + 1) + behind,
        *previous,
        *following,
        *[(upto - count) / all_prose for upto, count in zip(accumulate(prose), prose, strict=True)],
        *[(all_prose - upto) / all_prose for upto in accumulate(prose)],
        *[math.log1p(number)] * number,
        *[math.log1p(all_words)] * number,
        *[len(places) / number] * number,
    ]


def _around(own: NDArray[np.float64], found: NDArray[np.float64]) -> None:
    """Fills in what the two lines before and behind are like, and the mean of the seven around."""
    number = own.shape[1]
    seen = np.ones((_ENDS_SENTENCE + 2, number))
    seen[:-1] = own[: _ENDS_SENTENCE + 1]
    width = len(seen)
    found[:width, 2:] = seen[:, :-2]
    found[width : 2 * width, 1:] = seen[:, :-1]
    found[2 * width : 3 * width, :-1] = seen[:, 1:]
    found[3 * width : 4 * width, :-2] = seen[:, 2:]
    sums = np.zeros((width, number + 7))
    seen.cumsum(axis=1, out=sums[:, 4:-3])
    sums[:, -3:] = sums[:, -4:-3]
    window = sums[:, 7:] - sums[:, :-7]
    found[4 * width :] = window[[_LOG_WORDS, _LINK_SHARE, _ENDS_SENTENCE]] / window[-1]
