"""Stage train_perplexity: reference text -> n-gram models, one per language, with cut points and a model card.

Reads the external files of the recipe and, for references of the kind `documents` and the cut points, `extracted`.
Writes, per language, in `<language>/`: `model.json` and `order-<n>.npy` (format of the annotator `perplexity`),
`model.arpa.gz` (the ARPA format of KenLM and SRILM), `about.json` (cut points and figures) and `card.md`. Logs the
cards to the tracker.

The cut points divide the corpus into thirds by perplexity: head, middle and tail. As in CCNet (Wenzek et al. 2019,
arXiv 1911.00359), they are those of the crawl and not of the reference text: crawled documents have a higher
perplexity, so with the latter most of them would be tail.

The same texts and settings give the same bytes on any number of workers: samples depend on hashes of the texts, and
counts do not depend on the order of the texts.
"""

import gzip
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tasks.core.artifact import Artifact
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.pages import model_card, table
from tasks.core.stage import Inputs, Output, Part, Report
from tasks.filters.batch import DocumentBatch
from tasks.filters.language import LanguageLabels
from tasks.filters.ngram.files import ABOUT, write_arpa
from tasks.filters.ngram.model import NgramModel, Scores
from tasks.formats.hooks import Hooks, words_version
from tasks.stages.perplexity import ANY_LANGUAGE, PerplexityConfig, ReferenceText
from tasks.stages.perplexity.estimate import EstimatedModel, estimate
from tasks.stages.perplexity.reference import (
    CANDIDATE,
    candidates,
    concatenate,
    draw,
    files_of,
    files_with_texts,
    listing,
    lowest,
    read_sample,
)

log = logging.getLogger("sluice.perplexity")

VERSION = 2

# Minimum number of documents for cut points; quantiles of fewer are too noisy.
_FEWEST = 100

ARPA = "model.arpa.gz"
CARD = "card.md"
_KINDS = {"text": "files of one text", "jsonl": "JSON lines", "documents": "documents of the corpus"}

_LIMITS = (
    "- Perplexities of two models cannot be compared: they have different vocabularies.",
    "- A text of another kind than the references (code, verse, tables, another language) scores as unusual.",
    "- A text that repeats usual phrases scores well, whatever it says; very low values are often boilerplate.",
    "- Phrases of the references can be read out of the files: who may not see them may not have it.",
)


@dataclass(frozen=True)
class Cuts:
    """Cut points and their provenance.

    Attributes:
        head: maximum perplexity of head.
        middle: maximum perplexity of middle; documents above it are tail.
        of: description of the documents from which they were computed.
    """

    head: float
    middle: float
    of: str


def external(config: PerplexityConfig) -> dict[str, list[str]]:
    """Returns the external files that the stage reads, by role `reference:<name>`."""
    return {
        f"reference:{text.name}": [file.local() for file in files_of(text)] for text in config.references if text.path
    }


HOOKS = Hooks(external=external, code=words_version)


