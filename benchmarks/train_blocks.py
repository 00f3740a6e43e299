"""Trains the trees of the `blocks` extractor, after scoring them on unseen hosts.

    python -m benchmarks.train_blocks --gold FOLDER --segments FOLDER [--no-nested] [--write]

The folders are those of `benchmarks.extraction`: pages with their whole main text, and pages with some segments that it
must and must not contain. In the former each block has a label: main text if half of its words are in the annotated
text, in order. In the latter the blocks with segments have one; the others get a silver label with a low weight: the
share of three extractors (trafilatura in two settings, resiliparse) whose text has the block.

The second pass of trees is trained on the predictions of a first pass on hosts unseen by it. The figure for
unseen hosts is cross-validated for both passes: neither was trained on hosts of the scored fold. Sizes of trees and
weights of labels are constants, chosen manually on these pages, the same for all folds. CatBoost trains the trees and
is needed only here (`pip install catboost trafilatura`); its seed is fixed, so equal data give equal
weights on equal machines. With --write the trees of all pages replace `tasks/stages/extract/blocks.json`, and the
figures are stored in `train_blocks.json`. It takes about ten minutes of one core.
"""

import difflib
import json
import logging
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from resiliparse.parse.html import HTMLTree

from benchmarks.extraction import GoldPage, SegmentPage, read_pages, read_segments, scores, squeezed
from benchmarks.harness import keep, parser
from tasks.formats.documents.text import clean, hash64
from tasks.stages.extract.block_features import COLUMNS, CONTEXT, context, features
from tasks.stages.extract.blocks import SCALE, BlockClassifier, blocks_text, candidates, parse_trees
from tasks.stages.extract.html import keep_posts, main_text
from tasks.stages.extract.page_blocks import Blocks, read_blocks
from tasks.stages.extract.page_metadata import read_page_metadata

TARGET = Path(__file__).parents[1] / "tasks" / "stages" / "extract" / "blocks.json"
FOLDS = 5
INNER_FOLDS = 3
TREES = {"first": 200, "second": 120}
_WORD = re.compile(r"\w+")
_SHORTEST_RUN = 3
_GOLD, _SILVER, _SURE_SILVER = 0.4, 0.03, 0.12
_DOUBTFUL = 0.15


@dataclass(frozen=True)
class Example:
    """The blocks of one page with features and labels.

    Attributes:
        page: with its annotation.
        blocks: of the page.
        measured: their features.
        labels: probability that each is main text.
        weights: of the labels; 0 for blocks that the trees do not classify.
    """

    page: GoldPage | SegmentPage
    blocks: Blocks
    measured: NDArray[np.float32]
    labels: NDArray[np.float64]
    weights: NDArray[np.float64]


def silver_texts(html: str) -> list[str]:
    """Returns the main text of a page according to several extractors."""
    import trafilatura

    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)
    found = [
        trafilatura.extract(html),
        trafilatura.extract(html, favor_precision=True),
        main_text(HTMLTree.parse(html)),
    ]
    return [text or "" for text in found]


def examples(
    pages: Sequence[GoldPage | SegmentPage], silver: Callable[[str], list[str]] = silver_texts
) -> list[Example]:
    """Reads pages like the extractor and labels their blocks; skips pages without text."""
    found = []
    for page in pages:
        html = page.html
        tree = HTMLTree.parse(html)
        title = read_page_metadata(tree).stated_title
        keep_posts(tree, html.encode("utf-8", "surrogatepass"))
        blocks = read_blocks(tree)
        if blocks is not None:
            measured = features(blocks, title.lower())
            texts = [squeezed(blocks.text(index)) for index in range(len(blocks))]
            if isinstance(page, GoldPage):
                labels, weights = _by_gold(texts, page.gold)
            else:
                labels, weights = _by_segments(texts, page, silver(html))
            weights *= candidates(measured)
            found.append(Example(page, blocks, measured, labels, weights))
    return found


def _size(texts: Sequence[str]) -> NDArray[np.float64]:
    return np.sqrt([min(max(len(text.split()), 1), 60) for text in texts])


