"""Trains the trees of the `blocks` extractor, after scoring them on unseen hosts.

    python -m benchmarks.train_blocks --gold FOLDER --segments FOLDER --kinds FOLDER [--no-nested] [--folds FOLDER]
        [--write]

The folders are those of `benchmarks.extraction`: pages with their whole main text, pages with some segments that it
must and must not contain, and pages of other kinds. `block_labels` describes the labels. Recipes state only their steps
and ingredients, which are segments here; like pages with segments, they take silver labels from three extractors
(trafilatura in two settings, resiliparse) for the other blocks.

The second pass of trees is trained on the predictions of a first pass on hosts unseen by it. The figure for
unseen hosts is cross-validated for both passes: neither was trained on hosts of the scored fold. Hosts of one name are
one site and share a fold, whatever their domains. Sizes of trees and weights of labels are constants, chosen manually
on these pages, the same for all folds. CatBoost trains the trees and is needed only here
(`pip install catboost trafilatura`); its seed is fixed, so equal data give equal weights on equal machines.

With --folds the trees of each fold are written as `fold-N.json`, and the sites of the folds as `sites.json`, from which
`benchmarks.extraction --folds FOLDER` states the figures by kind of page. With --write the trees of all pages replace
`tasks/stages/extract/blocks.json`, and the figures are stored in `train_blocks.json`. It takes about ten minutes of one
core.
"""

import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from resiliparse.parse.html import HTMLTree

from benchmarks.block_labels import Labels, labels_by_segments, labels_by_text, units_of
from benchmarks.extraction import Page, SegmentPage, read_pages, read_segments, scores
from benchmarks.harness import keep, parser
from benchmarks.page_kinds import KindPage, read_kinds, words_of
from benchmarks.unseen_hosts import site_of, texts_by, write_fold, write_sites, write_trees
from tasks.formats.documents.text import hash64
from tasks.stages.extract.block_features import COLUMNS, CONTEXT, context, features
from tasks.stages.extract.blocks import SCALE, candidates, default_classifier, parse_classifier, parse_trees
from tasks.stages.extract.html import main_text, parsed, show
from tasks.stages.extract.page_blocks import Blocks, read_blocks
from tasks.stages.extract.page_metadata import read_page_metadata
from tasks.stages.extract.page_structure import NEVER

TARGET = Path(__file__).parents[1] / "tasks" / "stages" / "extract" / "blocks.json"
FOLDS = 5
INNER_FOLDS = 3
TREES = {"first": 200, "second": 120}
WEIGHTS = {"recipe": 3.0}
"""Factor of the weights of a kind's pages; 1 for the others."""


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

    page: Page
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


def prepared(html: str) -> tuple[HTMLTree, str]:
    """Returns the tree and the title of a page as `read_page` gives them to the extractor."""
    tree, source = parsed(html)
    title = read_page_metadata(tree).stated_title
    show(tree, source)
    return tree, title


def examples(pages: Sequence[Page], silver: Callable[[str], list[str]] = silver_texts) -> list[Example]:
    """Reads pages like the extractor and labels their blocks; skips pages without text."""
    found = []
    for page in pages:
        tree, title = prepared(page.html)
        blocks = read_blocks(tree)
        if blocks is not None:
            measured = features(blocks, title.lower())
            labels, weights = _labels(page, blocks, silver)
            weights *= candidates(measured)
            found.append(Example(page, blocks, measured, labels, weights))
    return found


def _labels(page: Page, blocks: Blocks, silver: Callable[[str], list[str]]) -> Labels:
    words, units = [words_of(blocks.text(index)) for index in range(len(blocks))], units_of(blocks)
    if isinstance(page, SegmentPage):
        return labels_by_segments(words, page.wanted, page.unwanted, silver(page.html), units)
    if isinstance(page, KindPage) and page.parts:
        wanted = [one for of in page.parts.values() for one in of]
        labels, weights = labels_by_segments(words, wanted, (), silver(page.html), units)
        return labels, WEIGHTS.get(page.kind, 1.0) * weights
    return labels_by_text(words, words_of(page.gold), units)


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
    return np.where(candidates(one.measured), odds, NEVER)


def folds(of: Sequence[Example], count: int) -> Iterator[tuple[list[Example], list[Example]]]:
    """Splits examples by site: yields (train, held out) for each fold, with sites assigned by hash."""
    sites = sorted({site_of(one.page.host) for one in of}, key=lambda site: (hash64(f"{count} {site}"), site))
    fold = {site: index % count for index, site in enumerate(sites)}
    for index in range(count):
        yield (
            [one for one in of if fold[site_of(one.page.host)] != index],
            [one for one in of if fold[site_of(one.page.host)] == index],
        )


def cross_validated(
    of: Sequence[Example], without: Sequence[Page] = (), count: int = FOLDS, kept: Path | None = None
) -> dict[str, Any]:
    """Scores every page with trees that were not trained on its site.

    Args:
        of: the labeled pages.
        without: pages without blocks, which are scored by the text that any trees leave to other extractors.
        count: number of folds.
        kept: folder for the trees of the folds; None to forget them.
    """
    pages: list[Page] = []
    texts: list[str] = []
    fold_of: dict[str, int] = {}
    for number, (seen, held_out) in enumerate(folds(of, count)):
        held = trained(seen)
        unseen = [one.page for one in held_out]
        texts += texts_by(parse_classifier(held), unseen)
        pages += unseen
        fold_of |= dict.fromkeys((site_of(page.host) for page in unseen), number)
        if kept:
            write_fold(kept, number, held)
        print(f"  {len(pages)} pages", flush=True)
    if kept:
        write_sites(kept, fold_of)
    return scores([*pages, *without], [*texts, *texts_by(default_classifier(), without)])


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--gold", required=True, type=Path, help="folder with html/ and ground-truth.json")
    options.add_argument("--segments", required=True, type=Path, help="folder with html/ and pages.jsonl")
    options.add_argument("--kinds", required=True, type=Path, help="folder with pages.jsonl.zst")
    options.add_argument("--no-nested", action="store_true", help="skip the figure for unseen hosts")
    options.add_argument("--folds", type=Path, help="folder for the trees of each fold")
    options.add_argument("--write", action="store_true", help=f"replace {TARGET.name}")
    given = options.parse_args()
    if given.folds:
        given.folds.mkdir(parents=True, exist_ok=True)
    pages: list[Page] = [*read_pages(given.gold), *read_segments(given.segments), *read_kinds(given.kinds)]
    of = examples(pages)
    hosts = len({one.page.host for one in of})
    result: dict[str, Any] = {"pages": len(of), "hosts": hosts, "blocks": sum(len(one.blocks) for one in of)}
    print(result, flush=True)
    if not given.no_nested:
        labeled = {id(one.page) for one in of}
        without = [page for page in pages if id(page) not in labeled]
        result["unseen hosts, nested"] = cross_validated(of, without, kept=given.folds)
    held = trained(of)
    result["hosts trained on"] = scores(pages, texts_by(parse_classifier(held), pages))
    print(json.dumps(result, indent=2))
    if given.write:
        write_trees(held, TARGET)
        print(f"{TARGET}: {TARGET.stat().st_size:,} bytes")
        keep("train_blocks", result)


if __name__ == "__main__":
    main()
