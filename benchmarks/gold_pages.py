"""Pages whose main text people have marked, and the metrics that extracted text is scored by.

`GoldPage` has the whole main text; the metric is that of the public article extraction benchmark of Scrapinghub (now
Zyte): 4-word shingles as multisets. `SegmentPage` has segments that the main text must, and must not, contain; the
metric is that of trafilatura's evaluation: recall is the share of the former that is found, precision their share in
all segments found, white space aside.
"""

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tasks.formats.web.charset import decode
from tasks.formats.web.url import host_of

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

    @property
    def host(self) -> str:
        """The page's host; its name if it has no URL."""
        return host_of(self.url) or self.name


@dataclass(frozen=True)
class SegmentPage:
    """A page with segments of its main text, and with segments of what is around it.

    Attributes:
        stated: what people have written down of it: `title`, `author`, `date`, `sitename` where they are known.
    """

    url: str
    raw: bytes
    wanted: tuple[str, ...]
    unwanted: tuple[str, ...]
    stated: dict[str, Any]

    @property
    def html(self) -> str:
        """The page as the extract stage decodes it."""
        return decode(self.raw)

    @property
    def host(self) -> str:
        """The page's host."""
        return host_of(self.url) or self.url


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


def read_segments(folder: Path) -> list[SegmentPage]:
    """Reads the pages with segments of a folder, in its order."""
    pages = []
    for line in (folder / "pages.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        raw = gzip.decompress((folder / row["file"]).read_bytes())
        pages.append(SegmentPage(row["url"], raw, tuple(row["with"]), tuple(row["without"]), row))
    return pages


def squeezed(text: str) -> str:
    """Returns a text with one space for each run of white space."""
    return " ".join(text.split())


def found_segments(page: SegmentPage, text: str) -> tuple[int, int, int]:
    """Returns how many wanted segments a text contains, how many there are, and how many unwanted ones it contains."""
    held = squeezed(text)
    wanted, unwanted = ([squeezed(one) in held for one in of] for of in (page.wanted, page.unwanted))
    return sum(wanted), len(wanted), sum(unwanted)


def segment_score(found: Sequence[tuple[int, int, int]]) -> Score:
    """Scores the `found_segments` of some pages."""
    right, wanted, wrong = np.sum(found, axis=0).tolist()
    return Score(right / max(1, right + wrong), right / max(1, wanted))


def shingle_score(found: Sequence[tuple[float, float]]) -> Score:
    """Scores the `precision_and_recall` of some pages."""
    return Score(*np.mean(found, axis=0).tolist())


_Found = TypeVar("_Found")


def interval(
    found: Sequence[_Found], hosts: Sequence[str], scored: Callable[[Sequence[_Found]], Score], draws: int = 1_000
) -> tuple[float, float]:
    """Returns the 95 % interval of F1 by a bootstrap that draws hosts, each with all its pages."""
    of_host: dict[str, list[_Found]] = {}
    for one, host in zip(found, hosts, strict=True):
        of_host.setdefault(host, []).append(one)
    pages = list(of_host.values())
    drawn = np.random.default_rng(0).integers(0, len(pages), (draws, len(pages)))
    values = [scored([one for index in indices for one in pages[index]]).f1 for indices in drawn.tolist()]
    low, high = np.quantile(values, (0.025, 0.975)).tolist()
    return low, high


def precision_and_recall(page: GoldPage, text: str) -> tuple[float, float]:
    """Scores one text by its shingles."""
    found, expected = shingles(text), shingles(page.gold)
    common = (found & expected).total()
    return common / found.total(), common / expected.total()


def shingles(text: str) -> Counter[tuple[str, ...]]:
    """Returns the 4-word shingles of a text; of a shorter text the one of all its words."""
    words = _WORD.findall(text)
    return Counter(tuple(words[i : i + 4]) for i in range(max(1, len(words) - 3)))


def score(pages: Sequence[GoldPage], texts: Sequence[str]) -> Score:
    """Scores what an extractor found on each page."""
    return shingle_score([precision_and_recall(page, text) for page, text in zip(pages, texts, strict=True)])