def _by_gold(texts: Sequence[str], gold: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    words = [_WORD.findall(text) for text in texts]
    flat = [word for held in words for word in held]
    matched = np.zeros(len(flat))
    matcher = difflib.SequenceMatcher(None, flat, _WORD.findall(gold), autojunk=False)
    for start, _, length in matcher.get_matching_blocks():
        matched[start : start + length] = 1.0 if length >= _SHORTEST_RUN else 0.5
    ends = np.cumsum([len(held) for held in words])
    share = [matched[end - len(held) : end].sum() / max(1, len(held)) for held, end in zip(words, ends, strict=True)]
    return (np.array(share) >= 0.5).astype(float), _GOLD * _size(texts)


def _by_segments(
    texts: Sequence[str], page: SegmentPage, silver: Sequence[str]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    labels = np.mean([_shared(texts, text) for text in silver], axis=0)
    likely = labels.copy()
    weights = (_SILVER + _SURE_SILVER * np.abs(2 * labels - 1)) * _size(texts) / 3
    flat = " ".join(texts)
    starts = np.cumsum([0, *(len(text) + 1 for text in texts)])[:-1]

    def places(segment: str) -> list[list[int]]:
        held, at, found = squeezed(segment), -1, []
        while held and (at := flat.find(held, at + 1)) >= 0:
            first, last = np.searchsorted(starts, (at, at + len(held) - 1), "right") - 1
            found.append(list(range(first, last + 1)))
        return found

    for segment in page.unwanted:
        found = places(segment)
        for index in {index for held in found for index in held}:
            inside = len(texts[index]) > 6 * len(segment) or len(found) > 1
            if inside and likely[index] > 0.7:  # words that also occur in the main text
                weights[index] = _DOUBTFUL * weights[index]
            else:
                labels[index], weights[index] = 0.0, 1.0
    for segment in page.wanted:
        if found := places(segment):
            best = max(found, key=lambda held: (likely[held].mean(), max(len(texts[index]) for index in held)))
            labels[best], weights[best] = 1.0, 1.0
    return labels, weights


def _shared(texts: Sequence[str], other: str) -> list[float]:
    """Returns the share of each text's three-word runs in another text; for shorter texts whether it has the line."""
    words = _WORD.findall(other)
    runs = set(zip(words, words[1:], words[2:], strict=False))
    lines = {" ".join(_WORD.findall(line)) for line in other.split("\n")}
    found = []
    for text in texts:
        own = _WORD.findall(text)
        held = list(zip(own, own[1:], own[2:], strict=False))
        short = len(own) < 4
        found.append(float(" ".join(own) in lines) if short else sum(run in runs for run in held) / len(held))
    return found


def grown(rows: NDArray[np.float32], labels: NDArray[np.float64], weights: NDArray[np.float64], trees: int) -> Any:
    """Trains trees on rows with positive weight; returns them in the format of the weights file, without names."""
    from catboost import CatBoostClassifier, Pool

    model = CatBoostClassifier(
        loss_function="CrossEntropy", iterations=trees, depth=6, learning_rate=0.08, l2_leaf_reg=5, border_count=64,
        rsm=0.3, bootstrap_type="Bernoulli", subsample=0.8, random_seed=0, thread_count=2, verbose=0,
        allow_writing_files=False,
    )  # fmt: skip
    used = weights > 0
    model.fit(Pool(rows[used], labels[used], weight=weights[used]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        model.save_model(str(path), format="json")
        return json.loads(path.read_text())


def weights_of(model: Any, names: Sequence[str]) -> dict[str, Any]:
    """Returns a model of CatBoost in the format of `blocks.json`; its first split is the lowest bit of a leaf index."""
    scale, (bias,) = model["scale_and_bias"]
    depth = max(len(tree["splits"] or ()) for tree in model["oblivious_trees"])
    trees = []
    for tree in model["oblivious_trees"]:
        splits = list(reversed(tree["splits"] or ()))
        leaves = [round(scale * leaf * SCALE) for leaf in tree["leaf_values"]]
        missing = depth - len(splits)
        trees.append(
            {
                "columns": [names[0]] * missing + [names[split["float_feature_index"]] for split in splits],
                "limits": [3e38] * missing + [float(f"{split['border']:.7g}") for split in splits],
                "leaves": leaves + [0] * ((1 << depth) - len(leaves)),
            }
        )
    return {"base": round(bias * SCALE), "trees": trees}


def trained(of: Sequence[Example]) -> dict[str, Any]:
    """Trains both passes; returns the content of `blocks.json`."""
    labels = np.concatenate([one.labels for one in of])
    weights = np.concatenate([one.weights for one in of])
    seen: dict[int, NDArray[np.float64]] = {}
    for rest, held_out in folds(of, INNER_FOLDS):
        first = parse_trees(_first(rest), COLUMNS)
        for one in held_out:
            seen[id(one)] = _odds(one, first.odds(one.measured))
    both = [np.concatenate((one.measured, context(one.blocks, one.measured, seen[id(one)]))).T for one in of]
    second = weights_of(grown(np.concatenate(both), labels, weights, TREES["second"]), (*COLUMNS, *CONTEXT))
    return {"first": _first(of), "second": second}


def _first(of: Sequence[Example]) -> dict[str, Any]:
    rows, labels, weights = (
        np.concatenate([one.measured.T for one in of]),
        np.concatenate([one.labels for one in of]),
        np.concatenate([one.weights for one in of]),
    )
    return weights_of(grown(rows, labels, weights, TREES["first"]), COLUMNS)


def _odds(one: Example, odds: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(candidates(one.measured), odds, -9.0)


def classifier_of(held: dict[str, Any]) -> BlockClassifier:
    """Returns trained weights in the form used by the extractor."""
    return BlockClassifier(parse_trees(held["first"], COLUMNS), parse_trees(held["second"], (*COLUMNS, *CONTEXT)))


def folds(of: Sequence[Example], count: int) -> Iterator[tuple[list[Example], list[Example]]]:
    """Splits examples by host: yields (train, held out) for each fold, with hosts assigned by hash."""
    hosts = sorted({one.page.host for one in of}, key=lambda host: (hash64(f"{count} {host}"), host))
    fold = {host: index % count for index, host in enumerate(hosts)}
    for index in range(count):
        yield (
            [one for one in of if fold[one.page.host] != index],
            [one for one in of if fold[one.page.host] == index],
        )


def texts_by(by: BlockClassifier, pages: Sequence[GoldPage | SegmentPage]) -> list[str]:
    """Returns the texts that the extractor finds on pages with the given trees."""
    found = []
    for page in pages:
        html = page.html
        tree = HTMLTree.parse(html)
        keep_posts(tree, html.encode("utf-8", "surrogatepass"))
        found.append(clean(blocks_text(tree, read_page_metadata(tree).stated_title, classifier=by) or main_text(tree)))
    return found


def cross_validated(of: Sequence[Example], count: int = FOLDS) -> dict[str, Any]:
    """Scores every page with trees that were not trained on its host."""
    pages: list[GoldPage | SegmentPage] = []
    texts: list[str] = []
    for seen, held_out in folds(of, count):
        unseen = [one.page for one in held_out]
        texts += texts_by(classifier_of(trained(seen)), unseen)
        pages += unseen
        print(f"  {len(pages)} pages", flush=True)
    return scores(pages, texts)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--gold", required=True, type=Path, help="folder with html/ and ground-truth.json")
    options.add_argument("--segments", required=True, type=Path, help="folder with html/ and pages.jsonl")
    options.add_argument("--no-nested", action="store_true", help="skip the figure for unseen hosts")
    options.add_argument("--write", action="store_true", help=f"replace {TARGET.name}")
    given = options.parse_args()
    pages: list[GoldPage | SegmentPage] = [*read_pages(given.gold), *read_segments(given.segments)]
    of = examples(pages)
    hosts = len({one.page.host for one in of})
    result: dict[str, Any] = {"pages": len(of), "hosts": hosts, "blocks": sum(len(one.blocks) for one in of)}
    print(result, flush=True)
    if not given.no_nested:
        result["unseen hosts, nested"] = cross_validated(of)
    held = trained(of)
    result["hosts trained on"] = scores(pages, texts_by(classifier_of(held), pages))
    print(json.dumps(result, indent=2))
    if given.write:
        TARGET.write_text(json.dumps(held, separators=(",", ":")) + "\n")
        print(f"{TARGET}: {TARGET.stat().st_size:,} bytes")
        keep("train_blocks", result)


if __name__ == "__main__":
    main()
