"""Cut points between head, middle and tail: thirds of the corpus by perplexity.

As in CCNet (Wenzek et al. 2019, arXiv 1911.00359) the crawl sets them and not the reference text: crawled documents
have a higher perplexity, and most of them would be tail.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tasks.core.artifact import Artifact
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.filters.batch import Batch
from tasks.filters.language import LanguageLabels
from tasks.filters.ngram.model import NgramModel, Scores
from tasks.stages.perplexity.config import ANY_LANGUAGE, PerplexityConfig, Reference
from tasks.stages.perplexity.reference import CANDIDATE, candidates, lowest, taken, units

# Quantiles of fewer documents are too noisy.
_FEWEST = 100


@dataclass(frozen=True)
class Cuts:
    """Cut points and their provenance.

    Attributes:
        head: perplexity up to which a document is head.
        middle: perplexity up to which it is middle; above is tail.
        of: description of the documents that set them.
    """

    head: float
    middle: float
    of: str


def crawled(config: PerplexityConfig, extracted: Artifact | None, engine: Engine) -> dict[str, list[str]]:
    """Samples documents of the corpus; returns their texts by the language of the model that scores them.

    Raises:
        InputError: there are models of several languages, and the model for language identification is missing.
    """
    if extracted is None or not config.cut_source:
        return {}
    files = units([Reference(name=config.cut_source, kind="documents")], extracted)
    chosen = np.zeros(0, CANDIDATE)
    for _, listed in engine.map(partial(candidates, config.cut_bytes, config.seed), list(enumerate(files))):
        chosen = lowest(np.concatenate([chosen, listed]), config.cut_bytes)
    none = np.empty(0, np.int64)
    places = {number: chosen["place"][chosen["unit"] == number] for number in np.unique(chosen["unit"]).tolist()}
    tasks = [(files[number], none, within) for number, within in places.items()]
    texts = [text for _, heldout in in_order(engine, taken, tasks) for text in heldout]
    languages = {reference.language for reference in config.references}
    if not texts or languages == {ANY_LANGUAGE}:
        return {ANY_LANGUAGE: texts}
    identifier = LanguageLabels()
    identifier.prepare({})
    grouped: dict[str, list[str]] = {}
    for label, text in zip(identifier.measure(Batch(texts))["label"], texts, strict=True):
        grouped.setdefault(label if label in languages else ANY_LANGUAGE, []).append(text)
    return grouped


def thirds(config: PerplexityConfig, model: NgramModel, documents: Sequence[str], heldout: Scores) -> Cuts:
    """Returns the terciles of the documents' perplexity or, if they are too few, of the held-out texts'."""
    if len(documents) >= _FEWEST:
        scores, of = model.score(documents), f'{len(documents):,} documents of the source "{config.cut_source}"'
    else:
        scores, of = heldout, "the texts held out"
    values = scores.perplexity[scores.words > 0]
    if not len(values):
        raise InputError(f"none of {of} has a word", "name more references")
    head, middle = np.quantile(values.astype(np.float32), [1 / 3, 2 / 3])
    return Cuts(round(float(head), 4), round(float(middle), 4), of)


def in_order(engine: Engine, fn: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """Maps `fn` over items on the engine's workers; returns the results in input order."""
    done = dict(engine.map(fn, items))
    return [done[index] for index in range(len(items))]
