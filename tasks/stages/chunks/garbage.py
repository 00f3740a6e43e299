"""Garbage: chunks from which nothing is to be learned, by rules that look at one chunk alone.

Pure functions. `few_letters`, `few_distinct_words` and `contents` judge text only: code and tables have other
shares of signs, figures and repeated words.
"""

import re

from tasks.formats.chunks import HEADING, TEXT
from tasks.formats.text import normalise
from tasks.stages.chunks.config import ChunksConfig

HEADING_ONLY, FEW_WORDS, FEW_LETTERS = "heading_only", "few_words", "few_letters"
FEW_DISTINCT_WORDS, CONTENTS = "few_distinct_words", "contents"
_LONG = 50
"""Words from which on they can be expected to differ."""
_LEADER = re.compile(r"(?:\.[ \t]?){4,}[ \t]*\d+[ \t]*$|…[ \t]*\d+[ \t]*$", re.MULTILINE)
"""The dots between a title and the number of its page."""

_DRAWN = re.compile(r"([^\w\s])\1{2,}")
"""Underlines, rules and borders of tables: drawn with signs, and no text."""


def garbage(text: str, kind: str, config: ChunksConfig) -> str:
    """Returns the reason why a chunk is garbage, the first of the rules; "" where it is none.

    Args:
        text: the chunk, without what it repeats of the one before.
        kind: see `tasks.formats.chunks`.
        config: the limits.
    """
    if kind == HEADING:
        return HEADING_ONLY
    words = normalise(text).split()
    if len(words) < config.min_words:
        return FEW_WORDS
    if kind != TEXT:
        return ""
    letters = sum(len(word) for word in words if not word.isdigit())
    if letters < config.min_letters * len("".join(_DRAWN.sub("", text).split())):
        return FEW_LETTERS
    if len(words) >= _LONG and len(set(words)) < config.min_distinct * len(words):
        return FEW_DISTINCT_WORDS
    lines = sum(1 for line in text.split("\n") if line.strip())
    return CONTENTS if lines > 2 and 2 * len(_LEADER.findall(text)) >= lines else ""
