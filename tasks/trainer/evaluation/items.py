"""Items of an evaluation task: prompts with their solved examples, and the right answers.

Reads the files that the settings name, on this machine or on an object store. Prompts are made as lm-eval 0.4.13 makes
them: template, delimiter, answer; examples before, each with a delimiter behind it.
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
        prompt: with the examples before it.
        answers: multiple_choice: all choices; otherwise what is right, of which the first is scored.
        gold: place of the right answer in `answers`.
    """

    id: str
    prompt: str
    answers: tuple[str, ...]
    gold: int

    @property
    def right(self) -> str:
        """The right answer."""
        return self.answers[self.gold]


def files_of(task: TaskConfig) -> list[SourceFile]:
    """Returns the files that a task reads, those with its examples last; raises as `external_files.find` does."""
    whose = f'the task "{task.name}"'
    return [*find(task.path, whose), *(find(task.shots_path, whose) if task.shots_path else [])]


def count(task: TaskConfig) -> int:
    """Returns the number of items of a task; raises InputError if there is none."""
    rows = sum(1 for _ in _rows(task, task.path, task.limit))
    if not rows:
        raise InputError(f'the task "{task.name}" has no row: {task.path} is empty', "correct its path")
    return rows


def read(task: TaskConfig) -> Iterator[TaskItem]:
    """Yields the items of a task in the order of its files and rows.

    Raises:
        InputError: a file cannot be read, a row lacks a field or has something else in it, the template cannot be
            filled in, or there are fewer rows than examples are wanted.
    """
    turn, pool = _turns(task), _pool(task)
    for where, row in _rows(task, task.path, task.limit):
        shots = [one for one in pool if one[1] != row][: task.shots]
        if len(shots) < task.shots:
            raise InputError(f'the task "{task.name}" has {len(shots)} rows to take {task.shots} examples from',
                             "lower shots, or give shots_path")  # fmt: skip
        solved = [turn(*shot) for shot in shots]
        before = "".join(
            f"{prompt}{task.delimiter}{answers[gold]}{task.shots_delimiter}" for prompt, answers, gold in solved
        )
        prompt, answers, gold = turn(where, row)
        yield TaskItem(where, before + prompt, answers, gold)


def _rows(task: TaskConfig, path: str, limit: int) -> Iterator[tuple[str, Row]]:
    """Yields "file:line" and row."""
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
    """Returns the first rows for examples, so many that without copies of any one row enough are left, if there are."""
    found: list[tuple[str, Row]] = []
    different: set[str] = set()
    if task.shots:
        for where, row in _rows(task, task.shots_path or task.path, 0):
            found.append((where, row))
            different.add(json.dumps(row, sort_keys=True))
            if len(different) > task.shots:
                break
    return found


def _turns(task: TaskConfig) -> Callable[[str, Row], tuple[str, tuple[str, ...], int]]:
    """Returns the function from a row to prompt, answers, and the place of the right one."""
    try:
        template = _TEMPLATES.from_string(task.prompt)
    except TemplateError as error:
        raise InputError(f'the prompt of the task "{task.name}" is no Jinja template ({error})', "correct it") from None

    def turn(where: str, row: Row) -> tuple[str, tuple[str, ...], int]:
        at = f'{where} of the task "{task.name}"'
        try:
            prompt = template.render(**row)
        except (TemplateError, TypeError) as error:
            raise InputError(f"{at}: the prompt cannot be filled in ({error})", _fields(row)) from None
        return prompt, *_answers(task, at, row)

    return turn


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
            f'{at}: the field "{field}" has something else than text in it', "write text that is not empty"
        )
    return tuple(values)


def _field(name: str, at: str, row: Row) -> Any:
    if name not in row:
        raise InputError(f'{at}: no field "{name}"', _fields(row))
    return row[name]


def _fields(row: Row) -> str:
    return f"name fields that the row has: {', '.join(sorted(row)) or 'none'}"
