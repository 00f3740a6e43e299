"""Text normalization: cleaning, word splitting, shingling and hashing. Pure functions.

`clean` returns the form in which text is stored, without unneeded invisible characters; `normalise` returns the form in
which texts are compared. Words are split by a regular expression, about 50 times faster than spaCy's blank English
tokenizer. In scripts without spaces, `words` and `normalise` split letter by letter, so that a part of a text has the
same words as the part in the text: searches, lists of words and shingles of duplicates need that. What counts words
takes `normal_words`, which has those of a dictionary. The filters split words differently
(`tasks.filters.counting.words`, with punctuation marks), because the published limits are defined on those words.

The process that extracts pages imports this module for `clean` only, so everything else is created on first use.
"""

from __future__ import annotations

import functools
import hashlib
import re
import string
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import xxhash

from tasks.formats.documents.words import class_body, spaced

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Invisible characters are those with the Unicode property Default_Ignorable_Code_Point (DerivedCoreProperties.txt,
# version 16). A text keeps
# - the joiners U+200C and U+200D inside words of scripts in which they change a letter's form: Persian and other Arabic
#   scripts, the Indic ones, Mongolian, Khmer, Tibetan and the like (The Unicode Standard, section 23.2; UAX #31, 2.3);
# - the joiner U+200D between emoji, variation selectors that choose emoji or text form, and the tags of the flags of
#   England, Scotland and Wales (UTS #51, sections 1.4.9 and 2.8);
# - Mongolian variation selectors and separator after a Mongolian letter, and Korean fillers, which stand for missing
#   letters;
# - the grapheme joiner U+034F before a combining mark, whose position it fixes.
# All others are removed: soft hyphens, zero-width spaces (also between Thai or Khmer words, where they only allow a
# line break), word joiners, direction marks and overrides, invisible operators, other variation selectors, tags.
_TAGS = "\U000e0000-\U000e0fff"
# Characters that `without_invisible` may remove: in the Basic Multilingual Plane, and beyond it.
_SUSPECT = (
    "\u00ad\u034f\u061c\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufff0-\ufffb"
)
_SUSPECT_BEYOND = _TAGS

# Scripts whose letters join, or form clusters that a joiner separates: Arabic to Sinhala, Tibetan, Myanmar, Khmer,
# Mongolian, Phags-pa and the blocks after it, Arabic presentation forms, and such scripts of other planes.
_JOINING = (
    "\u0600-\u0dff\u0f00-\u109f\u1780-\u180a\u1810-\u18af\u1900-\u1cff\ua800-\ua82f\ua840-\ua95f\ua980-\uabff"
    "\ufb50-\ufdff\ufe70-\ufefc\U00010a00-\U00010a5f\U00010ac0-\U00010aff\U00010d00-\U00010d3f\U00010f30-\U00010fdf"
    "\U00011000-\U00011fff\U0001e900-\U0001e95f"
)
_MONGOLIAN = "\u1800-\u180a\u1810-\u18af"
# Characters that have an emoji form (UTS #51, emoji-data.txt), by block.
_EMOJI = (
    "\u00a9\u00ae\u203c\u2049\u2122\u2139\u2194-\u21aa\u231a-\u23ff\u24c2\u25aa-\u25fe\u2600-\u27bf\u2934\u2935"
    "\u2b05-\u2b55\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
)
_MARKS = "\u0300-\u034e\u0350-\u036f\u0483-\u0487\u0591-\u05c7\u0610-\u061a\u064b-\u065f"
_FLAG = "\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{4,6}\U000e007f"

_NEVER = re.compile(
    "[\u00ad\u061c\u17b4\u17b5\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0d\ufff0-\ufffb"
    "\U000e0000-\U000e001f\U000e0080-\U000e0fff]"
)
_TAG = re.compile("[\U000e0020-\U000e007f]")
_TAG_OR_FLAG = re.compile(f"({_FLAG})|{_TAG.pattern}")
_SOMETIMES = re.compile("[\u034f\u180b-\u180f\u200c\u200d\ufe0e\ufe0f]")
_JOINERS = re.compile("([\u200c\u200d])[\u200c\u200d]+")
_NEEDLESS = re.compile(
    f"{_SOMETIMES.pattern}(?:"
    f"(?<=\u200c)(?:(?<![{_JOINING}]\u200c)|(?![{_JOINING}]))"
    f"|(?<=\u200d)(?<![{_JOINING}]\u200d)(?:(?<![{_EMOJI}]\u200d)(?<![{_EMOJI}]\ufe0f\u200d)|(?![{_EMOJI}]))"
    f"|(?<=[\ufe0e\ufe0f])(?<![{_EMOJI}][\ufe0e\ufe0f])(?!(?<=[0-9#*][\ufe0e\ufe0f])\u20e3)"
    f"|(?<=[\u180b-\u180f])(?<![{_MONGOLIAN}][\u180b-\u180f])"
    f"|(?<=\u034f)(?![{_MARKS}])"
    ")"
)
_FEW = 8
_IGNORABLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    f"\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a{_TAGS}]"
)

