"""Items of an evaluation task: few-shot prompts and the correct answers, as text and in tokens. Does not import torch.

Reads the files that the settings name, local or on an object store. Prompts are built as in lm-eval 0.4.13: template,
delimiter, answer; preceded by the examples, each followed by a delimiter. Writes and reads the items that a run scores
itself (`tasks.json`: {task: [[[[[prompt, answer], bytes], ..], gold], ..]}, with prompt and answer in tokens).
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined, TemplateError
from tokenizers import Tokenizer

from tasks.core.artifact import Artifact
from tasks.core.digest import sha256_of
from tasks.core.errors import InputError
from tasks.formats.documents.external_files import SourceFile, find
from tasks.formats.documents.json_rows import parsed_rows
from tasks.trainer.evaluation.config import TaskConfig

TOKENIZER = "tokenizer.json"
"""File of a tokenizer in its artifact."""
CUT = "cut"
"""Column with whether the prompt of an item was longer than the context and cut at its beginning, as lm-eval does."""
ANSWER, CHOICE = "answer", "choice"
"""Names of the continuous metrics, see `continuous`."""

_TEMPLATES = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)

Row = Mapping[str, Any]


@dataclass(frozen=True)
class TaskItem:
    """One row of a task.

    Attributes:
        id: file and line.
        prompt: including the examples before it.
        answers: multiple_choice: all choices; otherwise the correct answers, of which the first is scored.
        gold: index of the correct answer in `answers`.
    """

    id: str
    prompt: str
    answers: tuple[str, ...]
    gold: int

    @property
    def right(self) -> str:
        """The correct answer."""
        return self.answers[self.gold]


class ScoringRequest(NamedTuple):
    """Tokens of a prompt, with those before it, and of the answer that follows it."""

    prompt: list[int]
    answer: list[int]


class EncodedAnswer(NamedTuple):
    """An answer in tokens, and the UTF-8 bytes of its text."""

    request: ScoringRequest
    n_bytes: int


@dataclass(frozen=True)
class EncodedItem:
    """The answers of an item that are scored, of which `gold` is correct: all choices, or only the correct answer."""

    answers: tuple[EncodedAnswer, ...]
    gold: int


def external_of(tasks: Iterable[TaskConfig]) -> dict[str, list[str]]:
    """Returns the files of tasks as inputs from outside the store: their local paths by role `task:<name>`.

    The files of a task's examples are last. Raises like `external_files.find`.
    """
    return {f"task:{task.name}": [file.local() for file in _files_of(task)] for task in tasks}


def _files_of(task: TaskConfig) -> list[SourceFile]:
    owner = f'the task "{task.name}"'
    return [*find(task.path, owner), *(find(task.shots_path, owner) if task.shots_path else [])]


def count(task: TaskConfig) -> int:
    """Returns the number of items of a task; raises InputError if it has none."""
    rows = sum(1 for _ in _rows(task, task.path, task.limit))
    if not rows:
        raise InputError(f'the task "{task.name}" has no row: {task.path} is empty', "correct its path")
    return rows


def read(task: TaskConfig) -> Iterator[TaskItem]:
    """Yields the items of a task in the order of its files and rows.

    Raises:
        InputError: a file cannot be read, a row lacks a field or has a field of the wrong type, the template cannot be
            rendered, or there are too few rows for the examples.
    """
    render, pool = _renderer(task), _pool(task)
    for where, row in _rows(task, task.path, task.limit):
        shots = [shot for shot in pool if shot[1] != row][: task.shots]
        if len(shots) < task.shots:
            raise InputError(f'the task "{task.name}" has {len(shots)} rows to take {task.shots} examples from',
                             "lower shots, or give shots_path")  # fmt: skip
        examples = [render(*shot) for shot in shots]
        preceding = "".join(
            f"{prompt}{task.delimiter}{answers[gold]}{task.shots_delimiter}" for prompt, answers, gold in examples
        )
        prompt, answers, gold = render(where, row)
        yield TaskItem(where, preceding + prompt, answers, gold)


def _rows(task: TaskConfig, path: str, limit: int) -> Iterator[tuple[str, Row]]:
    """Yields ("file:line", row)."""
    every = (
        (f"{file.name}:{line}", row)
        for file in find(path, f'the task "{task.name}"')
        for line, row in parsed_rows(file)
    )
    for where, row in islice(every, limit or None):
        if not isinstance(row, Mapping):
            raise InputError(
                f'{where} of the task "{task.name}": no JSON object', "write one item per line, as an object"
            )
        yield where, row


def _pool(task: TaskConfig) -> list[tuple[str, Row]]:
    """Returns the first rows for examples, until enough are left when any one row and its copies are excluded."""
    pool: list[tuple[str, Row]] = []
    distinct: set[str] = set()
    if task.shots:
        for where, row in _rows(task, task.shots_path or task.path, 0):
            pool.append((where, row))
            distinct.add(json.dumps(row, sort_keys=True))
            if len(distinct) > task.shots:
                break
    return pool


def _renderer(task: TaskConfig) -> Callable[[str, Row], tuple[str, tuple[str, ...], int]]:
    """Returns a function from a row to its prompt, its answers, and the index of the correct one."""
    try:
        template = _TEMPLATES.from_string(task.prompt)
    except TemplateError as error:
        raise InputError(
            f'the prompt of the task "{task.name}" is not a Jinja template ({error})', "correct it"
        ) from None

    def render_row(where: str, row: Row) -> tuple[str, tuple[str, ...], int]:
        at = f'{where} of the task "{task.name}"'
        try:
            prompt = template.render(**row)
        except (TemplateError, TypeError) as error:
            raise InputError(f"{at}: the prompt cannot be filled in ({error})", _fields(row)) from None
        return prompt, *_answers(task, at, row)

    return render_row


def _answers(task: TaskConfig, at: str, row: Row) -> tuple[tuple[str, ...], int]:
    answer = _field(task.answer, at, row)
    if task.kind != "multiple_choice":
        many = answer if isinstance(answer, list) and task.kind == "generate" else [answer]
        return _texts(many, task.answer, at), 0
    choices = _texts(_field(task.choices, at, row), task.choices, at)
    if isinstance(answer, str) and answer in choices:
        return choices, choices.index(answer)
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(choices):
        return choices, answer
    raise InputError(
        f'{at}: "{task.answer}" is {json.dumps(answer)}, which is none of {len(choices)} choices',
        "write the number of the right choice, from 0, or its text",
    )


def _texts(values: Any, field: str, at: str) -> tuple[str, ...]:
    if not isinstance(values, list) or not values or not all(isinstance(text, str) and text for text in values):
        raise InputError(
            f'{at}: the field "{field}" has a value that is not text, or is empty', "write text that is not empty"
        )
    return tuple(values)


def _field(name: str, at: str, row: Row) -> Any:
    if name not in row:
        raise InputError(f'{at}: no field "{name}"', _fields(row))
    return row[name]


def _fields(row: Row) -> str:
    return f"name fields that the row has: {', '.join(sorted(row)) or 'none'}"


def matching_tokenizer(tokenizer: Artifact, described: dict[str, Any]) -> str:
    """Returns the content of a tokenizer's file; raises InputError unless the model was trained with it.

    Args:
        tokenizer: artifact with the file.
        described: content of the model's `model.json`.
    """
    data = tokenizer.read(TOKENIZER)
    if sha256_of(data) != described["tokenizer_sha256"]:
        raise InputError(
            f"{tokenizer.address} is not the tokenizer the checkpoint was trained with",
            "evaluate with the tokenizer that the shards were encoded with",
        )
    return data.decode()


def split_request(tokenizer: Tokenizer, prompt: str, answer: str) -> ScoringRequest:
    """Returns the tokens of a prompt, without any before it, and of the answer; see `tasks.trainer.inference`."""
    stripped = prompt.rstrip()
    whole = list(tokenizer.encode(prompt + answer, add_special_tokens=False).ids)
    split = len(tokenizer.encode(stripped, add_special_tokens=False).ids) if stripped else 0
    return ScoringRequest(whole[:split], whole[split:])


def checked(request: ScoringRequest, context: int) -> ScoringRequest:
    """Returns the request; raises InputError if its answer has no tokens or more than fit into the context."""
    if not request.answer:
        raise InputError("an answer has no token of its own after the prompt", "put a space between them")
    if len(request.answer) > context:
        cause = f"an answer has {len(request.answer)} tokens, and the context {context}"
        raise InputError(cause, "leave the row out")
    return request


def finite(value: float, where: str) -> float:
    """Returns a log-likelihood; raises InputError, which names the text, if it is NaN or infinite."""
    if not math.isfinite(value):
        cause = f"{where}: the model gives no finite likelihood ({value})"
        raise InputError(cause, "its activations overflow: evaluate an earlier checkpoint, or another model")
    return value


def encoded(task: TaskConfig, tokenizer: Tokenizer, eos_id: int, context: int) -> list[EncodedItem]:
    """Returns the items of a task in tokens, each prompt after end-of-text; raises InputError as `read` and `checked`.

    Args:
        task: the task.
        tokenizer: of the model.
        eos_id: end-of-text.
        context: maximum number of tokens the model reads.
    """
    found = []
    for item in read(task):
        choices = item.answers if task.kind == "multiple_choice" else (item.right,)
        if task.kind == "multiple_choice" and len(choices) < 2:
            raise InputError(f'{item.id} of the task "{task.name}" has a single choice', "leave the row out")
        answers = []
        for text in choices:
            prompt, answer = split_request(tokenizer, item.prompt, task.delimiter + text)
            try:
                request = checked(ScoringRequest([eos_id, *prompt], answer), context)
            except InputError as error:
                raise InputError(f'{item.id} of the task "{task.name}": {error.cause}', error.remedy) from None
            answers.append(EncodedAnswer(request, len(text.encode())))
        found.append(EncodedItem(tuple(answers), item.gold if len(choices) > 1 else 0))
    if not found:
        raise InputError(f'the task "{task.name}" has no row: {task.path} is empty', "correct its path")
    return found


def write_encoded(path: Path, tasks: Mapping[str, Sequence[EncodedItem]]) -> None:
    """Writes items by task to a local file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({task: [(item.answers, item.gold) for item in items] for task, items in tasks.items()}))


