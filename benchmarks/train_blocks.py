"""Trains the network of the `blocks` extractor, after showing what it does on hosts that it has not seen.

    python -m benchmarks.train_blocks --data FOLDER [--folds 10] [--write]

FOLDER as for `benchmarks.extraction`: pages and their main text, marked by a person. A line is labelled as main text
when at least half of its words are found in the marked text, in order. Pages are split by host into folds; each fold is
scored by a network trained on the other hosts. Then one network is trained on all and, with --write, replaces
`tasks/extract/blocks.json`. The same data gives the same weights: full-batch L-BFGS from a fixed start.
"""

import argparse
import difflib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray
from resiliparse.parse.html import HTMLTree
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from benchmarks.extraction import GoldPage, Score, read_pages, score
from tasks.extract import blocks, lines
from tasks.extract.about import read_about
from tasks.text import clean, hash64

TARGET = Path(__file__).parents[1] / "tasks" / "extract" / "blocks.json"
_WORD = re.compile(r"\w+")
HIDDEN = 12
NETS = 3
_PENALTY = 20.0
_ITERATIONS = 200
# In log odds: what is dropped in error costs recall that nothing brings back.
_KEEP_ODDS = float(np.log(0.3 / 0.7))
_SHORTEST_RUN = 3


@dataclass(frozen=True)
class Example:
    """The lines of one page: what is seen of each, and whether it is main text."""

    page: GoldPage
    host: str
    lines: list[lines.Line | None]
    rows: NDArray[np.float64]
    labels: NDArray[np.float64]

    def text(self, network: blocks.Network) -> str:
        """Returns the text of the page by `network`, as the extractor makes it."""
        judged = [line for line in self.lines if line is not None and not line.fixed]
        return clean(blocks.joined(self.lines, judged, blocks.kept(judged, self.rows, network)))


def example(page: GoldPage) -> Example:
    """Reads one page as the extractor does and labels its lines."""
    tree = HTMLTree.parse(page.html)
    title = read_about(tree).title
    found, share = blocks.reduced_lines(tree)
    judged = [line for line in found if line is not None and not line.fixed]
    rows = lines.features(judged, title.lower(), share)
    return Example(page, urlsplit(page.url).hostname or page.name, found, rows, _labels(judged, page.gold))


def _labels(judged: Sequence[lines.Line], gold: str) -> NDArray[np.float64]:
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


def train(examples: Sequence[Example]) -> blocks.Network:
    """Trains networks on examples and rounds them to whole numbers."""
    return blocks.parsed(weights(examples))


def weights(examples: Sequence[Example]) -> dict[str, Any]:
    """Returns trained weights as `blocks.json` holds them."""
    rows = np.concatenate([one.rows for one in examples])
    labels = np.concatenate([one.labels for one in examples])
    mean = np.round(rows.mean(axis=0), 4)
    deviation = np.round(np.maximum(rows.std(axis=0), 0.01), 4)
    inputs = np.clip((rows - mean) / deviation, -8, 8)
    # The matrices are small: threads would wait for one another, forty times as long where other work goes on.
    with threadpool_limits(1):
        nets = [_net(inputs, labels, seed) for seed in range(NETS)]
    step = blocks.SCALE**2
    return {
        "mean": mean.tolist(),
        "deviation": deviation.tolist(),
        # Inputs have SCALE steps, weights SCALE**2, so a hidden unit has SCALE**3 and the output SCALE**5.
        "nets": [
            {
                "first": np.rint(first * step).tolist(),
                "bias": np.rint(bias * step * blocks.SCALE).tolist(),
                "second": np.rint(second * step).tolist(),
                "offset": float(np.rint(offset * step * step * blocks.SCALE)),
            }
            for first, bias, second, offset in nets
        ],
        "threshold": float(np.rint(_KEEP_ODDS * step * step * blocks.SCALE)),
    }


def _net(
    inputs: NDArray[np.float64], labels: NDArray[np.float64], seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], float]:
    size = inputs.shape[1]
    shapes = [(size, HIDDEN), (HIDDEN,), (HIDDEN,), (1,)]
    bounds = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]

    def parts(flat: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        return [one.reshape(shape) for one, shape in zip(np.split(flat, bounds), shapes, strict=True)]

    def loss(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        first, bias, second, offset = parts(flat)
        hidden = np.maximum(inputs @ first + bias, 0.0)
        logits = hidden @ second + offset
        wrong = (1 / (1 + np.exp(-logits)) - labels) / len(labels)
        decay = _PENALTY / len(labels)
        value = np.mean(np.logaddexp(0, logits) - labels * logits) + decay / 2 * ((first**2).sum() + (second**2).sum())
        back = np.outer(wrong, second) * (hidden > 0)
        slopes = [inputs.T @ back + decay * first, back.sum(0), hidden.T @ wrong + decay * second, [wrong.sum()]]
        return float(value), np.concatenate([np.ravel(one) for one in slopes])

    # Glorot and Bengio, AISTATS 2010.
    bound = np.sqrt(2.0 / (size + HIDDEN))
    start = np.random.default_rng(seed).uniform(-bound, bound, sum(int(np.prod(shape)) for shape in shapes))
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": _ITERATIONS, "maxfun": 15_000})
    first, bias, second, offset = parts(found.x)
    return first, bias, second, float(offset[0])


def folds(examples: Sequence[Example], count: int) -> list[tuple[list[Example], list[Example]]]:
    """Splits examples by host: (train, held out) for each fold, hosts dealt out by hash."""
    hosts = sorted({one.host for one in examples}, key=lambda host: (hash64(host), host))
    fold = {host: index % count for index, host in enumerate(hosts)}
    return [
        ([one for one in examples if fold[one.host] != index], [one for one in examples if fold[one.host] == index])
        for index in range(count)
    ]


def cross_validated(examples: Sequence[Example], count: int) -> Score:
    """Scores every page by a network that was trained on other hosts."""
    pages: list[GoldPage] = []
    texts: list[str] = []
    for seen, held_out in folds(examples, count):
        network = train(seen)
        pages += [one.page for one in held_out]
        texts += [one.text(network) for one in held_out]
    return score(pages, texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, type=Path, help="folder with html/ and ground-truth.json")
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--write", action="store_true", help=f"replace {TARGET.name}")
    given = parser.parse_args()
    examples = [example(page) for page in read_pages(given.data)]
    hosts = len({one.host for one in examples})
    rows = sum(len(one.rows) for one in examples)
    print(f"{len(examples)} pages of {hosts} hosts, {rows} lines of {examples[0].rows.shape[1]} features")
    held_out = cross_validated(examples, given.folds)
    print(f"hosts not trained on: precision {held_out.precision:.4f} recall {held_out.recall:.4f} F1 {held_out.f1:.4f}")
    held = weights(examples)
    network = blocks.parsed(held)
    seen = score([one.page for one in examples], [one.text(network) for one in examples])
    print(f"hosts trained on:     precision {seen.precision:.4f} recall {seen.recall:.4f} F1 {seen.f1:.4f}")
    if given.write:
        TARGET.write_text(json.dumps(held, separators=(",", ":")) + "\n")
        print(f"{TARGET}: {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
