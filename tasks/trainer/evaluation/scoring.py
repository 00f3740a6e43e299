"""Scores a model on tasks: metrics per item, and their means with standard errors.

Writes `tasks/task.<task>.<label>.<number>.parquet`, one row per item: its id, its metrics (ITEM_METRICS), the
log-likelihoods of its choices or of its answer, the generated text ("" if none), and whether its prompt was cut. The
label distinguishes models; for milestones it is the step.

| metric | kind | value per item |
|---|---|---|
| acc | multiple_choice, cloze | the most likely choice is correct; greedy decoding produces the answer |
| acc_norm | multiple_choice | the choice with the largest log-likelihood per character is correct |
| acc_bytes | multiple_choice | the same per UTF-8 byte |
| exact_match | generate | the generated text, stripped of white space, is one of the answers |
| log_p | cloze | ln p of the answer; over items also `perplexity`, exp(-mean) |
| bpb | all | -log2 p of the correct answer / its UTF-8 bytes |

acc, acc_norm, acc_bytes, perplexity and the standard error are those of lm-eval 0.4.13 (`lm_eval/api/task.py`,
`lm_eval/api/metrics.py`): the delimiter is part of the likelihood but not of the length; ties go to the first choice;
`stderr` is the sample standard deviation divided by the square root of the number of items. bpb is a mean over items,
not over bytes, so that all items have the same weight, as in accuracy.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, islice
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.core import parquet
from tasks.core.errors import InputError
from tasks.core.stage import Output, Part
from tasks.trainer.evaluation import items
from tasks.trainer.evaluation.config import TaskConfig
from tasks.trainer.evaluation.items import CUT, ScoringRequest, TaskItem
from tasks.trainer.inference import Likelihood, Scorer

BPB_BELOW = 750_000_000
"""Number of parameters below which decisions use bpb: the accuracy of a small model is near chance and changes little
between checkpoints, while the likelihood of the correct answers already ranks them (DataDecide, arXiv 2504.11393)."""
ITEM_METRICS = {
    "multiple_choice": ("acc", "acc_norm", "acc_bytes", "bpb"),
    "cloze": ("acc", "log_p", "bpb"),
    "generate": ("exact_match", "bpb"),
}
"""Metrics per item, by kind of task."""
_DECIDES = {"multiple_choice": "acc_norm", "cloze": "acc", "generate": "exact_match"}
_NOTHING = "[invalid]"
FOLDER = "tasks"
ITEMS_PER_PART = 256
"""Limits memory, and the work that is repeated after a kill."""


def score_tasks(
    tasks: Sequence[TaskConfig], steps: Sequence[int], load: Callable[[int], Scorer], output: Output
) -> list[dict[str, Any]]:
    """Scores every task at every step; parts that are committed already are not scored again.

    Args:
        tasks: tasks.
        steps: steps of the saved models.
        load: returns the model of a step; called only for steps with parts to score.
        output: receives the parts.

    Returns:
        {task, kind, step, shots, items, metrics {metric: {value, stderr}}} for each step and task; CUT is the number of
        items whose prompt was longer than the context, if there are any.

    Raises:
        InputError: a task cannot be read, or an item cannot be scored.
    """
    scores_of_tasks = []
    for step in steps:
        scorer = lru_cache(1)(partial(load, step))
        for task in tasks:
            scores = score_task(task, f"{step:08d}", scorer, output)
            metrics = summary(task.kind, scores)
            about = {"task": task.name, "kind": task.kind, "step": step, "shots": task.shots}
            about |= {CUT: cut} if (cut := sum(scores[CUT])) else {}
            scores_of_tasks.append({**about, "items": len(scores["item"]), "metrics": metrics})
    return scores_of_tasks


def score_task(task: TaskConfig, label: str, load: Callable[[], Scorer], output: Output) -> dict[str, list[Any]]:
    """Scores a model on all items of a task; parts that are committed already are not scored again.

    Args:
        task: the task.
        label: distinguishes this model's parts from those of others.
        load: returns the model; called only if there are parts to score.
        output: receives the parts.

    Returns:
        The columns "item" and CUT, and the metrics of the task's kind (ITEM_METRICS), each with a value per item, in
        order.

    Raises:
        InputError: the task cannot be read, or an item cannot be scored, as when its likelihood is not finite.
    """
    total, scored_items = items.count(task), 0
    names = [f"task.{task.name}.{label}.{number:05d}" for number in range(-(-total // ITEMS_PER_PART))]
    all_items = items.read(task)
    for name in names:
        batch = list(islice(all_items, ITEMS_PER_PART))
        output.progress(scored_items, total, f"{task.name}, {label}")
        if name not in output.committed:
            scored = _score_items(task, load(), batch)
            with output.part(name) as part:
                _write(part, task, batch, scored)
        scored_items += len(batch)
    output.progress(total, total, f"{task.name}, {label}")
    columns = ["item", CUT, *ITEM_METRICS[task.kind]]
    paths = [f"{output.address.path}/{FOLDER}/{name}.parquet" for name in names]
    table = pa.concat_tables([parquet.read(output.store.local(path), columns) for path in paths])
    return {name: table.column(name).to_pylist() for name in columns}


def decisive(kind: str, parameters: int) -> str:
    """Returns the metric for comparing models of this size."""
    return "bpb" if parameters < BPB_BELOW else _DECIDES[kind]


def summary(kind: str, items: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float | None]]:
    """Returns {metric: {value, stderr}} over items; stderr is None for a single item.

    The error of the perplexity is a first-order approximation: perplexity times the error of its logarithm.
    """
    metrics: dict[str, dict[str, float | None]] = {}
    for name in ITEM_METRICS[kind]:
        values = items[name]
        error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
        metrics[name] = {"value": fmean(values), "stderr": error}
        if name == "log_p":
            perplexity = math.exp(min(-fmean(values), 700.0))  # a double overflows above that
            metrics["perplexity"] = {"value": perplexity, "stderr": None if error is None else perplexity * error}
    return metrics


@dataclass(frozen=True)
class ItemScore:
    """Metrics of an item, the log-likelihoods of its answers, whether its prompt was cut, and the generated text."""

    metrics: dict[str, float]
    log_p: list[float]
    cut: bool
    text: str = ""


def _score_items(task: TaskConfig, scorer: Scorer, batch: Sequence[TaskItem]) -> list[ItemScore]:
    """Returns the scores of items; raises InputError with the item that cannot be scored."""
    if task.kind == "multiple_choice":
        return _score_choices(scorer, batch, [_requests(task, scorer, item, item.answers) for item in batch])
    requests = [_requests(task, scorer, item, [item.right])[0] for item in batch]
    likelihoods = scorer.likelihoods(requests)
    if task.kind == "cloze":
        return [
            ItemScore(of_cloze(item, likelihood), [likelihood.log_p], scorer.cuts(request))
            for item, likelihood, request in zip(batch, likelihoods, requests, strict=True)
        ]
    try:
        room = scorer.room(task.max_new_tokens)
        texts = scorer.greedy([item.prompt for item in batch], task.max_new_tokens, task.stop)
    except InputError as error:
        raise InputError(f'the task "{task.name}": {error.cause}', error.remedy) from None
    cuts = (len(scorer.prompt(item.prompt)) > room for item in batch)
    return [
        ItemScore(of_text(task, item, likelihood, text), [likelihood.log_p], cut, text)
        for item, likelihood, text, cut in zip(batch, likelihoods, texts, cuts, strict=True)
    ]


def _requests(task: TaskConfig, scorer: Scorer, item: TaskItem, answers: Sequence[str]) -> list[ScoringRequest]:
    try:
        return [scorer.request(item.prompt, task.delimiter + answer) for answer in answers]
    except InputError as error:
        raise InputError(f'{item.id} of the task "{task.name}": {error.cause}', error.remedy) from None


def _score_choices(
    scorer: Scorer, batch: Sequence[TaskItem], requests: Sequence[Sequence[ScoringRequest]]
) -> list[ItemScore]:
    likelihoods = iter(scorer.likelihoods(list(chain.from_iterable(requests))))
    scored = []
    for item, of_answers in zip(batch, requests, strict=True):
        of_item = list(islice(likelihoods, len(item.answers)))
        cut = any(map(scorer.cuts, of_answers))
        scored.append(ItemScore(of_choices(item, of_item), [likelihood.log_p for likelihood in of_item], cut))
    return scored


def _write(part: Part, task: TaskConfig, batch: Sequence[TaskItem], scored: Sequence[ItemScore]) -> None:
    for item, score in zip(batch, scored, strict=True):
        for value in score.log_p:
            items.finite(value, f'{item.id} of the task "{task.name}"')
    columns: dict[str, Any] = {"item": [item.id for item in batch]}
    columns |= {name: [score.metrics[name] for score in scored] for name in ITEM_METRICS[task.kind]}
    columns["log_likelihoods"] = pa.array([score.log_p for score in scored], pa.list_(pa.float64()))
    columns["text"] = [score.text for score in scored]
    columns[CUT] = [score.cut for score in scored]
    part.count_in(len(batch))
    part.table(FOLDER, pa.table(columns))


def of_choices(item: TaskItem, likelihoods: Sequence[Likelihood]) -> dict[str, float]:
    """Returns the metrics of a multiple-choice item from the likelihoods of its choices."""
    log_p = np.array([likelihood.log_p for likelihood in likelihoods])
    characters = np.array([len(text) for text in item.answers])
    size = np.array([len(text.encode()) for text in item.answers])
    scores = {"acc": log_p, "acc_norm": log_p / characters, "acc_bytes": log_p / size}
    correct = {name: float(int(np.argmax(values)) == item.gold) for name, values in scores.items()}
    return {**correct, "bpb": bits_per_byte(item, likelihoods[item.gold])}


def of_cloze(item: TaskItem, likelihood: Likelihood) -> dict[str, float]:
    """Returns the metrics of a cloze item."""
    return {"acc": float(likelihood.greedy), "log_p": likelihood.log_p, "bpb": bits_per_byte(item, likelihood)}


def of_text(task: TaskConfig, item: TaskItem, likelihood: Likelihood, text: str) -> dict[str, float]:
    """Returns the metrics of a generation item from the likelihood of its first answer and the generated text."""
    match = extracted(task.extract, text) in {answer.strip() for answer in item.answers}
    return {"exact_match": float(match), "bpb": bits_per_byte(item, likelihood)}


def bits_per_byte(item: TaskItem, likelihood: Likelihood) -> float:
    """Returns -log2 p of the correct answer per UTF-8 byte."""
    return -likelihood.log_p / math.log(2) / len(item.right.encode())


def extracted(pattern: str, text: str) -> str:
    r"""Returns the part of a generated text that is compared with the answers.

    >>> extracted("", " 42 "), extracted(r"is (\d+)", "It is 42."), extracted(r"\d+", "none")
    ('42', '42', '[invalid]')
    """
    if not pattern:
        return text.strip()
    match = re.search(pattern, text)
    part = (match[1] if match.re.groups else match[0]) if match else None
    return _NOTHING if part is None else part.strip()
