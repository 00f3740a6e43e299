"""Trains the trees of the `blocks` extractor, after showing what they do on hosts that they have not seen.

    python -m benchmarks.train_blocks --data FOLDER [--write]

FOLDER as for `benchmarks.extraction`: pages and their main text, marked by a person. A line is labelled as main text
when at least half of its words are found in the marked text, in order. Pages are split by host into folds.

The figure for unseen hosts is nested (Cawley and Talbot, JMLR 2010): each fold is scored by trees whose depth, number,
columns and thresholds were chosen by a cross-validation on the other hosts alone. Then one choice is made on all hosts,
the trees are trained on all, and with --write they replace `tasks/stages/extract/blocks.json`. Nothing is drawn: the
same data gives the same weights. On a free core it takes minutes, nearly all of them for the nested figure;
`--no-nested` leaves that out.
"""

import argparse
import difflib
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from resiliparse.parse.html import HTMLTree

from benchmarks.boosting import Forest, grow
from benchmarks.gold_pages import GoldPage, Score, read_pages, shingles
from tasks.formats.text import clean, hash64
from tasks.formats.url import host_of
from tasks.stages.extract import blocks
from tasks.stages.extract.line_features import COLUMNS, features
from tasks.stages.extract.lines import Line
from tasks.stages.extract.main_text import keep_posts
from tasks.stages.extract.page_metadata import read_about
from tasks.stages.extract.trees import SCALE, Trees, parsed

TARGET = Path(__file__).parents[1] / "tasks" / "stages" / "extract" / "blocks.json"
FOLDS = 10
INNER_FOLDS = 5
_WORD = re.compile(r"\w+")
_SHORTEST_RUN = 3
# How long the page is, and how many lines lie between: what differs most from site to site.
_COUNTS = ("index", "index_from_end", "to_first_prose", "from_last_prose", "lines", "all_words")


@dataclass(frozen=True)
class Choice:
    """What is chosen by cross-validation.

    Attributes:
        depth: of the trees.
        trees: how many.
        counts: whether they see `_COUNTS`, too.
        keep: the chance of being main text from which a line stays.
        min_kept: see `tasks.stages.extract.trees.Trees`.
    """

    depth: int
    trees: int
    counts: bool
    keep: float
    min_kept: float

    @property
    def columns(self) -> list[int]:
        """The columns that the trees see."""
        return [index for index, name in enumerate(COLUMNS) if self.counts or name not in _COUNTS]


TREES = (75, 150)
CHOICES = [Choice(*each) for each in itertools.product((4, 6), TREES, (True, False), (0.3, 0.4, 0.5), (0.7, 0.5, 0.35))]


@dataclass(frozen=True)
class Example:
    """The lines of one page: what is measured of each, and whether it is main text."""

    page: GoldPage
    host: str
    lines: list[Line | None]
    judged: list[Line]
    measured: NDArray[np.float64]
    labels: NDArray[np.float64]

    @cached_property
    def expected(self) -> Counter[tuple[str, ...]]:
        """The shingles of the main text."""
        return shingles(self.page.gold)

    @cached_property
    def _scores(self) -> dict[bytes, tuple[float, float]]:
        """Precision and recall by what was kept: many choices keep the same."""
        return {}

    def scored(self, trees: Trees) -> tuple[float, float]:
        """Returns precision and recall of the text of the page by these trees, which is what the extractor makes."""
        keeps = blocks.kept(self.judged, self.measured, trees) if self.judged else np.zeros(0, np.bool_)
        if keeps.tobytes() not in self._scores:
            found = shingles(clean(blocks.joined(self.lines, self.judged, keeps)))
            common = (found & self.expected).total()
            self._scores[keeps.tobytes()] = common / found.total(), common / self.expected.total()
        return self._scores[keeps.tobytes()]


def example(page: GoldPage) -> Example:
    """Reads one page as the extractor does and labels its lines."""
    html = page.html
    tree = HTMLTree.parse(html)
    title = read_about(tree).title
    keep_posts(tree, html.encode("utf-8", "surrogatepass"))
    found, share = blocks.reduced_lines(tree)
    judged = blocks.to_judge(tree, found)
    measured = features(judged, title.lower(), share) if judged else np.zeros((len(COLUMNS), 0))
    return Example(page, host_of(page.url) or page.name, found, judged, measured, _labels(judged, page.gold))


def _labels(judged: Sequence[Line], gold: str) -> NDArray[np.float64]:
    words = [_WORD.findall(line.text) for line in judged]
    flat = [word for held in words for word in held]
    matched = np.zeros(len(flat))
    for start, _, length in difflib.SequenceMatcher(
        None, flat, _WORD.findall(gold), autojunk=False
    ).get_matching_blocks():
        matched[start : start + length] = 1.0 if length >= _SHORTEST_RUN else 0.5
    ends = np.cumsum([len(held) for held in words])
    return np.array(
        [
            matched[end - len(held) : end].sum() >= 0.5 * max(1, len(held))
            for held, end in zip(words, ends, strict=True)
        ],
        dtype=float,
    )