# Scripts written without spaces: Thai, Lao, Myanmar, Khmer, kana, Han. One letter with its marks is one word.
_UNSPACED = (
    "\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_PLAIN_WORD = re.compile(r"\w+")
_SIGN = r"[^\w\s\x00-\x20]"
_PLAIN_TOKEN = re.compile(rf"\w+|{_SIGN}")
_SIGNS, _DIGITS, _SPACES = string.punctuation.replace("_", "").encode(), string.digits.encode(), b" \t\n\r\v\f"
_SIGN_SHARE, _LETTER_SHARE = 0.1, 0.3

_CARRIAGE = re.compile("\r\n?")
_LINE_END = re.compile("[\x0b\x0c\x85\u2028\u2029]")
# Control, surrogate and non-character code points, and the byte order mark; not tab and newline.
_UNPRINTABLE = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufeff\ufffe\uffff]")
# Union of the three patterns above: one search shows that a text has none of these characters, as most texts do.
_ODD = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff"
# Characters that need no check. Removing their bytes with a translation table is faster than any search for the rest.
_USUAL = bytes((*b"\t\n", *range(0x20, 0x7F)))
# One range that contains the marks of other planes: each additional range makes the search slower.
_PLANES = "\U000101fd-\U0001e94a"
_NO_BREAK_SPACES = "\u00a0\u2007\u202f"


def clean(text: str) -> str:
    r"""Returns the form in which text is stored: NFC, `\n` line ends, no control characters, no trailing spaces.

    Several blank lines become one. Leading spaces are kept, because they are significant in source code. No-break
    spaces, which many pages use for layout, become spaces. Marks after the 30th on one letter are removed, and so are
    invisible characters that running text does not need (`without_invisible`).
    """
    if text.isascii() and text.isprintable():
        return text.rstrip()  # one line, as URLs and titles are
    text = clean_code(text)
    while "\n\n\n" in text:  # ten times faster than a regular expression
        text = text.replace("\n\n\n", "\n\n")
    return text


def clean_code(text: str) -> str:
    """Returns a text as `clean` does, with all its blank lines, which source code has between its definitions."""
    if unusual := _unusual(text):
        text = _without_oddities(text, unusual)
    return "\n".join([line.rstrip() for line in text.split("\n")]).strip("\n")


def _unusual(text: str) -> str:
    """Returns the characters of a text that are not `_USUAL`, in order."""
    return text.encode("utf-8", "surrogatepass").translate(None, _USUAL).decode("utf-8", "surrogatepass")


def _without_oddities(text: str, unusual: str) -> str:
    """Normalizes the characters of a text for `clean`; `unusual` is the result of `_unusual`."""
    # In UTF-16 a character beyond the Basic Multilingual Plane takes two units.
    planes = len(unusual.encode("utf-16-le", "surrogatepass")) > 2 * len(unusual)
    odd = bool(_odd_or_mark(planes).search(unusual))
    if odd:  # first, because a removed character may be between a letter and its mark
        text = _CARRIAGE.sub("\n", text) if "\r" in text else text
        for form, new in ((_LINE_END, "\n"), (_UNPRINTABLE, "")):
            text = form.sub(new, text) if form.search(unusual) else text
        text = without_invisible(text, unusual)
        text = _mark_run(planes).sub(r"\1", text) if _mark(planes).search(unusual) else text
    # Without marks nothing combines with ASCII, so it is enough to check the other characters.
    if odd or not unicodedata.is_normalized("NFC", unusual):
        text = unicodedata.normalize("NFC", text)
    for space in _NO_BREAK_SPACES:
        if space in unusual:
            text = text.replace(space, " ")
    return text


@functools.cache
def _odd_or_mark(planes: bool) -> re.Pattern[str]:
    beyond = _PLANES + _SUSPECT_BEYOND if planes else ""
    return re.compile(f"[{_ODD}{_SUSPECT}{_reordered(planes=False)}{beyond}]")


@functools.cache
def _mark(planes: bool) -> re.Pattern[str]:
    return re.compile(f"[{_reordered(planes)}]")


