"""Features of the lines of a page's main text, for the trees of `blocks`.

Reads the lines of `lines`. The features do not depend on language or site: lengths, character classes, links, position
in the page, and whether a line is in the element with most of the page's paragraphs. After Kohlschütter, Fankhauser,
Nejdl, "Boilerplate Detection using Shallow Text Features" (WSDM 2010). They are counts and quotients of counts, so
every machine computes the same values.
"""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tasks.stages.extract.lines import LEVELS, Line

COLUMNS = (
    *("words", "length", "word_length", "sentences", "capitals", "digits", "commas", "bars", "signs", "all_upper"),
    *("ends_sentence", "ends_colon", "begins_bullet", "begins_lower", "begins_quote"),
    *("in_title", "repeats", "openings"),
    *("tag", "link_share", "links", "social", "fragments", "same_site"),
    *(f"inside_{level}" for level in range(LEVELS)),
    *(f"within_{level}" for level in range(LEVELS)),
    *("place", "index", "index_from_end", "words_before", "words_share", "before_prose", "behind_prose"),
    *("to_first_prose", "from_last_prose", "since_prose", "until_prose", "prose_before", "prose_behind"),
    *("lines", "all_words", "prose_share", "container_share"),
)
"""Names of the features, in order."""

_AT = {name: index for index, name in enumerate(COLUMNS)}
_WORDS, _LINK_SHARE, _ENDS_SENTENCE = _AT["words"], _AT["link_share"], _AT["ends_sentence"]
_TAG_COLUMN, _LINKED, _INSIDE, _PLACE = _AT["tag"], _AT["link_share"], _AT["inside_0"], _AT["place"]

_GOOD = 20
"""Minimum number of words of a line of prose."""
_UNLINKED = 0.3
_HALF = 0.5
_FAR = 1_000
_LOOKED_AT = 1_000  # characters of a line
_TITLE_WORDS = 16
_OPENING = 8  # characters
_TAG = re.compile(r"<[^>]*>")
_LINK = re.compile(r"<a [^>]*>(.*?)</a>")
# Rank of a line's element as a heading; 0 for text without an element of its own.
_TAGS = {"<p>": 1, "<ul": 2, "<ol": 2, "<li": 2, "<h6": 3, "<h5": 3, "<h4": 3, "<h3": 3, "<h2": 4, "<h1": 5}
_SOCIAL = ("facebook.", "twitter.", "instagram.", "whatsapp.", "youtube.", "pinterest.", "linkedin.")

# Kinds of characters, less than 16, so that a pair of kinds is one byte.
_OTHER, _SPACE, _UPPER, _LOWER, _DIGIT, _COMMA, _END, _CLOSING, _BAR, _SIGN, _BULLET, _QUOTE, _COLON = range(13)
_PUNCTUATION = {
    _COMMA: ",",
    _END: ".!?…。！？",
    _CLOSING: '"”’»)]',
    _BAR: "|",
    _SIGN: "©@",
    _BULLET: "[(•-–—>*+",
    _QUOTE: "'“«‘„「",
    _COLON: ":",
}
_LAST = 0xFFFF


def _kinds() -> NDArray[np.uint8]:
    kinds = np.zeros(_LAST + 1, np.uint8)
    # Above these no script has two cases, but for some hundred letters; full width is folded nowhere else either.
    for code in range(0x2000):
        letter = chr(code)
        kinds[code] = _SPACE * letter.isspace() + _UPPER * letter.isupper() + _LOWER * letter.islower()
    kinds[ord("0") : ord("9") + 1] = _DIGIT
    kinds[[*range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000]] = _SPACE
    for kind, letters in _PUNCTUATION.items():
        kinds[[ord(letter) for letter in letters]] = kind
    return kinds


def _counted() -> NDArray[np.float64]:
    """Returns which pairs of neighbouring kinds count as what: pair, one of `_COUNTS`."""
    pairs = np.zeros((16, 16, 9))
    pairs[_SPACE, :, 0] = 1  # a word begins
    pairs[_SPACE, _SPACE, 0] = 0
    pairs[_SPACE, _UPPER, 1] = 1
    pairs[_END, [_SPACE, _CLOSING], 2] = 1
    for column, kind in enumerate((_DIGIT, _COMMA, _BAR, _SIGN, _UPPER, _LOWER), 3):
        pairs[:, kind, column] = 1
    return pairs.reshape(256, 9)


_KINDS, _COUNTED = _kinds(), _counted()


def features(lines: Sequence[Line], title: str, share: float) -> NDArray[np.float64]:
    """Returns the features of lines, at least one: float64 of shape (`COLUMNS`, lines).

    Args:
        lines: the lines to classify.
        title: of the page, in lower case.
        share: result of `lines.mark_container`.
    """
    texts = [line.text.strip() for line in lines]
    found = np.zeros((len(COLUMNS), len(lines)))
    _characters(texts, found)
    _markup(lines, texts, found)
    words = found[_WORDS]
    short = np.flatnonzero(words <= _TITLE_WORDS).tolist()
    found[_AT["in_title"], short] = [_in_title(texts[index], title) for index in short]
    repeats, openings = Counter(texts), Counter([text[:_OPENING] for text in texts])
    found[_AT["repeats"]] = [repeats[text] for text in texts]
    found[_AT["openings"]] = [openings[text[:_OPENING]] for text in texts]
    inside = found[_INSIDE : _INSIDE + LEVELS]
    inside[:] = np.array([state for line in lines for state in line.inside]).reshape(-1, LEVELS).T
    found[_INSIDE + LEVELS : _PLACE] = inside == 1
    _places(words, found[_PLACE:], prose(found))
    found[-1] = share
    return found


