"""Stage train_classifiers: labelled text, reference text and a sample of the crawl -> classifiers.

Reads `extracted` (documents/) and external files. Writes, for each classifier of the recipe, the model
(`<name>/model.bin`, `.ftz` or `weights.json`), `<name>/model.json` (labels and settings of inference),
`<name>/scores.json` (held-out scores and baselines) and `<name>/card.md`; and `index.json`, their names and headline
scores. Logs the cards to the tracker.

The recipe of a quality classifier is DCLM's (Li et al., arXiv 2406.11794, section 4.4): fastText on word pairs,
reference text against a sample of the crawl. Every classifier is a part, so a killed stage resumes at the first missing
one. They are trained in sequence in this process: fastText needs minutes for 200,000 texts, and only a single thread
gives the same bytes every time.
"""

import json
import logging
from typing import Any

from tasks.core.artifact import Artifact
from tasks.core.digest import sha256_of
from tasks.core.engine import Engine
from tasks.core.stage import Inputs, Output, Report
from tasks.filters.learned.fasttext_model import MEANING
from tasks.stages.classifiers.card import card
from tasks.stages.classifiers.config import ClassifiersConfig, ClassifierSettings
from tasks.stages.classifiers.scores import baselines, scores_of
from tasks.stages.classifiers.texts import Example, Examples, files_of, gather
from tasks.stages.classifiers.training import Trained, train

log = logging.getLogger("sluice.classifiers")

VERSION = 3
INDEX = "index.json"
"""Also the name of its part: not a valid name of a classifier."""
SCORES = "scores.json"
CARD = "card.md"


def external(config: ClassifiersConfig) -> dict[str, list[str]]:
    """Returns the external files that the stage reads, by role `texts/<name>`; their bytes enter the fingerprint."""
    return {
        f"texts/{settings.name}": sorted({file.local() for file in files_of(settings)}) for settings in config.train
    }


def run(config: ClassifiersConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Trains the missing classifiers.

    Raises:
        InputError: texts are missing or not readable, or a label has too few.
    """
    for done, settings in enumerate(config.train):
        output.progress(done, len(config.train), settings.name)
        if settings.name not in output.committed:
            _make(settings, inputs["extracted"], output, engine)
    names = [settings.name for settings in config.train]
    for name in names:
        output.log_file(f"card-{name}.md", output.store.read(f"{output.address.path}/{name}/{CARD}"))
    metrics = {key: value for name in names for key, value in sorted(output.committed[name].metrics.items())}
    if INDEX not in output.committed:
        with output.part(INDEX, conserved=False) as part, part.file(INDEX) as file:
            file.write(_json({"classifiers": names, "metrics": metrics}))
    shown = [f"{name} {metrics[f'{name}_auc']:.3f}" for name in names]
    note = f"held-out AUC: {', '.join(shown)}" if shown else "the recipe describes no classifier"
    return Report(metrics=metrics, note=note)


def _make(settings: ClassifierSettings, extracted: Artifact, output: Output, engine: Engine) -> None:
    examples = gather(settings, extracted, engine)
    log.info("[%s] %d texts to learn from, %d held out", settings.name, len(examples.train), len(examples.heldout))
    trained = train(settings, examples.train, examples.heldout, output.scratch)
    scores = _scores(settings, examples, trained)
    page = card(settings, examples, scores, sha256_of(trained.data))
    with output.part(settings.name) as part:
        part.count_in(examples.read)
        part.count_out(len(examples.train) + len(examples.heldout))
        for reason, count in examples.rejected.items():
            part.reject(reason, count)
        files = {
            trained.meaning.file: trained.data,
            MEANING: _json(trained.meaning.model_dump(mode="json")),
            SCORES: _json(scores),
            CARD: page.encode(),
        }
        for name, data in files.items():
            with part.file(f"{settings.name}/{name}") as file:
                file.write(data)
        for name, value in headline(scores, len(examples.train), len(examples.heldout)).items():
            part.metric(f"{settings.name}_{name}", value)


def headline(scores: dict[str, Any], train: int, heldout: int) -> dict[str, float]:
    """Returns the metrics of a classifier for the tracker."""
    return {
        "auc": scores["auc"],
        "accuracy": scores["accuracy"],
        "length_auc": scores["baselines"]["length"]["auc"],
        "majority_accuracy": scores["baselines"]["majority"]["accuracy"],
        "train_texts": train,
        "heldout_texts": heldout,
    }


def _scores(settings: ClassifierSettings, examples: Examples, trained: Trained) -> dict[str, Any]:
    labels = trained.meaning.labels
    base = baselines(labels, _lengths(examples.train), _lengths(examples.heldout), settings.positive)
    truth = [example.label for example in examples.heldout]
    return scores_of(labels, truth, trained.probabilities, settings.positive, base)


def _lengths(examples: list[Example]) -> list[tuple[str, int]]:
    # Length of what the classifier reads: texts are cut to `chars` for the baseline as for the classifier.
    return [(example.label, len(example.text)) for example in examples]


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"