@functools.cache
def _mark_run(planes: bool) -> re.Pattern[str]:
    # Normalization sorts the marks on a letter in quadratic time: 13 s for 80,000 marks. No language needs more than a
    # few; the limit of 30 is that of UAX #15, section 13, Stream-Safe Text Format.
    marks = _reordered(planes)
    return re.compile(f"([{marks}]{{30}})[{marks}]++")


@functools.cache
def _reordered(planes: bool) -> str:
    """Returns the marks that normalization reorders, as the body of a character class.

    Args:
        planes: whether to include marks beyond the Basic Multilingual Plane.
    """
    end = 0x1F000 if planes else 0x10000
    return class_body(point for point in range(0x300, end) if unicodedata.combining(chr(point)))


def without_invisible(text: str, candidates: str) -> str:
    """Returns the text without the invisible characters that it does not need, except U+FEFF, which `clean` removes.

    Args:
        text: any text.
        candidates: characters to consider for removal; must include all non-ASCII characters of the text.

    >>> without_invisible("Schiff\u00adfahrt\u200b, \u202epay\u2060pal\u202c", "\u00ad\u200b\u202e\u2060\u202c")
    'Schifffahrt, paypal'
    >>> persian = "\u0645\u06cc\u200c\u0631\u0648\u0645"
    >>> without_invisible(persian, persian) == persian, without_invisible("a\u200cb", "\u200c")
    (True, 'ab')
    """
    text = _without_characters(text, _NEVER, candidates)
    if _SOMETIMES.search(candidates):
        text = _NEEDLESS.sub("", _JOINERS.sub(r"\1", text))
    return _TAG_OR_FLAG.sub(r"\1", text) if _TAG.search(candidates) else text


def without_ignorable(text: str, candidates: str) -> str:
    """Returns the text without default-ignorable characters, for comparison; see `without_invisible`."""
    return _without_characters(text, _IGNORABLE, candidates)


def _without_characters(text: str, characters: re.Pattern[str], candidates: str) -> str:
    present = set(characters.findall(candidates))
    if len(present) > _FEW:
        return characters.sub("", text)
    for character in present:  # searching for one character is many times faster than for a set
        text = text.replace(character, "")
    return text


def normalise(text: str) -> str:
    r"""Returns the form in which texts are compared: NFKC, case-folded, words only, single spaces.

    Ignores punctuation, markup residue, layout, ligatures and invisible characters. In scripts without spaces each
    letter is a word. With the words of a dictionary, near-duplicates are found less often than in English: of copies
    with every 50th word replaced 57 to 100 % (35 % in Burmese) have a similarity of 0.8, and by letters 91 to 100 %;
    69 % of those in English. Of different texts none is above 0.1 by either.

    >>> normalise("Hello,  World!\n") == normalise("hello world")
    True
    """
    return " ".join(words(_folded(text)))


def normal_words(text: str) -> list[str]:
    """Returns the words of a text as `normalise`, in scripts without spaces those of `tasks.formats.documents.words`.

    >>> normal_words("我爱 iPhone！"), normalise("我爱 iPhone！").split()
    (['我', '爱', 'iphone'], ['我', '爱', 'iphone'])
    >>> normal_words("中国人民"), normalise("中国人民").split()
    (['中国', '人民'], ['中', '国', '人', '民'])
    >>> len(normal_words("คำนวณจำนวนน้ำ"))
    3
    """
    # The dictionaries have Thai and Lao vowels as they are written, not as NFKC decomposes them, so words are separated
    # before the text is folded.
    separate = spaced(text)
    folded = _folded(separate)
    if separate is text:
        return words(folded)
    matches: list[str] = _separate_word().findall(folded.lower())
    return matches


def with_signs(text: str) -> str:
    """Returns a text like `normalise`, with each other visible character as a word of its own.

    >>> with_signs("return a+b[0]")
    'return a + b [ 0 ]'
    """
    folded = _folded(text).lower()
    plain = folded.isascii() or not _needs_script().search(folded)
    return " ".join((_PLAIN_TOKEN if plain else _token()).findall(folded))


def _folded(text: str) -> str:
    if not text.isascii():
        text = unicodedata.normalize("NFKC", without_ignorable(text, _unusual(text)))
    return text.casefold()


def is_prose(text: str) -> bool:
    """Returns whether words carry the meaning of a text; those of code and data depend on signs and digits.

    Of the visible characters of prose less than a tenth are ASCII punctuation, and at least three tenths are letters.
    Of web pages, books and reviews 99 % are prose; of files of code 3 to 5 %, and of technical documentation a third.

    >>> is_prose("The door opens at 9, as it did last year."), is_prose("return a - b"), is_prose("1;2.5;3")
    (True, False, False)
    """
    data = text.encode("utf-8", "surrogatepass")
    signs, digits, spaces = (len(data) - len(data.translate(None, kind)) for kind in (_SIGNS, _DIGITS, _SPACES))
    visible = len(text) - spaces
    return signs < _SIGN_SHARE * visible and visible - signs - digits >= _LETTER_SHARE * visible


