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
from dataclasses import dataclass
from typing import Any

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
_SENTENCE_END = re.compile(r"[.!?…。！？][\"”’»)]*(?=\s|$)")
_SOCIAL = re.compile(r"https?://[^\"/]*(?:facebook|twitter|instagram|whatsapp|youtube|pinterest|linkedin)\.")
_ENDS = frozenset(".!?…。！？")
_CLOSING = '"”’»)] '
_BULLETS = frozenset("[(•-–—>»*+|")
_QUOTES = frozenset("\"“«'‘„「")
_PARAGRAPH = 60
"""Characters from which a paragraph counts towards the best element."""
_LOOKED_AT = 16
_MOST_PARAGRAPHS = 2_000
_STATES = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
_GOOD = 20
"""Words from which a line of prose counts as such."""


@dataclass(frozen=True)
class Line:
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
    for paragraph in tree.document.query_selector_all("p")[:_MOST_PARAGRAPHS] if tree.document is not None else ():
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
        element.insert_before(tree.create_text_node(start), element.first_child)
        element.append_child(tree.create_text_node(end))
        element = element.parent
    return held[best] / sum(held.values())


def split_lines(reduced: str) -> list[Line | None]:
    """Splits reduced HTML into lines; None stands for an empty line."""
    found: list[Line | None] = []
    inside = [0] * len(STARTS)
    fixed = False
    for raw in reduced.split("\n"):
        here, markup = inside, raw
        if _MARKS.search(raw):
            here = list(inside)
            for mark in _MARKS.findall(raw):
                level = (ord(mark) - 1) // 2
                inside[level] = here[level] = 1 if mark in STARTS else 2
                # A line at whose end the element ends belongs to it.
                here[level] = 1
            markup = _MARKS.sub("", raw)
        begins = "<pre>" in markup
        text = _TAG.sub("", markup) if "<" in markup else markup
        text = html.unescape(text) if "&" in text else text
        stays = fixed or begins
        fixed = "</pre>" not in markup if begins else fixed and "</pre>" not in markup
        found.append(Line(text, markup, tuple(here), stays) if text.strip() or stays else None)
    return found


def features(lines: list[Line], title: str, share: float) -> NDArray[np.float64]:
    """Returns one row of numbers for each line; `share` is what `mark_container` returned."""
    words = [line.text.split() for line in lines]
    repeats = Counter([line.text for line in lines])
    starts = [tuple(held[:2]) for held in words]
    openings = Counter(starts)
    # One flat list: numpy takes several times as long to see how lists are nested.
    flat: list[float] = []
    for line, held, start in zip(lines, words, starts, strict=True):
        flat += _own(line, held, title)
        flat += (math.log(repeats[line.text]), math.log(openings[start]))
        for state in line.inside:
            flat += _STATES[state]
    own = np.fromiter(flat, np.float64, len(flat)).reshape(len(lines), -1)
    counts = np.fromiter(map(len, words), np.float64, len(words))
    return np.concatenate([own, _place(own, counts, share), _around(own)], axis=1)