def prose(measured: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Returns a mask of the lines that are long sentences with few links; `measured` by `features`."""
    unlinked = measured[_LINK_SHARE] < _UNLINKED
    found: NDArray[np.bool_] = unlinked & (measured[_ENDS_SENTENCE] > 0) & (measured[_WORDS] >= _GOOD)
    return found


def prose_around(measured: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Returns a mask of the lines that are prose in the parent of the best element.

    If the best element contains less than half of the paragraph text, all prose counts.
    """
    around = (measured[_AT["within_1"]] > 0) | (measured[_AT["container_share"]] < _HALF)
    found: NDArray[np.bool_] = around & prose(measured)
    return found


def _characters(texts: Sequence[str], found: NDArray[np.float64]) -> None:
    """Counts character classes by pairs of neighbours in one call: a call of NumPy costs as much as 500 characters."""
    looked_at = [text[:_LOOKED_AT] for text in texts]
    lengths = np.array([len(text) for text in looked_at])
    codes = np.frombuffer(("\n" + "\n".join(looked_at) + "\n").encode("utf-32-le", "surrogatepass"), np.uint32)
    kinds = _KINDS[np.minimum(codes, _LAST)]
    pairs = kinds[:-1] * np.uint8(16) + kinds[1:]
    ends = np.cumsum(lengths + 1)
    of_line = np.repeat(np.arange(len(texts)) << 8, lengths + 1)
    counts = np.bincount(of_line + pairs, minlength=len(texts) << 8).reshape(-1, 256) @ _COUNTED
    words, capitals, sentences, digits, commas, bars, signs, upper, lower = counts.T
    at_least_one, long = np.maximum(words, 1), np.maximum(lengths, 1)
    first, last = kinds[ends - lengths], kinds[ends - 1]
    last = np.where(last == _CLOSING, kinds[ends - 2], last)
    whole = np.array([len(text) for text in texts])
    of_all = whole / long  # extrapolates from the part of the line that is read
    for name, column in (
        ("words", words * of_all),
        ("length", whole),
        ("sentences", sentences),
        ("capitals", capitals / at_least_one),
        ("digits", digits / long),
        ("commas", commas / at_least_one),
        ("bars", bars),
        ("signs", signs > 0),
        ("all_upper", (upper > 0) & (lower == 0)),
        ("word_length", lengths / at_least_one),
        ("ends_sentence", last == _END),
        ("ends_colon", last == _COLON),
        ("begins_bullet", (first == _BULLET) | (first == _BAR)),
        ("begins_lower", first == _LOWER),
        ("begins_quote", (first == _QUOTE) | (first == _CLOSING)),
    ):
        found[_AT[name]] = column


def _in_title(text: str, title: str) -> float:
    words = text.lower().split()
    return sum(map(title.__contains__, words)) / (len(words) or 1)


def _markup(lines: Sequence[Line], texts: Sequence[str], found: NDArray[np.float64]) -> None:
    markups = [line.markup.lstrip() for line in lines]
    found[_TAG_COLUMN] = [_TAGS.get(markup[:3], 0) for markup in markups]
    for index, markup in enumerate(markups):
        if links := markup.count("<a "):
            linked = sum([len(_TAG.sub("", one) if "<" in one else one) for one in _LINK.findall(markup)])
            found[_LINKED:_INSIDE, index] = (
                min(linked / (len(texts[index]) or 1), 1.0),
                links,
                any(map(markup.__contains__, _SOCIAL)),
                markup.count('href="#'),
                markup.count('href="/'),
            )


def _places(words: NDArray[np.float64], found: NDArray[np.float64], good: NDArray[np.bool_]) -> None:
    """Fills in the positions of lines: in the page, and relative to the first and the last line of prose."""
    number = len(words)
    index = np.arange(number)
    places = np.flatnonzero(good)
    first, last = (places[0], places[-1]) if len(places) else (0, number - 1)
    before = np.full(number, -_FAR)
    before[1:] = np.maximum.accumulate(np.where(good, index, -_FAR))[:-1]
    behind = np.full(number, number + _FAR)
    behind[:-1] = np.minimum.accumulate(np.where(good, index, number + _FAR)[::-1])[::-1][1:]
    upto, prose_words = np.cumsum(words), np.where(good, words, 0.0)
    prose_upto = np.cumsum(prose_words)
    all_words, all_prose = upto[-1] or 1.0, prose_upto[-1] or 1.0
    for row, column in enumerate(
        (
            *(index / number, index, number - 1 - index),
            *((upto - words) / all_words, words / all_words),
            *(index < first, index > last, np.maximum(first - index, 0), np.maximum(index - last, 0)),
            *(np.minimum(index - before, _FAR), np.minimum(behind - index, _FAR)),
            *((prose_upto - prose_words) / all_prose, (all_prose - prose_upto) / all_prose),
            *(number, all_words, len(places) / number),
        )
    ):
        found[row] = column
