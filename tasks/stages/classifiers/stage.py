"""Stage train_classifiers: labelled text, reference text and a sample of the crawl -> classifiers.

Reads `extracted` (documents/) and files outside the store. Writes, per classifier that the recipe describes, the model
(`<name>/model.bin`, `.ftz` or `weights.json`), `<name>/model.json` (what its labels mean), `<name>/scores.json`
(held-out scores beside baselines) and `<name>/card.md`; and `index.json`, their names and headline scores. The cards go
to the tracker too.

The recipe of a gate of quality is DCLM's (Li et al., arXiv 2406.11794, section 4.4): fastText on word pairs, reference
text against a sample of the crawl. Every classifier is a part of its own, so a killed stage goes on at the first that
is missing. They are trained one after the other in this process: fastText's own time is minutes for 200,000 texts, and
one thread is what makes its result the same every time.
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
"""Also the name of its part: no classifier can be called so."""
SCORES = "scores.json"
CARD = "card.md"


def external(config: ClassifiersConfig) -> dict[str, list[str]]:
    """Returns the files outside the store that the stage reads; their bytes enter the fingerprint."""
    return {f"texts/{one.name}": sorted({file.local() for file in files_of(one)}) for one in config.train}


def run(config: ClassifiersConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Trains what is missing.

    Raises:
        InputError: texts are not there or not readable, or a label has too few.
    """
    for done, settings in enumerate(config.train):
        output.progress(done, len(config.train), settings.name)
        if settings.name not in output.committed:
            _make(settings, inputs["extracted"], output, engine)
    for one in config.train:
        output.log_file(f"card-{one.name}.md", output.store.read(f"{output.address.path}/{one.name}/{CARD}"))
    metrics = {
        name: value for one in config.train for name, value in sorted(output.committed[one.name].metrics.items())
    }
    if INDEX not in output.committed:
        with output.part(INDEX, conserved=False) as part, part.file(INDEX) as file:
            file.write(_json({"classifiers": [one.name for one in config.train], "metrics": metrics}))
    parts = [f"{one.name} {metrics[f'{one.name}_auc']:.3f}" for one in config.train]
    note = f"held-out AUC: {', '.join(parts)}" if parts else "the recipe describes no classifier"
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
    """Returns the numbers of a classifier that go to the tracker."""
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
    # Of what the classifier reads: a cut text gives its length away no more than it does to the classifier.
    return [(example.label, len(example.text)) for example in examples]


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"