def prose(lines: list[Line], rows: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Tells which lines are sentences of some length, with few links, around the best element; `rows` by `features`."""
    held = np.array([line.inside[1] == 1 for line in lines])
    return held & (rows[:, _LOG_WORDS] >= math.log1p(_GOOD)) & _unlinked_sentence(rows)


def _unlinked_sentence(rows: NDArray[np.float64]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (rows[:, _LINK_SHARE] < 0.3) & (rows[:, _ENDS_SENTENCE] > 0)
    return found


# Columns of `_own` that the lines around are asked for.
_LOG_WORDS, _LINK_SHARE, _IS_PARAGRAPH, _IS_HEADING, _ENDS_SENTENCE = range(5)
_NEIGHBOURS = 2


def _own(line: Line, words: list[str], title: str) -> list[float]:
    text, markup = line.text.strip(), line.markup
    count, length = len(words), max(1, len(text))
    first = _FIRST.match(markup)
    tag = first[1] if first else ""
    links = markup.count("<a ")
    linked = sum(len(_TAG.sub("", one)) for one in _LINK.findall(markup)) / length if links else 0.0
    some = words[:_LOOKED_AT]
    ends = text.rstrip(_CLOSING)[-1:]
    return [
        math.log1p(count),
        min(linked, 1.0),
        tag == "p",
        tag[:1] == "h",
        ends in _ENDS and ends != "",
        tag == "h1",
        tag == "h2",
        tag[1:] in ("i", "l"),
        tag == "",
        math.log1p(length),
        linked > 0.9,
        min(links, 5),
        ends == ":",
        min(len(_SENTENCE_END.findall(text[:400])), 5),
        sum([word[0].isupper() for word in some]) / max(1, len(some)),
        sum(map(text.count, "0123456789")) / length,
        sum([word in title for word in text.lower().split()]) / max(1, count) if count <= _LOOKED_AT else 0.0,
        text.count(",") / max(1, count),
        min(text.count("|"), 3),
        "©" in text or "@" in text,
        text.isupper(),
        min(length / max(1, count), 20.0),
        text[:1] in _BULLETS,
        text[:1].islower(),
        text[:1] in _QUOTES,
        bool(links and _SOCIAL.search(markup)),
        min(markup.count('href="#'), 3) if links else 0,
        min(markup.count('href="/'), 3) if links else 0,
    ]


def _place(own: NDArray[np.float64], counts: NDArray[np.float64], share: float) -> NDArray[np.float64]:
    """Where lines stand: in the page, and between the first and the last line of prose."""
    number = len(own)
    index = np.arange(number)
    good = (counts >= _GOOD) & _unlinked_sentence(own)
    prose = np.where(good, counts, 0.0)
    before = np.cumsum(prose) - prose
    total, all_words = max(1.0, prose.sum()), max(1.0, counts.sum())
    places = np.flatnonzero(good)
    first, last = (places[0], places[-1]) if len(places) else (0, number - 1)
    previous = np.maximum.accumulate(np.where(good, index, -1))
    previous = np.concatenate([[-1], previous[:-1]])
    following = np.minimum.accumulate(np.where(good, index, number)[::-1])[::-1]
    following = np.concatenate([following[1:], [number]])
    far = 5.0
    found = np.empty((number, 17))
    found[:, 0] = index / number
    found[:, 1] = np.log1p(index)
    found[:, 2] = np.log1p(number - index)
    found[:, 3] = (np.cumsum(counts) - counts) / all_words
    found[:, 4] = counts / all_words
    found[:, 5] = index < first
    found[:, 6] = index > last
    found[:, 7] = np.log1p(np.maximum(first - index, 0))
    found[:, 8] = np.log1p(np.maximum(index - last, 0))
    found[:, 9] = np.where(previous < 0, far, np.log1p(index - previous))
    found[:, 10] = np.where(following >= number, far, np.log1p(following - index))
    found[:, 11] = before / total
    found[:, 12] = (total - before - prose) / total
    found[:, 13:] = math.log1p(number), math.log1p(all_words), len(places) / number, share
    return found


def _around(own: NDArray[np.float64]) -> NDArray[np.float64]:
    """What the two lines before and behind are like, and the mean of the seven around."""
    number, width = len(own), 3
    padded = np.zeros((number + 2 * width, _ENDS_SENTENCE + 2))
    padded[width:-width, :-1] = own[:, : _ENDS_SENTENCE + 1]
    padded[width:-width, -1] = 1.0
    near = [padded[width + step : width + step + number] for step in (-2, -1, 1, 2)]
    sums = np.zeros((number + 2 * width + 1, padded.shape[1]))
    np.cumsum(padded, axis=0, out=sums[1:])
    window = sums[2 * width + 1 :] - sums[: -2 * width - 1]
    mean = window[:, [_LOG_WORDS, _LINK_SHARE, _ENDS_SENTENCE]] / window[:, -1:]
    return np.concatenate([*near, mean], axis=1)
