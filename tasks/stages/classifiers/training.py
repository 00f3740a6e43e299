"""Training of a classifier, and its scores and those of trivial baselines on held-out texts.

Writes fastText's input file to a scratch folder. The same texts and settings give the same bytes, because a single
thread applies the updates in a fixed order.
"""

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.core.errors import InputError
from tasks.filters.learned.fasttext import LABEL, FastText, ModelDescription, line_of
from tasks.filters.learned.signals import fit, matrix
from tasks.stages.classifiers import ClassifierSettings, FastTextSettings
from tasks.stages.classifiers.texts import LabeledText

THRESHOLDS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
_DIGITS = 4


@dataclass(frozen=True)
class TrainedClassifier:
    """A trained classifier.

    Attributes:
        description: labels and settings of inference, with the name of the model's file.
        data: the bytes of that file.
        probabilities: probability of each label for each held-out text, shape (n_texts, n_labels).
    """

    description: ModelDescription
    data: bytes
    probabilities: NDArray[Any]


def train(
    settings: ClassifierSettings, learn: Sequence[LabeledText], heldout: Sequence[LabeledText], scratch: str
) -> TrainedClassifier:
    """Trains on `learn` and predicts `heldout`.

    Args:
        settings: settings of the classifier.
        learn: training texts.
        heldout: held-out texts.
        scratch: an existing folder on this machine.

    Raises:
        InputError: fastText cannot train on these texts with these settings.
    """
    labels = tuple(sorted({example.label for example in learn}))
    if settings.method == "signals":
        return _signals(settings, labels, learn, heldout)
    name = "model.ftz" if settings.fasttext.quantised else "model.bin"
    description = ModelDescription(
        method="fasttext", file=name, labels=labels, positive=settings.positive, chars=settings.chars
    )
    model_file = os.path.join(scratch, name)
    _fasttext(settings, description, learn, scratch, model_file)
    # The written file is loaded with the class that annotators use.
    probabilities = FastText(model_file, description).probabilities(example.text for example in heldout)
    with open(model_file, "rb") as file:
        return TrainedClassifier(description, file.read(), probabilities)


def _fasttext(
    settings: ClassifierSettings,
    description: ModelDescription,
    learn: Sequence[LabeledText],
    scratch: str,
    model_file: str,
) -> None:
    import fasttext

    number = {label: f"{LABEL}{index}" for index, label in enumerate(description.labels)}
    text_file = os.path.join(scratch, "texts.txt")
    with open(text_file, "w", encoding="utf-8") as file:
        for example in learn:
            file.write(f"{number[example.label]} {line_of(example.text, settings.chars)}\n")
    try:
        model = fasttext.train_supervised(text_file, **_options(settings))
        if settings.fasttext.quantised:
            model.quantize(qnorm=True, thread=1)
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"fastText cannot train the classifier {settings.name} ({error})",
            "lower learning_rate if numbers overflow; set quantised = false if the model is too small for it",
        ) from error
    model.save_model(model_file)


def _options(settings: ClassifierSettings) -> dict[str, Any]:
    options: FastTextSettings = settings.fasttext
    return {
        "epoch": options.epochs,
        "lr": options.learning_rate,
        "dim": options.dimensions,
        "wordNgrams": options.word_ngrams,
        "minn": options.char_ngrams[0],
        "maxn": options.char_ngrams[1],
        "bucket": options.buckets,
        "minCount": options.min_count,
        "seed": settings.seed,
        "thread": 1,  # several threads would update shared weights in an arbitrary order
        "verbose": 0,
    }


def _signals(
    settings: ClassifierSettings, labels: tuple[str, ...], learn: Sequence[LabeledText], heldout: Sequence[LabeledText]
) -> TrainedClassifier:
    description = ModelDescription(
        method="signals", file="weights.json", labels=labels, positive=settings.positive, chars=settings.chars
    )
    positive = np.array([example.label == settings.positive for example in learn])
    weights = fit(matrix((example.text for example in learn), settings.chars), positive, settings.ridge)
    probability = weights.probabilities(matrix((example.text for example in heldout), settings.chars))
    columns = [probability if label == settings.positive else 1 - probability for label in labels]
    return TrainedClassifier(description, weights.model_dump_json(indent=1).encode() + b"\n", np.column_stack(columns))


