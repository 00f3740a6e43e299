"""Stage train_classifiers: labeled text, reference text and a sample of the crawl -> classifiers.

Reads `extracted` (documents/) and external files. Writes, for each classifier of the recipe, the model
(`<name>/model.bin`, `.ftz` or `weights.json`), `<name>/model.json` (labels and settings of inference),
`<name>/scores.json` (held-out scores and baselines) and `<name>/card.md`; and `index.json` with all names and headline
scores. Logs the cards to the tracker.

A quality classifier is trained as in DCLM (Li et al., arXiv 2406.11794, section 4.4): fastText with word pairs,
reference text against a sample of the crawl. Every classifier is a part, so a killed stage resumes at the first missing
one. Classifiers are trained in sequence in this process: fastText needs minutes for 200,000 texts, and only a single
thread is reproducible.
"""

import json
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tasks.core.artifact import Artifact
from tasks.core.digest import sha256_of
from tasks.core.engine import Engine
from tasks.core.pages import model_card, table
from tasks.core.stage import Inputs, Output, Report
from tasks.filters.learned.fasttext import DESCRIPTION
from tasks.formats.hooks import Hooks
from tasks.stages.classifiers import ClassifiersConfig, ClassifierSettings
from tasks.stages.classifiers.texts import LabeledText, TextSplit, files_of, gather
from tasks.stages.classifiers.training import TrainedClassifier, baselines, scores_of, train

log = logging.getLogger("sluice.classifiers")

VERSION = 3
INDEX = "index.json"
"""Also the name of its part; it is not a valid name of a classifier."""
SCORES = "scores.json"
CARD = "card.md"


def external(config: ClassifiersConfig) -> dict[str, list[str]]:
    """Returns the external files that the stage reads, by role `texts/<name>`."""
    return {
        f"texts/{settings.name}": sorted({file.local() for file in files_of(settings)}) for settings in config.train
    }


HOOKS = Hooks(external=external)


def run(config: ClassifiersConfig, inputs: Inputs, output: Output, engine: Engine) -> Report:
    """Trains the missing classifiers.

    Raises:
        InputError: texts are missing or unreadable, or a label has too few texts.
    """
    for done, settings in enumerate(config.train):
        output.progress(done, len(config.train), settings.name)
        if settings.name not in output.committed:
            _train(settings, inputs["extracted"], output, engine)
    names = [settings.name for settings in config.train]
    for name in names:
        output.log_file(f"card-{name}.md", output.folder.read(f"{name}/{CARD}"))
    metrics = {key: value for name in names for key, value in sorted(output.committed[name].metrics.items())}
    if INDEX not in output.committed:
        with output.part(INDEX, conserved=False) as part, part.file(INDEX) as file:
            file.write(_json({"classifiers": names, "metrics": metrics}))
    headlines = [f"{name} {metrics[f'{name}_auc']:.3f}" for name in names]
    note = f"held-out AUC: {', '.join(headlines)}" if headlines else "the recipe describes no classifier"
    return Report(metrics=metrics, note=note)


def _train(settings: ClassifierSettings, extracted: Artifact, output: Output, engine: Engine) -> None:
    examples = gather(settings, extracted, engine)
    log.info("[%s] %d training texts, %d held out", settings.name, len(examples.train), len(examples.heldout))
    trained = train(settings, examples.train, examples.heldout, output.scratch)
    scores = _scores(settings, examples, trained)
    page = card(settings, examples, scores, sha256_of(trained.data))
    with output.part(settings.name) as part:
        part.count_in(examples.read)
        part.count_out(len(examples.train) + len(examples.heldout))
        for reason, count in examples.rejected.items():
            part.reject(reason, count)
        files = {
            trained.description.file: trained.data,
            DESCRIPTION: _json(trained.description.model_dump(mode="json")),
            SCORES: _json(scores),
            CARD: page.encode(),
        }
        for name, data in files.items():
            part.write(f"{settings.name}/{name}", data)
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


def _scores(settings: ClassifierSettings, examples: TextSplit, trained: TrainedClassifier) -> dict[str, Any]:
    labels = trained.description.labels
    base = baselines(labels, _lengths(examples.train), _lengths(examples.heldout), settings.positive)
    truth = [example.label for example in examples.heldout]
    return scores_of(labels, truth, trained.probabilities, settings.positive, base)


