"""Fertility: tokens per word and bytes per token, by language and by source.

Words are those of `tasks.formats.documents.text.words`; in languages that write no space between them the bytes say more.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from tasks.formats.documents.text import words

FERTILITY = "fertility.json"
"""File with the content of `table`."""
ALL, KINDS = "all", ("language", "source")
FOLDER = "fertility"
"""Folder with the sums of each part."""


class Counts:
    """Sums of documents, tokens, words and UTF-8 bytes, for all documents and by language and source."""

    def __init__(self) -> None:
        self.sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        """By `all`, `language/<name>` and `source/<name>`."""

    def add(self, language: str, source: str, text: str, tokens: int, n_bytes: int) -> None:
        """Adds one document of `tokens` tokens."""
        amounts = [1, tokens, len(words(text)), n_bytes]
        for key in (ALL, f"language/{language}", f"source/{source}"):
            self.sums[key] = list(map(sum, zip(self.sums[key], amounts, strict=True)))


def table(parts: Iterable[Mapping[str, list[int]]]) -> dict[str, Any]:
    """Returns {"all": row, "language": {name: row}, "source": {name: row}} from the sums of the parts.

    A row is {documents, tokens, tokens_per_word, bytes_per_token}.
    """
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for part in parts:
        for key, amounts in part.items():
            sums[key] = list(map(sum, zip(sums[key], amounts, strict=True)))
    found: dict[str, Any] = {ALL: _row(sums.pop(ALL, [0, 0, 0, 0])), **{kind: {} for kind in KINDS}}
    for key, amounts in sorted(sums.items()):
        kind, _, name = key.partition("/")
        found[kind][name] = _row(amounts)
    return found


def reported(table: Mapping[str, Any]) -> dict[str, float]:
    """Returns the metrics of a table: `tokens_per_word/language/en`, and so on."""
    return {
        f"{measure}/{kind}/{name}": row[measure]
        for kind in KINDS
        for name, row in table[kind].items()
        for measure in ("tokens_per_word", "bytes_per_token")
    }


def _row(sums: list[int]) -> dict[str, float]:
    documents, tokens, n_words, n_bytes = sums
    return {
        "documents": documents,
        "tokens": tokens,
        "tokens_per_word": round(tokens / max(n_words, 1), 4),
        "bytes_per_token": round(n_bytes / max(tokens, 1), 4),
    }
