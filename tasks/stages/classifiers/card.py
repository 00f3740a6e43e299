"""Model card of a trained classifier: training data, held-out scores and limits."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tasks.formats.model_card import model_card, table
from tasks.stages.classifiers.config import ClassifierSettings
from tasks.stages.classifiers.texts import Example, Examples


def card(settings: ClassifierSettings, examples: Examples, scores: dict[str, Any], sha256: str) -> str:
    """Returns the card as Markdown.

    Args:
        settings: of the classifier.
        examples: training and held-out texts.
        scores: result of `tasks.stages.classifiers.scores.scores_of`.
        sha256: of the model's file, hex.
    """
    sections = {
        "Model": _how(settings, sha256),
        "Data": _data(settings, examples),
        "Held-out scores": _heldout(settings, scores),
        "Intended use and limits": _use(settings),
    }
    return model_card(settings.name, [settings.purpose or "(The recipe states no purpose.)"], sections)


def _how(settings: ClassifierSettings, sha256: str) -> list[str]:
    kind = {
        "fasttext": "fastText (Joulin et al., arXiv 1607.01759), one thread",
        "signals": "logistic regression over signals of the surface (tasks.filters.learned.signals)",
    }[settings.method]
    score = f'the probability of the label "{settings.positive}"' if settings.positive else "the likeliest label"
    shown = settings.model_dump(mode="json", include={settings.method, "ridge", "chars", "seed", "heldout_share"})
    if settings.method == "fasttext":
        shown.pop("ridge")
    return [
        f"- Kind: {kind}",
        f"- Gives: {score}, from the first {settings.chars:,} characters of a text",
        f"- Settings: `{json.dumps(shown, sort_keys=True)}`",
        f"- sha256 of the file: `{sha256}`",
    ]


def _data(settings: ClassifierSettings, examples: Examples) -> list[str]:
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


def _counts(examples: Sequence[Example]) -> Counter[tuple[str, str]]:
    return Counter((example.label, example.source) for example in examples)


def _heldout(settings: ClassifierSettings, scores: dict[str, Any]) -> list[str]:
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


def _use(settings: ClassifierSettings) -> list[str]:
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
