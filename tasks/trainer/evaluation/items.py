"""Items of an evaluation task: few-shot prompts and the correct answers.

Reads the files that the settings name, local or on an object store. Prompts are built as in lm-eval 0.4.13: template,
delimiter, answer; preceded by the examples, each followed by a delimiter.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from jinja2 import Environment, StrictUndefined, TemplateError

from tasks.core.errors import InputError
from tasks.formats.documents.external_files import SourceFile, find
from tasks.formats.documents.json_rows import parsed_rows
from tasks.trainer.evaluation.config import TaskConfig

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


def files_of(task: TaskConfig) -> list[SourceFile]:
    """Returns the files that a task reads, those of its examples last; raises like `external_files.find`."""
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