def words(text: str) -> list[str]:
    """Splits a text into lower-case words of letters, digits, underscores and combining marks, without punctuation.

    >>> words("Don't panic: 42 towels.")
    ['don', 't', 'panic', '42', 'towels']
    """
    lower = text.lower()
    # The plain pattern is six times faster and equivalent for texts without marks and unspaced scripts.
    plain = lower.isascii() or not _needs_script().search(lower)
    matches: list[str] = (_PLAIN_WORD if plain else _word()).findall(lower)
    return matches


@functools.cache
def _needs_script() -> re.Pattern[str]:
    return re.compile(f"[{_UNSPACED}{_all_marks()}]")


@functools.cache
def _word() -> re.Pattern[str]:
    mark = _all_marks()
    return re.compile(f"[{_UNSPACED}][{mark}]*|(?:(?![{_UNSPACED}])[\\w{mark}])+")


@functools.cache
def _separate_word() -> re.Pattern[str]:
    return re.compile(f"[\\w{_all_marks()}]+")


@functools.cache
def _token() -> re.Pattern[str]:
    return re.compile(f"{_word().pattern}|{_SIGN}")


@functools.cache
def _all_marks() -> str:
    r"""Returns the combining marks of the Basic Multilingual Plane, as the body of a character class.

    Python's `\w` excludes them, which would split Devanagari and Thai words at their vowel signs.
    """
    marks = class_body(point for point in range(0x300, 0x10000) if unicodedata.category(chr(point)).startswith("M"))
    return marks + "\u200c\u200d"  # joiners are part of words in Persian and in Indic scripts


def hash64(text: str) -> int:
    """Returns the XXH3 64-bit hash of the UTF-8 bytes; the same in every process, unlike `hash()`."""
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))


def hashes64(prefix: str, texts: Iterable[str]) -> list[int]:
    """Returns `hash64` of each text after a prefix, in half the time of a call per text."""
    digest = xxhash.xxh3_64_intdigest
    return [digest((prefix + text).encode("utf-8", "surrogatepass")) for text in texts]


def digest128(text: str) -> str:
    """Returns the BLAKE2b 128-bit hash of the UTF-8 bytes as 32 hex digits.

    Use it for ids, where a collision would lose a document.
    """
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def hash_words(split: Sequence[str]) -> NDArray[np.uint64]:
    """Returns the hash of each word, uint64 of shape (len(split),)."""
    import numpy as np

    hashes: dict[str, int] = {word: hash64(word) for word in dict.fromkeys(split)}
    return np.fromiter((hashes[word] for word in split), dtype=np.uint64, count=len(split))


def rolled(hashes: NDArray[np.uint64], size: int) -> NDArray[np.uint64]:
    """Combines every run of `size` word hashes into one hash that depends on their order.

    A polynomial over uint64: one vectorized multiply-add per word of the run. Suitable for equality; the values are not
    uniform.

    Returns:
        uint64 array of shape (max(0, len(hashes) - size + 1),).
    """
    import numpy as np

    count = max(0, len(hashes) - size + 1)
    total = np.zeros(count, dtype=np.uint64)
    for offset in range(size if count else 0):
        total = extended(total, hashes[offset : offset + count])
    return total


def extended(runs: NDArray[np.uint64], following: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns the `rolled` hashes of runs extended by one word; `following` has the hash of each run's next word."""
    import numpy as np

    longer: NDArray[np.uint64] = runs * np.uint64(0x9E3779B97F4A7C15) + following
    return longer


def ngrams(hashes: NDArray[np.uint64], widths: Sequence[int]) -> Iterator[tuple[int, NDArray[np.uint64]]]:
    """Hashes the runs of several widths, each computed from the next shorter one.

    Args:
        hashes: hash of each word (`hash_words`), shape (words,).
        widths: words per run, ascending, each at least 1.

    Yields:
        each width with the hashes of its runs, uint64 of shape (max(0, words - width + 1),), uniform over 64 bits
        (splitmix64 finalizer); the width is part of the hash.
    """
    total, length = rolled(hashes, 1), 1
    for width in widths:
        while length < min(width, len(hashes)):
            total, length = extended(total[:-1], hashes[length:]), length + 1
        yield width, mix(total[: max(0, len(hashes) - width + 1)] + hashes.dtype.type(width))


def mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Applies the finalizer of splitmix64 (Steele, Lea, Flood 2014), a bijection, elementwise."""
    import numpy as np

    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
