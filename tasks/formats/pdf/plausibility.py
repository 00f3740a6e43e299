"""Plausibility of the text that a vision model has read on a page: models invent, repeat and refuse.

Pure functions over the text and the bitmap of the page. They find text that cannot be that of the page; a wrong word in
a plausible text is not found. Ink is measured in thin strokes, whose width is that of letters: on 22 pages of papers,
manuals, an invoice and a poster, text has .04 to .17 letters per square point of it, drawn at 100 and at 200 dots per
inch.
"""

import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from functools import cache

import numpy as np

from tasks.formats.pdf.render import Bitmap

_STROKE = 3.0
"""Width in points up to which a run of dark pixels is a stroke of a letter; pictures have longer ones."""
_CONTRAST = 48
"""Difference to the median grey of the page, from 0 to 255, from which a pixel is ink."""
_MOST_PER_STROKES, _LEAST_PER_STROKES = 0.8, 0.01
"""Letters per square point of strokes: five times as many as any page has, and a quarter of the fewest."""
_LARGE_TYPE = 200.0
"""Characters that any ink may be, at most one per square point: strokes of large letters are not thin."""
_FEW = 10
_MOST_CHARS = 200_000

_GRAM, _GRAM_SHARE, _GRAM_COUNT = 20, 0.2, 5
_PHRASE, _PHRASE_SHARE, _PHRASE_COUNT = 8, 0.1, 5
"""Letters of a gram and words of a phrase; the share of the text that one of them covers, and how often it occurs, from
which a text is a repetition."""
_LINE_LETTERS, _LINE_COUNT = 12, 8
_SCRIPT_SHARE, _SCRIPTS = 0.03, 3
"""Share of the letters from which a script counts, and the number of scripts beside Latin and Greek letters that no
page has."""
_PROMPT_CHARS = 60
"""Characters of the prompt that no page has; a shorter prompt may be words of the page."""
_APOLOGY_CHARS = 600
_APOLOGY = re.compile(
    r"(?i)\W*+(?:i['’]?m (?:very |so )?sorry|i apologi[sz]e|sorry, (?:but )?i|as an ai\b|i (?:can['’]?t|can ?not)\b"
    r"|i(?:['’]m| am) (?:unable|not able)|unfortunately, i|there is no (?:readable |visible )?text"
    r"|the (?:image|page|picture) (?:is|appears|seems|shows|contains)\b|no text (?:is|was|could)"
    r"|here(?:['’]s| is) the (?:text|markdown|transcription))"
)
_WORD = re.compile(r"[^\W\d_]++")
_TAG = re.compile(r"<[^<>]{1,200}+>")
_EAST_ASIAN = frozenset(("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC", "FULLWIDTH", "HALFWIDTH"))
_EVERYWHERE = frozenset(
    ("LATIN", "GREEK", "MATHEMATICAL", "MODIFIER", "MICRO", "FEMININE", "MASCULINE", "SUPERSCRIPT", "")
)


@dataclass(frozen=True)
class Ink:
    """Ink of a page in square points: all of it, and that in horizontal runs as thin as strokes of letters."""

    area: float
    strokes: float


def ink_of(bitmap: Bitmap) -> Ink:
    """Measures the ink of a page; dark on light or light on dark."""
    grey = bitmap.pixels[:, :, 1]
    counts = np.bincount(grey.ravel(), minlength=256)
    median = int(np.searchsorted(counts.cumsum(), grey.size / 2))
    dark = (np.abs(np.arange(256) - median) > _CONTRAST)[grey]
    runs = np.diff(np.pad(dark, ((0, 0), (1, 1))).view(np.int8), axis=1).ravel()
    lengths = np.flatnonzero(runs == -1) - np.flatnonzero(runs == 1)
    strokes = lengths[lengths <= max(1, round(_STROKE * bitmap.scale))].sum()
    pixel = bitmap.scale**2
    return Ink(float(dark.sum()) / pixel, float(strokes) / pixel)


def refusal(text: str, finish_reason: str, ink: Ink, prompt: str = "") -> str:
    """Returns why a text cannot be that of a page; "" if it can.

    The reasons, in the order of the checks: "length", "too_long", "apology", "prompt", "repetition", "scripts",
    "too_much_text", "too_little_text".

    Args:
        text: the answer, as Markdown.
        finish_reason: why the answer ended; "length" at the limit of tokens.
        ink: ink of the page.
        prompt: what the model was told.
    """
    if finish_reason == "length":
        return "length"
    if len(text) > _MOST_CHARS:
        return "too_long"
    if len(text) < _APOLOGY_CHARS and _APOLOGY.match(text):
        return "apology"
    if len(prompt) >= _PROMPT_CHARS and prompt[:_PROMPT_CHARS] in text:
        return "prompt"
    if _repeats(text):
        return "repetition"
    if _mixes_scripts(text):
        return "scripts"
    return _by_ink(text, ink)


def _by_ink(text: str, ink: Ink) -> str:
    written = sum(not letter.isspace() for letter in text)
    letters = sum(letter.isalnum() for letter in text)
    if written > _MOST_PER_STROKES * ink.strokes + min(_LARGE_TYPE, ink.area):
        return "too_much_text"
    return "too_little_text" if letters + _FEW < _LEAST_PER_STROKES * ink.strokes else ""


def _repeats(text: str) -> bool:
    """Returns whether a line occurs again and again, or a short piece is a large part of the text."""
    text = _TAG.sub(" ", text)
    lines = Counter(line.strip() for line in text.splitlines())
    if any(count > _LINE_COUNT and sum(map(str.isalnum, line)) >= _LINE_LETTERS for line, count in lines.items()):
        return True
    words = _WORD.findall(text.lower())
    phrases = Counter(zip(*(words[start:] for start in range(_PHRASE)), strict=False))
    if _covers(phrases, _PHRASE, len(words), _PHRASE_COUNT, _PHRASE_SHARE):
        return True
    letters = "".join(letter for letter in text.lower() if letter.isalpha())
    grams = Counter(letters[start : start + _GRAM] for start in range(len(letters) - _GRAM + 1))
    return _covers(grams, _GRAM, len(letters), _GRAM_COUNT, _GRAM_SHARE)


def _covers(pieces: Counter[str] | Counter[tuple[str, ...]], size: int, total: int, least: int, share: float) -> bool:
    count = max(pieces.values(), default=0)
    return count >= least and count * size > share * total


def _mixes_scripts(text: str) -> bool:
    scripts = Counter(_script(letter) for letter in text if letter.isalpha())
    letters = sum(scripts.values())
    return sum(count > _SCRIPT_SHARE * letters for name, count in scripts.items() if name) >= _SCRIPTS


@cache
def _script(letter: str) -> str:
    """Returns the script of a letter by its Unicode name; Chinese, Japanese and Korean letters are one.

    It is "" for Latin and Greek letters and symbols, which occur in texts of any script.
    """
    name = re.split("[ -]", unicodedata.name(letter, ""), maxsplit=1)[0]
    return "" if name in _EVERYWHERE else "CJK" if name in _EAST_ASIAN else name
