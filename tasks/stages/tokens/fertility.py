"""Fertility: the tokens per word and bytes per token of a tokenizer, by language and by source.

Reads texts and their numbers of tokens; returns the tables of `fertility.json`:

    {"all": row, "language": {name: row}, "source": {name: row}, "segmentation": [WORDS]}
    row = {documents, words, tokens, tokens_per_word, bytes_per_token}

Words are those of `tasks.formats.documents.words`, also in scripts without spaces; `segmentation` says of which version
of it. Parts that are taken over from an earlier version keep theirs, so that there can be several. In the artifact
`tokenizer` a language also has `pieces_per_word`, the parts of which a word consists before any merge: no training
brings the tokens of a language below them. `costly` names the languages that need more than twice the tokens per word
of the median language. Bytes per token do not show them: a letter of Hindi or Thai has three bytes, so that a tokenizer
that knows nothing but its letters has 3 bytes per token, about as many as one that knows the words of English.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from tokenizers import Tokenizer

from tasks.formats.documents.words import WORDS, words
from tasks.formats.tokens.labels import UNKNOWN

FERTILITY = "fertility.json"
"""File with the result of `fertility_table`."""

FERTILITY_FOLDER = "fertility"
"""Folder with the sums of each part."""

ALL, KINDS = "all", ("language", "source")

SEGMENTATION = "segmentation"
"""Key of the segmentations by which words were counted, and of that of one part."""

TIMES_MEDIAN = 2.0
"""Tokens per word, in relation to the median language, above which a language is costly."""
_MIN_WORDS, _MIN_LANGUAGES = 1_000, 3
"""Words of a language, and languages with as many words, that `costly` needs."""

_PIECES_BYTES = 1 << 20
"""UTF-8 bytes of each language whose pieces are counted: those of its first documents."""


class FertilityCounts:
    """Sums of documents, tokens, words and UTF-8 bytes, for all documents and by language and source."""

    def __init__(self) -> None:
        self.sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        """By `all`, `language/<name>` and `source/<name>`."""

    def add(self, language: str, source: str, text: str, tokens: int, n_bytes: int) -> None:
        """Adds one document of `tokens` tokens."""
        amounts = [1, tokens, len(words(text)), n_bytes]
        for key in (ALL, f"language/{language}", f"source/{source}"):
            self.sums[key] = list(map(sum, zip(self.sums[key], amounts, strict=True)))

    def record(self) -> dict[str, Any]:
        """Returns the sums with the segmentation of their words; {} without a document."""
        return {**self.sums, SEGMENTATION: WORDS} if self.sums else {}


def fertility_table(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the table of the parts, each as `FertilityCounts.record` returns it."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    segmentations = set()
    for part in parts:
        if part:
            # A part of an earlier version of the shards may not state it.
            segmentations.add(part.get(SEGMENTATION, UNKNOWN))
        for key, amounts in part.items():
            if key != SEGMENTATION:
                sums[key] = list(map(sum, zip(sums[key], amounts, strict=True)))
    table: dict[str, Any] = {ALL: _row(sums.pop(ALL, [0, 0, 0, 0])), **{kind: {} for kind in KINDS}}
    table[SEGMENTATION] = sorted(segmentations)
    for key, amounts in sorted(sums.items()):
        kind, _, name = key.partition("/")
        table[kind][name] = _row(amounts)
    return table


def _row(sums: list[int]) -> dict[str, float]:
    documents, tokens, n_words, n_bytes = sums
    return {
        "documents": documents,
        "words": n_words,
        "tokens": tokens,
        "tokens_per_word": round(tokens / max(n_words, 1), 4),
        "bytes_per_token": round(n_bytes / max(tokens, 1), 4),
    }


def fertility_metrics(table: Mapping[str, Any]) -> dict[str, float]:
    """Returns the metrics of a fertility table: `tokens_per_word/language/en` etc."""
    return {
        f"{measure}/{kind}/{name}": row[measure]
        for kind in KINDS
        for name, row in table[kind].items()
        for measure in ("tokens_per_word", "bytes_per_token", "pieces_per_word")
        if measure in row
    }


def pieces_per_word(tokenizer: Tokenizer, texts: Iterable[tuple[str, str]]) -> dict[str, float]:
    """Returns the pieces per word of each language in (language, text), up to `_PIECES_BYTES` of each in their order.

    Without a pre-tokenizer, as some imported tokenizers are, a text is one piece, and the result is {}.
    """
    if tokenizer.pre_tokenizer is None:
        return {}
    n_bytes: dict[str, int] = defaultdict(int)
    pieces: dict[str, int] = defaultdict(int)
    n_words: dict[str, int] = defaultdict(int)
    for language, text in texts:
        if n_bytes[language] < _PIECES_BYTES:
            n_bytes[language] += len(text.encode())
            pieces[language] += len(tokenizer.pre_tokenizer.pre_tokenize_str(text))
            n_words[language] += len(words(text))
    return {language: round(count / max(n_words[language], 1), 4) for language, count in pieces.items()}


def costly(table: Mapping[str, Any]) -> dict[str, float]:
    """Returns the languages with more than `TIMES_MEDIAN` the tokens per word of the median language, with the ratio.

    Languages with few words, and texts of unknown language, neither count nor are named; of fewer than three languages
    the result is {}.
    """
    known = {
        language: row["tokens_per_word"]
        for language, row in table["language"].items()
        if language != UNKNOWN and row["words"] >= _MIN_WORDS
    }
    if len(known) < _MIN_LANGUAGES:
        return {}
    middle = median(known.values())
    ratios = {language: round(value / middle, 2) for language, value in known.items()}
    return {language: ratio for language, ratio in ratios.items() if ratio > TIMES_MEDIAN}
