"""Metrics of tasks: per item, and over items with standard error.

| metric | kind | of an item |
|---|---|---|
| acc | multiple_choice, cloze | the likeliest choice is right; greedy decoding gives the answer |
| acc_norm | multiple_choice | the choice with the largest log-likelihood per character is right |
| acc_bytes | multiple_choice | the same per UTF-8 byte |
| exact_match | generate | the text that was generated, without white space around it, is one of the answers |
| log_p | cloze | ln p of the answer; over items also `perplexity`, exp(-mean) |
| bpb | all | -log2 p of the right answer / its UTF-8 bytes |

acc, acc_norm, acc_bytes, perplexity and the standard error are those of lm-eval 0.4.13 (`lm_eval/api/task.py`,
`lm_eval/api/metrics.py`): the delimiter counts in the likelihood and not in the length; of equal choices the first
counts; `stderr` is the sample deviation over the square root of the items. bpb is a mean over items, not over bytes:
each item weighs the same, as in accuracy, and has its share of the standard error.
"""

import math
import re
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

import numpy as np

from tasks.trainer.evaluation.config import TaskConfig
from tasks.trainer.evaluation.items import Item
from tasks.trainer.inference import Likelihood

BPB_BELOW = 750_000_000
"""Parameters below which decisions are made by bpb: a small model's accuracy is near chance and moves little between
checkpoints, while the likelihood of right answers already orders them (DataDecide, arXiv 2504.11393)."""

METRICS = {
    "multiple_choice": ("acc", "acc_norm", "acc_bytes", "bpb"),
    "cloze": ("acc", "log_p", "bpb"),
    "generate": ("exact_match", "bpb"),
}
"""Metrics of an item, by kind of task."""

_DECIDES = {"multiple_choice": "acc_norm", "cloze": "acc", "generate": "exact_match"}
_NOTHING = "[invalid]"


def decisive(kind: str, parameters: int) -> str:
    """Returns the metric by which models of this size are to be compared."""
    return "bpb" if parameters < BPB_BELOW else _DECIDES[kind]


def of_choices(item: Item, found: Sequence[Likelihood]) -> dict[str, float]:
    """Returns the metrics of a multiple-choice item, of the likelihoods of its choices."""
    log_p = np.array([one.log_p for one in found])
    characters = np.array([len(text) for text in item.answers])
    size = np.array([len(text.encode()) for text in item.answers])
    scores = {"acc": log_p, "acc_norm": log_p / characters, "acc_bytes": log_p / size}
    right = {name: float(int(np.argmax(values)) == item.gold) for name, values in scores.items()}
    return {**right, "bpb": bits_per_byte(item, found[item.gold])}


def of_cloze(item: Item, found: Likelihood) -> dict[str, float]:
    """Returns the metrics of a cloze item."""
    return {"acc": float(found.greedy), "log_p": found.log_p, "bpb": bits_per_byte(item, found)}


def of_text(task: TaskConfig, item: Item, found: Likelihood, text: str) -> dict[str, float]:
    """Returns the metrics of an item, of the likelihood of its first answer and the text that was generated."""
    match = extracted(task.extract, text) in {answer.strip() for answer in item.answers}
    return {"exact_match": float(match), "bpb": bits_per_byte(item, found)}


def bits_per_byte(item: Item, found: Likelihood) -> float:
    """Returns -log2 p of the right answer per UTF-8 byte of it."""
    return -found.log_p / math.log(2) / len(item.right.encode())


def extracted(pattern: str, text: str) -> str:
    r"""Returns the part of a text that is compared.

    >>> extracted("", " 42 "), extracted(r"is (\d+)", "It is 42."), extracted(r"\d+", "none")
    ('42', '42', '[invalid]')
    """
    if not pattern:
        return text.strip()
    match = re.search(pattern, text)
    found = (match[1] if match.re.groups else match[0]) if match else None
    return _NOTHING if found is None else found.strip()


def summary(kind: str, items: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float | None]]:
    """Returns {metric: {value, stderr}} over items; stderr is None for a single item.

    The error of the perplexity is that of its logarithm to first order: perplexity times the error of the mean.
    """
    found: dict[str, dict[str, float | None]] = {}
    for name in METRICS[kind]:
        values = items[name]
        error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
        found[name] = {"value": fmean(values), "stderr": error}
        if name == "log_p":
            perplexity = math.exp(min(-fmean(values), 700.0))  # above, a double overflows
            found["perplexity"] = {"value": perplexity, "stderr": None if error is None else perplexity * error}
    return found
