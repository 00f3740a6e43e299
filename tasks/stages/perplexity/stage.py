"""Stage train_perplexity: reference text -> n-gram models, one per language, with cut points and a model card.

Reads files that the recipe names and, where it asks for it, `extracted`. Writes per language `<language>/`:
`model.json` and `order-<n>.npy` (read by the annotator `perplexity`), `model.arpa.gz` (read by KenLM, SRILM ...),
`about.json` (cut points and figures), `card.md`. The cards go to the tracker too.

Same texts and settings give the same bytes, on any number of workers: what is drawn depends on hashes of the texts, and
counts are the same in whatever order the texts come.
"""

import gzip
import json
import logging
from typing import Any

from tasks.core.artifact import Artifact
from tasks.core.engine import Engine
from tasks.core.errors import InputError
from tasks.core.stage import Inputs, Output, Part, Report
from tasks.filters.ngram.arpa import write_arpa
from tasks.filters.ngram.loaded import ABOUT
from tasks.filters.ngram.model import NgramModel, Scores
from tasks.stages.perplexity.card import Use, card
from tasks.stages.perplexity.config import PerplexityConfig
from tasks.stages.perplexity.cuts import Cuts, crawled, in_order, thirds
from tasks.stages.perplexity.estimate import Estimate, estimate
from tasks.stages.perplexity.reference import draw, files_of, joined, listing, taken, units

log = logging.getLogger("sluice.perplexity")

VERSION = 2
ARPA = "model.arpa.gz"
CARD = "card.md"


def external(config: PerplexityConfig) -> dict[str, list[str]]:
    """Returns the files outside the store that the stage reads, by role `reference:<name>`."""
    return {f"reference:{one.name}": [file.local() for file in files_of(one)] for one in config.references if one.path}


def run(config: PerplexityConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Trains a model per language; raises InputError when the recipe names no reference, or one without text."""
    if not config.references:
        raise InputError(f"{output.address}: no reference text", "add [[perplexity.references]] to the recipe")
    extracted = inputs.get("extracted")
    languages = sorted({reference.language for reference in config.references})
    missing = [language for language in languages if language not in output.committed]
    documents = crawled(config, extracted, engine) if missing else {}
    for language in missing:
        _train(language, config, extracted, documents.get(language, []), output, engine)
    for language in languages:
        output.log_file(f"card-{language}.md", output.store.read(f"{output.address.path}/{language}/{CARD}"))
    metrics = {name: value for language in languages for name, value in output.committed[language].metrics.items()}
    shown = ", ".join(f"{language} {metrics[f'{language}/heldout_perplexity']:.0f}" for language in languages)
    return Report(metrics=metrics, note=f"perplexity on held-out text: {shown}")


def _train(
    language: str,
    config: PerplexityConfig,
    extracted: Artifact | None,
    documents: list[str],
    output: Output,
    engine: Engine,
) -> None:
    found = units([one for one in config.references if one.language == language], extracted)
    listings = in_order(engine, listing, found)
    chosen = draw(listings, config)
    tasks = list(zip(found, chosen.training, chosen.heldout, strict=True))
    read = in_order(engine, taken, tasks)
    text = joined([words for words, _ in read], config.vocabulary)
    made = estimate(text.ids, text.words, config.order, config.thresholds)
    if any(made.fallback):
        log.warning("[%s] the reference text of %s is too small to learn discounts from it", output.address, language)
    model = NgramModel.build(made.ngrams)
    heldout = model.score([text for _, texts in read for text in texts])
    cuts = thirds(config, model, documents, heldout)
    uses = []
    for reference in config.references:
        mine = [index for index, unit in enumerate(found) if unit.reference == reference]
        if mine:
            sizes = [int(listings[index].sizes[chosen.training[index]].sum()) for index in mine]
            uses.append(Use(reference, sum(len(chosen.training[index]) for index in mine), sum(sizes)))
    with output.part(language, conserved=False) as part:
        _write(part, language, model, made, cuts, heldout)
        with part.file(f"{language}/{CARD}") as file:
            file.write(card(language, config, uses, made, heldout, cuts).encode())
        for name, value in _figures(made, heldout, cuts).items():
            part.metric(f"{language}/{name}", value)


def _figures(made: Estimate, heldout: Scores, cuts: Cuts) -> dict[str, float]:
    whole = heldout.total()
    # Rounded, so that processors that sum in another order give the same bytes.
    return {
        "heldout_perplexity": round(float(whole.perplexity[0]), 4),
        "heldout_perplexity_known": round(float(whole.perplexity_known[0]), 4),
        "heldout_unknown_share": round(float(whole.unknown[0] / max(1, whole.words[0])), 4),
        "heldout_texts": float(len(heldout.words)),
        "cut_head": cuts.head,
        "cut_middle": cuts.middle,
        "ngrams": float(sum(len(level.prob) for level in made.ngrams.levels)),
    }


def _write(part: Part, language: str, model: NgramModel, made: Estimate, cuts: Cuts, heldout: Scores) -> None:
    def write(name: str, data: bytes) -> None:
        with part.file(f"{language}/{name}") as file:
            file.write(data)

    model.save(write)
    about: dict[str, Any] = {"cuts": [cuts.head, cuts.middle], "cuts_of": cuts.of, **_figures(made, heldout, cuts)}
    write(ABOUT, json.dumps(about, indent=2, sort_keys=True).encode() + b"\n")
    # Neither a name nor a time in the header, so that the same model gives the same bytes.
    with (
        part.file(f"{language}/{ARPA}") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=6, mtime=0) as packed,
    ):
        write_arpa(made.ngrams, packed.write)
