r"""Tokenization for n-gram models: splits batches of texts into hashes of words.

Reads and writes nothing. The same code serves training and scoring.

As in CCNet (Wenzek et al. 2019, arXiv 1911.00359), text is lower-cased, every digit becomes 0, and typographic marks
become their ASCII equivalents, so that numbers and kinds of quotation marks do not fill the vocabulary. Unlike CCNet,
accents are kept, since missing accents indicate poor text, and words are not split into SentencePiece tokens, which
would need another model. The rules:

- A word is a run of letters, digits and their combining marks; in scripts without spaces (Thai, Han, kana ...) words
  are those of a dictionary (`tasks.formats.documents.words`). Any other visible character, except Tibetan's mark
  between syllables, is a word: `don't` is three words.
- A line is a sentence unless it is blank. A line of more than 2^17 characters is split, at a space if it has one.
- Invisible format characters (soft hyphen, zero-width joiners, variation selectors) are ignored.

A word is identified by a 64-bit hash of its code points: a polynomial modulo 2^64 over random values of the characters,
which prefix sums compute for all words of a block at once. The probability of a collision among a million words is
3e-8.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tasks.formats.documents.text import mix
from tasks.formats.documents.words import TSEK, WORDS, spaced

VERSION = f"2, {WORDS}"
"""Stored in models; incremented when texts are split differently."""

BLOCK = 1 << 17
"""Code points that are split at once: they fit into the processor's caches."""

# Classes of characters. `_bound` depends on their order.
_SPACE, _LINE_END, _MARK, _JOINED, _IN_WORD, _ABSENT = range(6)
# Everything up to the last letter of the Tertiary Ideographic Plane; the few points beyond are invisible or private.
_POINTS = 0x33480
_LINE_ENDS = frozenset("\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")
_TSEK = frozenset(map(chr, TSEK))
_QUOTES = {**dict.fromkeys("‘’‚‛‹›ʼ′`´", "'"), **dict.fromkeys("“”„‟«»″「」『』〝〞", '"')}
_STOPS = {"。": ".", "、": ",", "…": ".", "•": "*", "·": "*", "−": "-", "⁄": "/"}

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FACTOR = 0xD1342543DE82EF95  # odd, so that it has an inverse modulo 2^64
_INVERSE = pow(_FACTOR, -1, 1 << 64)


@dataclass(frozen=True)
class WordBlock:
    """Words of some texts, or of parts of them.

    Attributes:
        hashes: uint64 of shape (n,): the words.
        sentences: int64 of shape (n_sentences + 1,): index of the first word of each sentence, and n.
        owner: int64 of shape (n_sentences,): index of the text of each sentence.
    """

    hashes: NDArray[np.uint64]
    sentences: NDArray[np.int64]
    owner: NDArray[np.int64]
    _codes: NDArray[np.uint32]
    _starts: NDArray[np.int64]
    _ends: NDArray[np.int64]

    def spelling(self, index: int) -> str:
        """Returns word `index` in normalized form."""
        codes = self._codes[self._starts[index] : self._ends[index]]
        return _tables().folded[np.minimum(codes, _POINTS)].tobytes().decode("utf-32-le", "surrogatepass")


def split(texts: Sequence[str]) -> Iterator[WordBlock]:
    """Yields the words of texts block by block; the sentences of a text are in order, in one block or in several.

    The words of a text do not depend on the other texts.
    """
    pieces: list[str] = []
    owners: list[int] = []
    size = 0
    for number, text in enumerate(texts):
        for piece in _pieces(spaced(text)):
            if pieces and size + len(piece) > BLOCK:
                yield _block(pieces, owners)
                pieces, owners, size = [], [], 0
            pieces.append(piece)
            owners.append(number)
            size += len(piece) + 1
    if pieces:
        yield _block(pieces, owners)


def words(text: str) -> list[list[str]]:
    r"""Returns the words of each sentence in normalized form.

    >>> words("Don't panic:\n\n42 towels…")
    [['don', "'", 't', 'panic', ':'], ['00', 'towels', '.']]
    """
    sentences = []
    for block in split([text]):
        spellings = [block.spelling(index) for index in range(len(block.hashes))]
        sentences += [spellings[begin:end] for begin, end in pairwise(block.sentences.tolist())]
    return sentences


def hash_words(spellings: Sequence[str]) -> NDArray[np.uint64]:
    """Returns the hashes of words in normalized form, as `split` computes them, shape (len(spellings),)."""
    hashes = [np.empty(0, np.uint64)]
    for begin in range(0, len(spellings), 4096):
        batch = spellings[begin : begin + 4096]
        codes = _code_points("".join(batch))
        sizes = np.array([len(word) for word in batch], np.int64)
        ends = np.cumsum(sizes)
        values = _mixed(codes.astype(np.uint64))
        hashes.append(_hashes(values, ends - sizes, ends))
    return np.concatenate(hashes)