def auc(positive: Sequence[bool] | NDArray[np.bool_], scores: Sequence[float] | NDArray[Any]) -> float:
    """Returns the area under the ROC curve: the share of pairs whose positive text scores higher; a tie counts half.

    Computed from ranks, as the Mann-Whitney statistic: Hanley and McNeil, Radiology 143 (1982). NaN if one of the two
    classes is empty.

    >>> auc([True, True, False], [0.9, 0.4, 0.4])
    0.75
    """
    from scipy.stats import rankdata

    is_positive = np.asarray(positive, dtype=bool)
    n_positive, n_negative = int(is_positive.sum()), int((~is_positive).sum())
    if not n_positive or not n_negative:
        return math.nan
    ranks = rankdata(np.asarray(scores, dtype=np.float64))
    return float((ranks[is_positive].sum() - n_positive * (n_positive + 1) / 2) / (n_positive * n_negative))


def auc_error(value: float, n_positive: int, n_negative: int) -> float:
    """Returns the standard error of an AUC by the formula of Hanley and McNeil (1982)."""
    above, below = value / (2 - value), 2 * value**2 / (1 + value)
    variance = value * (1 - value)
    variance += (n_positive - 1) * (above - value**2) + (n_negative - 1) * (below - value**2)
    return math.sqrt(variance / (n_positive * n_negative))


def at_thresholds(positive: NDArray[np.bool_], scores: NDArray[Any]) -> list[dict[str, float]]:
    """Returns precision, recall and the share of texts at or above each of THRESHOLDS; precision is 1 for no text."""
    rows = []
    for threshold in THRESHOLDS:
        above = scores >= np.float32(threshold)
        true_positives = int((above & positive).sum())
        rows.append(
            {
                "threshold": threshold,
                "precision": round(true_positives / above.sum(), _DIGITS) if above.any() else 1.0,
                "recall": round(true_positives / max(1, positive.sum()), _DIGITS),
                "above": round(float(above.mean()), _DIGITS),
            }
        )
    return rows


def scores_of(
    labels: Sequence[str],
    truth: Sequence[str],
    probabilities: NDArray[Any],
    positive: str,
    baseline: dict[str, Any],
) -> dict[str, Any]:
    """Returns the content of `scores.json`.

    Args:
        labels: the labels, in the order of the columns of `probabilities`.
        truth: the label of each held-out text.
        probabilities: shape (n_texts, n_labels).
        positive: the label whose probability is the score, or "".
        baseline: the result of `baselines`.
    """
    true_label = np.array([labels.index(label) for label in truth])
    predicted = probabilities.argmax(axis=1)
    confusion = np.zeros((len(labels), len(labels)), dtype=int)
    np.add.at(confusion, (true_label, predicted), 1)
    by_label = {label: auc(true_label == column, probabilities[:, column]) for column, label in enumerate(labels)}
    scores: dict[str, Any] = {
        "heldout": dict(sorted(Counter(truth).items())),
        "positive": positive,
        "auc": round(by_label[positive] if positive else float(np.mean(list(by_label.values()))), _DIGITS),
        "accuracy": round(float((true_label == predicted).mean()), _DIGITS),
        "auc_by_label": {label: round(value, _DIGITS) for label, value in by_label.items()},
        "confusion": {"labels": list(labels), "rows_are_truth": confusion.tolist()},
        "baselines": baseline,
    }
    if positive:
        column = list(labels).index(positive)
        is_positive = true_label == column
        error = auc_error(by_label[positive], int(is_positive.sum()), int((~is_positive).sum()))
        scores |= {
            "auc_standard_error": round(error, _DIGITS),
            "thresholds": at_thresholds(is_positive, probabilities[:, column]),
        }
    return scores


def baselines(
    labels: Sequence[str],
    train: Sequence[tuple[str, int]],
    heldout: Sequence[tuple[str, int]],
    positive: str,
) -> dict[str, Any]:
    """Returns the scores of two baselines: the majority label, and the length of a text.

    Args:
        labels: all labels.
        train: label and length of each training text.
        heldout: label and length of each held-out text.
        positive: the label whose probability is the score; "": the score is the mean over labels.
    """
    by_frequency = Counter(label for label, _ in train).most_common()
    majority = min(label for label, count in by_frequency if count == by_frequency[0][1])
    length_of = {
        label: float(np.mean([math.log1p(size) for other, size in train if other == label])) for label in labels
    }
    overall = float(np.mean([math.log1p(size) for _, size in train]))
    sizes = np.array([size for _, size in heldout], dtype=np.float64)
    by_label = {
        # The sign is that of the correlation between label and length in the training texts.
        label: auc([other == label for other, _ in heldout], sizes if length_of[label] >= overall else -sizes)
        for label in labels
    }
    length = by_label[positive] if positive else float(np.mean(list(by_label.values())))
    return {
        "majority": {
            "label": majority,
            "accuracy": round(sum(label == majority for label, _ in heldout) / len(heldout), _DIGITS),
            "auc": 0.5,
        },
        "length": {"auc": round(length, _DIGITS)},
    }