def weights(examples: Sequence[Example], choice: Choice) -> dict[str, Any]:
    """Returns trained weights as `blocks.json` holds them."""
    return _held(_grown(examples, choice), choice)


def _grown(examples: Iterable[Example], choice: Choice) -> Forest:
    of = [one for one in examples if one.judged]
    rows = np.concatenate([one.measured.T for one in of])[:, choice.columns]
    return grow(rows, np.concatenate([one.labels for one in of]), choice.trees, choice.depth)


def _held(forest: Forest, choice: Choice) -> dict[str, Any]:
    names = np.array(COLUMNS)[choice.columns]
    grown = zip(forest.columns, forest.limits, forest.leaves, strict=True)
    return {
        "choice": asdict(choice),
        "base": round(forest.base * SCALE),
        "threshold": round(float(np.log(choice.keep / (1 - choice.keep)) * SCALE)),
        "min_kept": choice.min_kept,
        "trees": [
            {
                "columns": names[columns].tolist(),
                "limits": limits.tolist(),
                "leaves": np.rint(leaves * SCALE).astype(int).tolist(),
            }
            for columns, limits, leaves in itertools.islice(grown, choice.trees)
        ],
    }


def folds(examples: Sequence[Example], count: int) -> Iterator[tuple[list[Example], list[Example]]]:
    """Splits examples by host: yields (train, held out) for each fold, hosts dealt out by hash."""
    hosts = sorted({one.host for one in examples}, key=lambda host: (hash64(host), host))
    fold = {host: index % count for index, host in enumerate(hosts)}
    for index in range(count):
        yield (
            [one for one in examples if fold[one.host] != index],
            [one for one in examples if fold[one.host] == index],
        )


def cross_validated(
    examples: Sequence[Example], chosen: Callable[[Sequence[Example]], Choice], count: int = FOLDS
) -> Score:
    """Scores every page by trees for which neither training nor choice saw its host."""
    scored = []
    for seen, held_out in folds(examples, count):
        trees = parsed(weights(seen, chosen(seen)))
        scored += [one.scored(trees) for one in held_out]
    return _mean(scored)


def choose(examples: Sequence[Example]) -> Choice:
    """Returns the choice that does best in a cross-validation of its own; of equal ones the first."""
    scored: dict[Choice, list[tuple[float, float]]] = {choice: [] for choice in CHOICES}
    for seen, held_out in folds(examples, INNER_FOLDS):
        grown: dict[tuple[int, bool], Forest] = {}
        for choice in CHOICES:
            kind = choice.depth, choice.counts
            if kind not in grown:
                grown[kind] = _grown(seen, replace(choice, trees=max(TREES)))
            trees = parsed(_held(grown[kind], choice))
            scored[choice] += [one.scored(trees) for one in held_out]
    return max(CHOICES, key=lambda choice: _mean(scored[choice]).f1)


def _mean(scored: Sequence[tuple[float, float]]) -> Score:
    return Score(*np.mean(scored, axis=0).tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, type=Path, help="folder with html/ and ground-truth.json")
    parser.add_argument("--no-nested", action="store_true", help="leave out the figure for unseen hosts")
    parser.add_argument("--write", action="store_true", help=f"replace {TARGET.name}")
    given = parser.parse_args()
    examples = [example(page) for page in read_pages(given.data)]
    hosts = len({one.host for one in examples})
    rows = sum(len(one.judged) for one in examples)
    print(f"{len(examples)} pages of {hosts} hosts, {rows} lines, {len(COLUMNS)} numbers of each", flush=True)
    if not given.no_nested:
        _print("unseen hosts, nested", cross_validated(examples, _choose_and_print))
    choice = _choose_and_print(examples)
    _print("unseen hosts, chosen on them", cross_validated(examples, lambda _: choice))
    held = weights(examples, choice)
    trees = parsed(held)
    _print("hosts trained on", _mean([one.scored(trees) for one in examples]))
    if given.write:
        TARGET.write_text(json.dumps(held, separators=(",", ":")) + "\n")
        print(f"{TARGET}: {TARGET.stat().st_size:,} bytes")


def _choose_and_print(examples: Sequence[Example]) -> Choice:
    choice = choose(examples)
    print(f"  {choice}", flush=True)
    return choice


def _print(name: str, found: Score) -> None:
    print(f"{name:30} precision {found.precision:.4f} recall {found.recall:.4f} F1 {found.f1:.4f}", flush=True)


if __name__ == "__main__":
    main()
