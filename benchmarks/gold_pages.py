"""Pages whose main text a person has marked, and the metric that extracted text is scored by.

The metric is that of the public article extraction benchmark of Scrapinghub (now Zyte): 4-word shingles as multisets.
"""

import gzip
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.formats.charset import decode

_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class GoldPage:
    """A page with the main text that a person has marked."""

    name: str
    url: str
    raw: bytes
    gold: str

    @property
    def html(self) -> str:
        """The page as the extract stage decodes it."""
        return decode(self.raw)


@dataclass(frozen=True)
class Score:
    """Means over pages, by the benchmark's metric."""

    precision: float
    recall: float

    @property
    def f1(self) -> float:
        """F1 of the mean precision and the mean recall."""
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0


def read_pages(folder: Path) -> list[GoldPage]:
    """Reads the labelled pages of a folder, in the order of their names."""
    truth = json.loads((folder / "ground-truth.json").read_text("utf-8"))
    pages = []
    for name in sorted(truth):
        raw = gzip.decompress((folder / "html" / f"{name}.html.gz").read_bytes())
        pages.append(GoldPage(name, truth[name].get("url", ""), raw, truth[name]["articleBody"]))
    return pages


def shingles(text: str) -> Counter[tuple[str, ...]]:
    """Returns the 4-word shingles of a text; of a shorter text the one of all its words."""
    words = _WORD.findall(text)
    return Counter(tuple(words[i : i + 4]) for i in range(max(1, len(words) - 3)))


def score(pages: Sequence[GoldPage], texts: Sequence[str]) -> Score:
    """Scores what an extractor found on each page."""
    precision = recall = 0.0
    for page, text in zip(pages, texts, strict=True):
        found, expected = shingles(text), shingles(page.gold)
        common = (found & expected).total()
        precision += common / found.total()
        recall += common / expected.total()
    return Score(precision / len(pages), recall / len(pages))