def run(config: PerplexityConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Trains a model per language; raises InputError if the recipe has no reference, or one without text."""
    if not config.references:
        raise InputError(f"{output.address}: no reference text", "add [[perplexity.references]] to the recipe")
    extracted = inputs.get("extracted")
    languages = sorted({reference.language for reference in config.references})
    missing = [language for language in languages if language not in output.committed]
    documents = sample_crawl(config, extracted, engine) if missing else {}
    for language in missing:
        _train(language, config, extracted, documents.get(language, []), output, engine)
    for language in languages:
        output.log_file(f"card-{language}.md", output.folder.read(f"{language}/{CARD}"))
    metrics = {name: value for language in languages for name, value in output.committed[language].metrics.items()}
    perplexities = ", ".join(f"{language} {metrics[f'{language}/heldout_perplexity']:.0f}" for language in languages)
    return Report(metrics=metrics, note=f"perplexity on held-out text: {perplexities}")


def _train(
    language: str,
    config: PerplexityConfig,
    extracted: Artifact | None,
    documents: list[str],
    output: Output,
    engine: Engine,
) -> None:
    files = files_with_texts(
        [reference for reference in config.references if reference.language == language], extracted
    )
    listings = map_in_order(engine, listing, list(enumerate(files)))
    sample = draw(listings, config)
    tasks = list(zip(files, sample.training, sample.heldout, strict=True))
    samples = map_in_order(engine, read_sample, tasks)
    text = concatenate([words for words, _ in samples], config.vocabulary)
    estimated = estimate(text.ids, text.words, config.order, config.thresholds)
    if any(estimated.fallback):
        log.warning("[%s] the reference text of %s is too small to estimate discounts", output.address, language)
    model = NgramModel.build(estimated.ngrams)
    heldout = model.score([text for _, texts in samples for text in texts])
    cuts = cut_points(config, model, documents, heldout)
    uses = []
    for reference in config.references:
        indices = [index for index, unit in enumerate(files) if unit.reference == reference]
        if indices:
            sizes = [int(listings[index]["size"][sample.training[index]].sum()) for index in indices]
            uses.append(ReferenceUse(reference, sum(len(sample.training[index]) for index in indices), sum(sizes)))
    with output.part(language, conserved=False) as part:
        _write(part, language, model, estimated, cuts, heldout)
        part.write(f"{language}/{CARD}", card(language, config, uses, estimated, heldout, cuts).encode())
        for name, value in _figures(estimated, heldout, cuts).items():
            part.metric(f"{language}/{name}", value)


def _figures(estimated: EstimatedModel, heldout: Scores, cuts: Cuts) -> dict[str, float]:
    whole = heldout.total()
    # Rounded, because the order of summation differs between processors.
    return {
        "heldout_perplexity": round(float(whole.perplexity[0]), 4),
        "heldout_perplexity_known": round(float(whole.perplexity_known[0]), 4),
        "heldout_unknown_share": round(float(whole.unknown[0] / max(1, whole.words[0])), 4),
        "heldout_texts": float(len(heldout.words)),
        "cut_head": cuts.head,
        "cut_middle": cuts.middle,
        "ngrams": float(sum(len(level.prob) for level in estimated.ngrams.levels)),
    }


def _write(
    part: Part, language: str, model: NgramModel, estimated: EstimatedModel, cuts: Cuts, heldout: Scores
) -> None:
    def write(name: str, data: bytes) -> None:
        part.write(f"{language}/{name}", data)

    model.save(write)
    about: dict[str, Any] = {"cuts": [cuts.head, cuts.middle], "cuts_of": cuts.of, **_figures(estimated, heldout, cuts)}
    write(ABOUT, json.dumps(about, indent=2, sort_keys=True).encode() + b"\n")
    # The gzip header has no name and time, so that the same model gives the same bytes.
    with (
        part.file(f"{language}/{ARPA}") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=6, mtime=0) as packed,
    ):
        write_arpa(estimated.ngrams, packed.write)


@dataclass(frozen=True)
class ReferenceUse:
    """Training text drawn from one reference: number of texts, and UTF-8 bytes."""

    reference: ReferenceText
    texts: int
    bytes: int


def card(
    language: str,
    config: PerplexityConfig,
    uses: list[ReferenceUse],
    estimate: EstimatedModel,
    heldout: Scores,
    cuts: Cuts,
) -> str:
    """Returns the card as Markdown."""
    words, unknown = int(heldout.words.sum()), int(heldout.unknown.sum())
    whole = heldout.total()
    entries = [len(level.prob) for level in estimate.ngrams.levels]
    orders = [
        [
            str(n),
            f"{estimate.distinct[n - 1]:,}",
            f"{entries[n - 1]:,}",
            str(config.thresholds[n - 1]),
            ", ".join(f"{value:.3f}" for value in estimate.discounts[n - 1])
            + (" (assumed: too little text)" if estimate.fallback[n - 1] else ""),
        ]
        for n in range(1, config.order + 1)
    ]
    sources = [
        [
            use.reference.name,
            _KINDS[use.reference.kind],
            f"{use.texts:,}",
            f"{use.bytes:,}",
            use.reference.licence or "not stated",
        ]
        for use in uses
    ]
    description = [
        f"An interpolated modified Kneser-Ney model of order {config.order} over {entries[0] - 3:,} words "
        "(lower case, digits as 0, punctuation marks as words; a line is a sentence).",
        "It tells how usual a text is beside the texts below. It says nothing of whether a text is true or good.",
    ]
    sections = {
        "Learnt from": table(["reference", "kind", "texts", "bytes", "licence"], sources),
        "Size": table(["order", "different n-grams", "kept", "left out up to", "discounts 1, 2, 3+"], orders),
        "Held-out text": [
            f"- texts: {len(heldout.words):,}; words: {words:,}; unknown: {unknown / max(1, words):.2%}",
            f"- perplexity: {whole.perplexity[0]:.1f}; without unknown words: {whole.perplexity_known[0]:.1f}",
        ],
        "Head, middle, tail": [
            f"Head up to {cuts.head:.1f}, middle up to {cuts.middle:.1f}, tail above: a third each of {cuts.of}."
        ],
        "Limits": _LIMITS,
    }
    return model_card(f"N-gram model, language `{language}`", description, sections)


def sample_crawl(config: PerplexityConfig, extracted: Artifact | None, engine: Engine) -> dict[str, list[str]]:
    """Samples documents of the corpus; returns their texts by the language of the model that scores them.

    Raises:
        InputError: the model for language identification is needed, because there are several languages, and missing.
    """
    if extracted is None or not config.cut_source:
        return {}
    files = files_with_texts([ReferenceText(name=config.cut_source, kind="documents")], extracted)
    selected = np.zeros(0, CANDIDATE)
    for _, file_candidates in engine.map(partial(candidates, config.cut_bytes, config.seed), list(enumerate(files))):
        selected = lowest(np.concatenate([selected, file_candidates]), config.cut_bytes)
    no_indices = np.empty(0, np.int64)
    positions = {
        number: selected["place"][selected["unit"] == number] for number in np.unique(selected["unit"]).tolist()
    }
    tasks = [(files[number], no_indices, within) for number, within in positions.items()]
    texts = [text for _, heldout in map_in_order(engine, read_sample, tasks) for text in heldout]
    languages = {reference.language for reference in config.references}
    if not texts or languages == {ANY_LANGUAGE}:
        return {ANY_LANGUAGE: texts}
    identifier = LanguageLabels()
    identifier.prepare({})
    grouped: dict[str, list[str]] = {}
    for label, text in zip(identifier.measure(DocumentBatch(texts))["label"], texts, strict=True):
        grouped.setdefault(label if label in languages else ANY_LANGUAGE, []).append(text)
    return grouped


def cut_points(config: PerplexityConfig, model: NgramModel, documents: Sequence[str], heldout: Scores) -> Cuts:
    """Returns the terciles of the perplexities of the documents or, if these are too few, of the held-out texts."""
    if len(documents) >= _FEWEST:
        scores, description = (
            model.score(documents),
            f'{len(documents):,} documents of the source "{config.cut_source}"',
        )
    else:
        scores, description = heldout, "the texts held out"
    values = scores.perplexity[scores.words > 0]
    if not len(values):
        raise InputError(f"none of {description} has a word", "name more references")
    head, middle = np.quantile(values.astype(np.float32), [1 / 3, 2 / 3])
    return Cuts(round(float(head), 4), round(float(middle), 4), description)


def map_in_order(engine: Engine, fn: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """Maps `fn` over items on the engine's workers; returns the results in input order."""
    results = dict(engine.map(fn, items))
    return [results[index] for index in range(len(items))]
