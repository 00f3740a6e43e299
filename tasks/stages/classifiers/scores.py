"""How good a classifier is on texts it has not learnt from, and how good one is that knows no better.

Reads and writes nothing.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

THRESHOLDS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
_DIGITS = 4


def auc(positive: Sequence[bool] | NDArray[np.bool_], scores: Sequence[float] | NDArray[Any]) -> float:
    """Returns the area under the ROC curve: how often a positive text scores above another; ties count half.

    By ranks: Hanley and McNeil, Radiology 143 (1982), the statistic of Mann and Whitney. Not a number where one of the
    two sides is empty.

    >>> auc([True, True, False], [0.9, 0.4, 0.4])
    0.75
    """
    from scipy.stats import rankdata

    marks = np.asarray(positive, dtype=bool)
    n_positive, n_negative = int(marks.sum()), int((~marks).sum())
    if not n_positive or not n_negative:
        return math.nan
    ranks = rankdata(np.asarray(scores, dtype=np.float64))
    return float((ranks[marks].sum() - n_positive * (n_positive + 1) / 2) / (n_positive * n_negative))


def auc_error(value: float, n_positive: int, n_negative: int) -> float:
    """Returns the standard error of an AUC, by the formula of Hanley and McNeil (1982)."""
    above, below = value / (2 - value), 2 * value**2 / (1 + value)
    spread = value * (1 - value)
    spread += (n_positive - 1) * (above - value**2) + (n_negative - 1) * (below - value**2)
    return math.sqrt(spread / (n_positive * n_negative))


def at_thresholds(positive: NDArray[np.bool_], scores: NDArray[Any]) -> list[dict[str, float]]:
    """Returns precision, recall and the share of texts above each of THRESHOLDS; precision of nothing is 1."""
    rows = []
    for threshold in THRESHOLDS:
        above = scores >= np.float32(threshold)
        right = int((above & positive).sum())
        rows.append(
            {
                "threshold": threshold,
                "precision": round(right / above.sum(), _DIGITS) if above.any() else 1.0,
                "recall": round(right / max(1, positive.sum()), _DIGITS),
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
    """Returns all that is written to `scores.json`.

    Args:
        labels: the labels, in the order of the columns of `probabilities`.
        truth: the label of each held-out text.
        probabilities: shape (n texts, n labels).
        positive: the label whose probability is the score, or "".
        baseline: what `baselines` has returned.
    """
    known = np.array([labels.index(label) for label in truth])
    guess = probabilities.argmax(axis=1)
    confusion = np.zeros((len(labels), len(labels)), dtype=int)
    np.add.at(confusion, (known, guess), 1)
    each = {label: auc(known == place, probabilities[:, place]) for place, label in enumerate(labels)}
    found: dict[str, Any] = {
        "heldout": dict(sorted(Counter(truth).items())),
        "positive": positive,
        "auc": round(each[positive] if positive else float(np.mean(list(each.values()))), _DIGITS),
        "accuracy": round(float((known == guess).mean()), _DIGITS),
        "auc_by_label": {label: round(value, _DIGITS) for label, value in each.items()},
        "confusion": {"labels": list(labels), "rows_are_truth": confusion.tolist()},
        "baselines": baseline,
    }
    if positive:
        place = list(labels).index(positive)
        marks = known == place
        error = auc_error(each[positive], int(marks.sum()), int((~marks).sum()))
        found |= {
            "auc_standard_error": round(error, _DIGITS),
            "thresholds": at_thresholds(marks, probabilities[:, place]),
        }
    return found


def baselines(
    labels: Sequence[str],
    train: Sequence[tuple[str, int]],
    heldout: Sequence[tuple[str, int]],
    positive: str,
) -> dict[str, Any]:
    """Returns what is reached by always naming the commonest label, and by the length of a text alone.

    Args:
        labels: all labels.
        train: label and length of each text to learn from.
        heldout: the same of each held-out text.
        positive: the label whose probability is the score, or "" to take the mean over labels.
    """
    commonest = Counter(label for label, _ in train).most_common()
    best = min(label for label, count in commonest if count == commonest[0][1])
    mean = {label: float(np.mean([math.log1p(size) for one, size in train if one == label])) for label in labels}
    overall = float(np.mean([math.log1p(size) for _, size in train]))
    sizes = np.array([size for _, size in heldout], dtype=np.float64)
    each = {
        # Longer or shorter: whichever way the label leans among the texts to learn from.
        label: auc([one == label for one, _ in heldout], sizes if mean[label] >= overall else -sizes)
        for label in labels
    }
    length = each[positive] if positive else float(np.mean(list(each.values())))
    return {
        "majority": {
            "label": best,
            "accuracy": round(sum(label == best for label, _ in heldout) / len(heldout), _DIGITS),
            "auc": 0.5,
        },
        "length": {"auc": round(length, _DIGITS)},
    }