def read_encoded(path: Path) -> dict[str, list[EncodedItem]]:
    """Returns the items by task that `write_encoded` wrote."""
    return {
        task: [
            EncodedItem(tuple(EncodedAnswer(ScoringRequest(*request), size) for request, size in answers), gold)
            for answers, gold in rows
        ]
        for task, rows in json.loads(path.read_text()).items()
    }


def metrics_of(task: TaskConfig) -> tuple[str, ...]:
    """Returns the names of the metrics of a task by `continuous`."""
    return (ANSWER, CHOICE) if task.kind == "multiple_choice" else (ANSWER,)


def continuous(items: Sequence[EncodedItem], nats: Sequence[Sequence[float]]) -> dict[str, float]:
    """Returns the continuous metrics of a task, in bits; lower is better.

    `ANSWER` is the mean over items of -log2 p of the correct answer per byte, the `bpb` of `scoring`. `CHOICE` is -log2
    of the mean over items of the normalized choice probability: p ** (1 / bytes) of the correct choice over the sum of
    all choices' (the normalized correct probability of DataDecide, arXiv 2504.11393, per byte as in Levanter's
    `choice_prob_norm`). The logarithm is that of the mean, because the mean of the logarithms ranked no better than
    bits per byte where the mean did rank (marin-community/marin#5247).

    Args:
        items: of the task.
        nats: -ln p of each answer, by item.
    """
    right, probability = [], []
    for item, losses in zip(items, nats, strict=True):
        bpb = [loss / math.log(2) / one.n_bytes for one, loss in zip(item.answers, losses, strict=True)]
        right.append(bpb[item.gold])
        probability.append(1 / sum(2 ** min(bpb[item.gold] - other, 100.0) for other in bpb))
    found = {ANSWER: fmean(right)}
    return found | ({CHOICE: -math.log2(fmean(probability))} if len(items[0].answers) > 1 else {})