def _lengths(examples: list[LabeledText]) -> list[tuple[str, int]]:
    # Lengths of the truncated texts, so that the baseline has the same input as the classifier.
    return [(example.label, len(example.text)) for example in examples]


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def card(settings: ClassifierSettings, examples: TextSplit, scores: dict[str, Any], sha256: str) -> str:
    """Returns the card as Markdown.

    Args:
        settings: settings of the classifier.
        examples: training and held-out texts.
        scores: the result of `tasks.stages.classifiers.training.scores_of`.
        sha256: hash of the model's file, hex.
    """
    sections = {
        "Model": _model_section(settings, sha256),
        "Data": _data_section(settings, examples),
        "Held-out scores": _heldout_section(settings, scores),
        "Intended use and limits": _use_section(settings),
    }
    return model_card(settings.name, [settings.purpose or "(The recipe states no purpose.)"], sections)


def _model_section(settings: ClassifierSettings, sha256: str) -> list[str]:
    kind = {
        "fasttext": "fastText (Joulin et al., arXiv 1607.01759), one thread",
        "signals": "logistic regression over signals of the surface (tasks.filters.learned.signals)",
    }[settings.method]
    score = f'the probability of the label "{settings.positive}"' if settings.positive else "the likeliest label"
    options = settings.model_dump(mode="json", include={settings.method, "ridge", "chars", "seed", "heldout_share"})
    if settings.method == "fasttext":
        options.pop("ridge")
    return [
        f"- Kind: {kind}",
        f"- Gives: {score}, from the first {settings.chars:,} characters of a text",
        f"- Settings: `{json.dumps(options, sort_keys=True)}`",
        f"- sha256 of the file: `{sha256}`",
    ]


def _data_section(settings: ClassifierSettings, examples: TextSplit) -> list[str]:
    trained, heldout = _counts(examples.train), _counts(examples.heldout)
    rows = [
        [label, source, f"{trained[label, source]:,}", f"{heldout[label, source]:,}"]
        for label, source in sorted(trained.keys() | heldout.keys())
    ]
    left_out = ", ".join(f"{count:,} {reason}" for reason, count in examples.rejected.items() if count) or "none"
    files = [f"- `{path}`, sha256 `{sha256}`" for path, sha256 in sorted(examples.files.items())]
    crawl = [f"- {settings.crawl.documents:,} documents of the crawl at most, by hash"] if settings.crawl else []
    return [
        *table(["label", "source", "to learn from", "held out"], rows),
        "",
        f"Read: {examples.read:,}. Left out: {left_out}. Copies of a text count once, and a text or group (site, "
        "book) is on one side only.",
        "",
        *files,
        *crawl,
    ]


def _counts(examples: Sequence[LabeledText]) -> Counter[tuple[str, str]]:
    return Counter((example.label, example.source) for example in examples)


def _heldout_section(settings: ClassifierSettings, scores: dict[str, Any]) -> list[str]:
    contrast = (
        f'of "{settings.positive}" against the rest' if settings.positive else "of each label against the rest, mean"
    )
    error = f" ± {scores['auc_standard_error']:.3f}" if settings.positive else ""
    base = scores["baselines"]
    rows = [
        [settings.name, f"{scores['auc']:.3f}{error}", f"{scores['accuracy']:.3f}"],
        ["length of the text alone", f"{base['length']['auc']:.3f}", ""],
        [f'always "{base["majority"]["label"]}"', "0.500", f"{base['majority']['accuracy']:.3f}"],
    ]
    lines = table(["", f"AUC {contrast}", "accuracy"], rows)
    if settings.positive:
        thresholds = [
            [str(row["threshold"]), *(f"{row[name]:.3f}" for name in ("precision", "recall", "above"))]
            for row in scores["thresholds"]
        ]
        lines += ["", *table(["score at least", "precision", "recall", "share of texts"], thresholds)]
    names = scores["confusion"]["labels"]
    confusion = [
        [name, *(f"{count:,}" for count in row)]
        for name, row in zip(names, scores["confusion"]["rows_are_truth"], strict=True)
    ]
    return [*lines, "", "Likeliest label (columns) of each true one (rows):", "", *table(["", *names], confusion)]


def _use_section(settings: ClassifierSettings) -> list[str]:
    against_crawl = (
        "- It tells the reference text from this crawl, by any sign that does: topic, length, house style. A low score "
        "is no proof of a bad page."
    )
    limits = [
        "- It knows the languages and kinds of text it was trained on; on others its score means little.",
        "- Precision and shares hold for the mix of labels above; in a crawl with another mix they differ. AUC and "
        "recall do not depend on the mix.",
        "- Held-out texts come from the same files as the others: the scores say nothing about other sources.",
        *([against_crawl] if settings.crawl else []),
    ]
    return [
        "To score documents of a corpus, so that consolidation can drop, keep or weigh them. Not to judge people.",
        "",
        *limits,
    ]
