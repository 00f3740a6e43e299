"""Scores a model on tasks, in parts of some items each; metrics of an item, and over items with standard error.

Writes `tasks/task.<task>.<label>.<number>.parquet`, one row per item: its id, its metrics (ITEM_METRICS), the
log-likelihoods of its choices or of its answer, and the text that was generated ("" where none was). The label tells
models apart; of milestones it is the step.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from tasks.trainer.evaluation.items import TaskItem
from tasks.trainer.inference import Likelihood, Scorer, ScoringRequest

BPB_BELOW = 750_000_000
"""Parameters below which decisions are made by bpb: a small model's accuracy is near chance and moves little between
checkpoints, while the likelihood of right answers already orders them (DataDecide, arXiv 2504.11393)."""
ITEM_METRICS = {
    "multiple_choice": ("acc", "acc_norm", "acc_bytes", "bpb"),
    "cloze": ("acc", "log_p", "bpb"),
    "generate": ("exact_match", "bpb"),
}
"""Metrics of an item, by kind of task."""
_DECIDES = {"multiple_choice": "acc_norm", "cloze": "acc", "generate": "exact_match"}
_NOTHING = "[invalid]"
FOLDER = "tasks"
ITEMS_PER_PART = 256
"""Bounds the memory, and what is computed again after a kill."""


def score_tasks(
    tasks: Sequence[TaskConfig], steps: Sequence[int], load: Callable[[int], Scorer], output: Output
) -> list[dict[str, Any]]:
    """Scores every task at every step; parts that are there already are not scored again.

    Args:
        tasks: tasks.
        steps: steps of the saved models.
        load: returns the model of a step; called only for steps that have something left to score.
        output: receives the parts.

    Returns:
        {task, kind, step, shots, items, metrics {metric: {value, stderr}}} of each step and task.

    Raises:
        InputError: a task cannot be read, or an item cannot be scored.
    """
    found = []
    for step in steps:
        scorer = lru_cache(1)(partial(load, step))
        for task in tasks:
            scores = score_task(task, f"{step:08d}", scorer, output)
            metrics = summary(task.kind, scores)
            about = {"task": task.name, "kind": task.kind, "step": step, "shots": task.shots}
            found.append({**about, "items": len(scores["item"]), "metrics": metrics})
    return found


def score_task(task: TaskConfig, label: str, load: Callable[[], Scorer], output: Output) -> dict[str, list[Any]]:
    """Scores a model on all items of a task; parts that are there already are not scored again.

    Args:
        task: the task.
        label: distinguishes this model's parts from those of others.
        load: returns the model; called only if something is left to score.
        output: receives the parts.

    Returns:
        "item" and the metrics of its kind (ITEM_METRICS), each with a value per item, in order.

    Raises:
        InputError: the task cannot be read, or an item cannot be scored.
    """
    total, done = items.count(task), 0
    names = _part_names(task, label, total)
    for name, some in zip(names, _in_parts(task), strict=True):
        output.progress(done, total, f"{task.name}, {label}")
        if name not in output.committed:
            scored = _scored(task, load(), some)
            with output.part(name) as part:
                _write(part, task, some, scored)
        done += len(some)
    output.progress(total, total, f"{task.name}, {label}")
    wanted = ["item", *ITEM_METRICS[task.kind]]
    paths = [f"{output.address.path}/{FOLDER}/{name}.parquet" for name in names]
    table = pa.concat_tables([parquet.read(output.store.local(path), wanted) for path in paths])
    return {name: table.column(name).to_pylist() for name in wanted}


def decisive(kind: str, parameters: int) -> str:
    """Returns the metric by which models of this size are to be compared."""
    return "bpb" if parameters < BPB_BELOW else _DECIDES[kind]


def summary(kind: str, items: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float | None]]:
    """Returns {metric: {value, stderr}} over items; stderr is None for a single item.

    The error of the perplexity is that of its logarithm to first order: perplexity times the error of the mean.
    """
    found: dict[str, dict[str, float | None]] = {}
    for name in ITEM_METRICS[kind]:
        values = items[name]
        error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
        found[name] = {"value": fmean(values), "stderr": error}
        if name == "log_p":
            perplexity = math.exp(min(-fmean(values), 700.0))  # above, a double overflows
            found["perplexity"] = {"value": perplexity, "stderr": None if error is None else perplexity * error}
    return found


@dataclass(frozen=True)
class ItemScore:
    """One item: its metrics, the log-likelihoods of its answers, and the text that was generated."""

    metrics: dict[str, float]
    log_p: list[float]
    text: str = ""


def _part_names(task: TaskConfig, label: str, count: int) -> list[str]:
    return [f"task.{task.name}.{label}.{number:05d}" for number in range(-(-count // ITEMS_PER_PART))]


def _in_parts(task: TaskConfig) -> Iterator[list[TaskItem]]:
    every = items.read(task)
    while some := list(islice(every, ITEMS_PER_PART)):
        yield some


def _scored(task: TaskConfig, scorer: Scorer, some: Sequence[TaskItem]) -> list[ItemScore]:
    """Returns the scores of some items; raises InputError naming the item that cannot be scored."""
    if task.kind == "multiple_choice":
        return _choices(scorer, some, [_requests(task, scorer, item, item.answers) for item in some])
    found = scorer.likelihoods([_requests(task, scorer, item, [item.right])[0] for item in some])
    if task.kind == "cloze":
        return [ItemScore(of_cloze(item, one), [one.log_p]) for item, one in zip(some, found, strict=True)]
    try:
        texts = scorer.greedy([item.prompt for item in some], task.max_new_tokens, task.stop)
    except InputError as error:
        raise InputError(f'the task "{task.name}": {error.cause}', error.remedy) from None
    return [
        ItemScore(of_text(task, item, one, text), [one.log_p], text)
        for item, one, text in zip(some, found, texts, strict=True)
    ]


def _requests(task: TaskConfig, scorer: Scorer, item: TaskItem, answers: Sequence[str]) -> list[ScoringRequest]:
    try:
        return [scorer.request(item.prompt, task.delimiter + answer) for answer in answers]
    except InputError as error:
        raise InputError(f'{item.id} of the task "{task.name}": {error.cause}', error.remedy) from None


def _choices(scorer: Scorer, some: Sequence[TaskItem], requests: Sequence[Sequence[ScoringRequest]]) -> list[ItemScore]:
    found = iter(scorer.likelihoods(list(chain.from_iterable(requests))))
    scored = []
    for item in some:
        mine = list(islice(found, len(item.answers)))
        scored.append(ItemScore(of_choices(item, mine), [one.log_p for one in mine]))
    return scored


def _write(part: Part, task: TaskConfig, some: Sequence[TaskItem], scored: Sequence[ItemScore]) -> None:
    columns: dict[str, Any] = {"item": [item.id for item in some]}
    columns |= {name: [one.metrics[name] for one in scored] for name in ITEM_METRICS[task.kind]}
    columns["log_likelihoods"] = pa.array([one.log_p for one in scored], pa.list_(pa.float64()))
    columns["text"] = [one.text for one in scored]
    part.count_in(len(some))
    part.table(FOLDER, pa.table(columns))


def of_choices(item: TaskItem, found: Sequence[Likelihood]) -> dict[str, float]:
    """Returns the metrics of a multiple-choice item, of the likelihoods of its choices."""
    log_p = np.array([one.log_p for one in found])
    characters = np.array([len(text) for text in item.answers])
    size = np.array([len(text.encode()) for text in item.answers])
    scores = {"acc": log_p, "acc_norm": log_p / characters, "acc_bytes": log_p / size}
    right = {name: float(int(np.argmax(values)) == item.gold) for name, values in scores.items()}
    return {**right, "bpb": bits_per_byte(item, found[item.gold])}


def of_cloze(item: TaskItem, found: Likelihood) -> dict[str, float]:
    """Returns the metrics of a cloze item."""
    return {"acc": float(found.greedy), "log_p": found.log_p, "bpb": bits_per_byte(item, found)}


def of_text(task: TaskConfig, item: TaskItem, found: Likelihood, text: str) -> dict[str, float]:
    """Returns the metrics of an item, of the likelihood of its first answer and the text that was generated."""
    match = extracted(task.extract, text) in {answer.strip() for answer in item.answers}
    return {"exact_match": float(match), "bpb": bits_per_byte(item, found)}


def bits_per_byte(item: TaskItem, found: Likelihood) -> float:
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
