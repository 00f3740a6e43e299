"""Texts that `blocks` finds with given trees, and the trees of folds, so that pages are scored by trees of other sites.

`train_blocks --folds FOLDER` writes `fold-N.json` in the format of `blocks.json`, and `sites.json` with the fold that
held out each site; `extraction --folds FOLDER` reads them.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

from tasks.formats.web.domain import registered_domain
from tasks.stages.extract import blocks
from tasks.stages.extract.blocks import BlockClassifier, parse_classifier
from tasks.stages.extract.config import ExtractConfig
from tasks.stages.extract.html import read_page

_SITES = "sites.json"


class HostedPage(Protocol):
    """A page and the host it is from."""

    @property
    def html(self) -> str:
        """The decoded page."""

    @property
    def host(self) -> str:
        """The page's host, or the name of its source."""


def site_of(host: str) -> str:
    """Returns the name that a site has under all its domains, so that its pages are in one fold.

    >>> site_of("forum.example.co.uk"), site_of("www.example.org"), site_of("apache2-doc")
    ('example', 'example', 'apache2-doc')
    """
    return registered_domain(host).partition(".")[0]


def texts_by(classifier: BlockClassifier, pages: Sequence[HostedPage]) -> list[str]:
    """Returns the texts that the extract stage finds on pages with the given trees in place of those of the package."""
    config = ExtractConfig(extractor="blocks")
    with mock.patch.object(blocks, "default_classifier", return_value=classifier):
        return [read_page(page.html, config).text for page in pages]


def write_trees(held: Mapping[str, Any], path: Path) -> None:
    """Writes trained weights in the format of `blocks.json`."""
    path.write_text(json.dumps(held, separators=(",", ":")) + "\n")


def write_fold(folder: Path, number: int, held: Mapping[str, Any]) -> None:
    """Writes the trees that were not trained on the sites of a fold."""
    write_trees(held, folder / f"fold-{number}.json")


def write_sites(folder: Path, fold_of: Mapping[str, int]) -> None:
    """Writes the fold of each site."""
    (folder / _SITES).write_text(json.dumps(dict(fold_of), indent=1, ensure_ascii=False) + "\n")


def texts_by_folds(folder: Path, pages: Sequence[HostedPage]) -> list[str]:
    """Returns the text of each page by the trees of its fold; no trees were trained on sites without a fold."""
    fold_of: dict[str, int] = json.loads((folder / _SITES).read_text("utf-8"))
    folds = [fold_of.get(site_of(page.host), 0) for page in pages]
    texts = [""] * len(pages)
    for number in sorted(set(folds)):
        classifier = parse_classifier(json.loads((folder / f"fold-{number}.json").read_text("utf-8")))
        places = [place for place, fold in enumerate(folds) if fold == number]
        for place, text in zip(places, texts_by(classifier, [pages[place] for place in places]), strict=True):
            texts[place] = text
    return texts