def _pieces(text: str) -> Iterator[str]:
    begin = 0
    while len(text) - begin >= BLOCK:
        cut = text.rfind("\n", begin, begin + BLOCK)
        if cut <= begin:
            cut = text.rfind(" ", begin, begin + BLOCK)
        if cut <= begin:
            cut = begin + BLOCK - 1
        yield text[begin:cut]
        begin = cut
    yield text[begin:] if begin else text


def _block(pieces: list[str], owners: list[int]) -> WordBlock:
    tables = _tables()
    codes = _code_points("\n".join(pieces))
    points = np.minimum(codes, _POINTS)
    kinds = tables.kinds[points]
    offsets = np.cumsum([0, *(len(piece) + 1 for piece in pieces)])[:-1]
    if (absent := kinds == _ABSENT).any():
        present = np.flatnonzero(~absent)
        offsets = np.searchsorted(present, offsets)
        codes, points, kinds = codes[present], points[present], kinds[present]
    before = np.concatenate(([np.uint8(_LINE_END)], kinds))
    after = np.concatenate((kinds, [np.uint8(_LINE_END)]))
    transitions = tables.bounds[before << np.uint8(3) | after]  # 0 none, 1 end of a word, 2 its beginning, 3 line end
    bounds = np.flatnonzero(transitions)
    first = np.flatnonzero(transitions[bounds] == 2)
    starts = bounds[first]
    # The line end that closes the block is a bound too, so every word has a bound after it.
    ends = bounds[first + 1]
    lines = np.cumsum(transitions[bounds] == 3)[first]
    sentences = np.flatnonzero(np.diff(lines, prepend=-1))
    owner = np.asarray(owners)[np.searchsorted(offsets, starts[sentences], side="right") - 1]
    hashes = _hashes(tables.values[points], starts, ends)
    return WordBlock(hashes, np.append(sentences, len(starts)), owner, codes, starts, ends)


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)


def _hashes(values: NDArray[np.uint64], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Returns for each word the sum of value[k] * FACTOR^(k - start) over its characters."""
    sums = np.zeros(len(values) + 1, np.uint64)
    np.cumsum(values * _powers(_FACTOR, len(values)), out=sums[1:])
    hashes: NDArray[np.uint64] = (sums[ends] - sums[starts]) * _powers(_INVERSE, len(values) + 1)[starts]
    return hashes


_cached_powers: dict[int, NDArray[np.uint64]] = {}


def _powers(base: int, count: int) -> NDArray[np.uint64]:
    """Returns base^0 .. base^(count - 1) modulo 2^64."""
    powers = _cached_powers.get(base)
    if powers is None or len(powers) < count:
        powers = np.full(max(count, BLOCK + 1), np.uint64(base))
        powers[0] = 1
        _cached_powers[base] = powers = np.cumprod(powers)
    return powers[:count]


def _mixed(codes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns a pseudo-random value for each code point (splitmix64; Steele, Lea, Flood 2014)."""
    return mix((codes + np.uint64(1)) * _GOLDEN)


@dataclass(frozen=True)
class _Tables:
    """Properties of each code point; the last entry is for all higher ones."""

    kinds: NDArray[np.uint8]
    folded: NDArray[np.uint32]
    values: NDArray[np.uint64]
    bounds: NDArray[np.uint8]


@cache
def _tables() -> _Tables:
    points = [chr(point) for point in range(_POINTS)]
    categories = [unicodedata.category(char) for char in points]
    kinds = np.array([*map(_kind, points, categories), _ABSENT], np.uint8)
    folded = np.array([*(ord(_fold(*pair)) for pair in zip(points, categories, strict=True)), _POINTS], np.uint32)
    bounds = [_bound(pair >> 3, pair & 7) for pair in range(64)]
    return _Tables(kinds, folded, _mixed(folded.astype(np.uint64)), np.array(bounds, np.uint8))


def _kind(char: str, category: str) -> int:
    if char in _LINE_ENDS:
        return _LINE_END
    if category in ("Zs", "Cc", "Cs", "Co", "Cn") or char in _TSEK:
        return _SPACE
    if category == "Cf" or "\ufe00" <= char <= "\ufe0f":
        return _ABSENT
    if category in ("Mn", "Mc", "Me"):
        return _JOINED
    return _IN_WORD if category[0] in "LN" else _MARK


def _fold(char: str, category: str) -> str:
    if category == "Nd":
        return "0"
    if category == "Pd":
        return "-"
    if char in _QUOTES:
        return _QUOTES[char]
    if char in _STOPS:
        return _STOPS[char]
    plain = unicodedata.normalize("NFKC", char)
    # A character that normalizes to several (a ligature, a fraction) is unchanged, so that lengths do not change.
    return (plain if len(plain) == 1 else char).lower()[0]


def _bound(before: int, after: int) -> int:
    """Returns the kind of bound between characters of two classes; see `_block`."""
    if after == _LINE_END:
        return 3
    if after == _SPACE:
        return 1
    begins = after == _MARK or (after in (_JOINED, _IN_WORD) and before <= _MARK)
    return 2 if begins else 0
