"""The DAGs of all recipes, each made behind a guard of its own.

Airflow knows errors of files: an exception in a DAG file, or a DAG in it that Airflow refuses, removes the DAGs of all
recipes. So a DAG that cannot be made is left out here, and `dags/recipe_errors.py`, which has no DAGs to lose, makes
all of them again to report it. A recipe's faults are found when it is read (`tasks.run.recipe`); what is left for the
guard was not foreseen, or is in the code of an extension.
"""

import logging
import runpy
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

import attrs
from airflow.sdk import DAG, Param

from operators.forms import form_of
from operators.recipes import recipes_for
from tasks.core.errors import RecipeError
from tasks.run.catalogue import OPERATIONS, PARTS
from tasks.run.recipe import Recipe

log = logging.getLogger("sluice.dags")

Build = Callable[[Recipe], DAG]

_FILES = (*PARTS, *OPERATIONS, "cycle", "retention", "lake")
"""DAG files by name; others in the same folder are not of Sluice."""


class _Check(NamedTuple):
    """A check of all DAGs: the recipes, and a line for each DAG that cannot be made."""

    recipes: Sequence[Recipe]
    faults: list[str]


_check: ContextVar[_Check | None] = ContextVar("check", default=None)


def for_each_recipe(dag: str, *, form: Mapping[str, str | Param] = {}) -> Callable[[Build], Build]:
    """Returns a decorator that makes the DAG `<recipe>.<dag>` of each recipe that has it.

    The decorated function returns the DAG of a recipe; its arguments are those of `operators.forms.dag_settings`.

    Args:
        dag: its part of the pipeline: "crawl", "corpus", ...
        form: the fields of its own in the form of the trigger dialog (`operators.forms.form_of`).
    """

    def make(build: Build) -> Build:
        check = _check.get()
        for recipe in recipes_for(dag) if check is None else check.recipes:
            if dag not in recipe.dags:
                continue
            try:
                made = build(recipe)
                # After its tasks: each would copy the form, and Airflow would check and serialize every copy (ten times
                # the CPU for the DAGs of a recipe). A run takes what a task does not have from its DAG.
                _set_form(made, form_of(recipe, form))
                made.validate()
                made.check_cycle()
            except Exception as error:
                _report(recipe, dag, error)
                continue
            if check is None:
                made.auto_register = True
                with made:  # Airflow registers a DAG at the end of its block, complete or not
                    pass
        return build

    return make


_valid_forms: set[str] = set()


def _set_form(dag: DAG, form: Mapping[str, Param]) -> None:
    """Gives a DAG its form. Airflow checks it, unless this process had it checked for another recipe.

    A check compares each schema with that of JSON Schema, a millisecond a field; forms of a DAG differ in texts only.
    """
    schemas = [
        (name, param.value, {key: value for key, value in param.schema.items() if key not in ("title", "description")})
        for name, param in form.items()
    ]
    checked = repr(schemas)
    with attrs.validators.disabled() if checked in _valid_forms else nullcontext():
        dag.params = form
    if dag.timetable.can_be_scheduled:  # of other DAGs Airflow does not check it
        _valid_forms.add(checked)


def broken_dags(folder: Path, recipes: Sequence[Recipe]) -> list[str]:
    """Returns a line for each DAG of a recipe that cannot be made: recipe, DAG, cause.

    Args:
        folder: the folder of the DAG files, of which some may be missing.
        recipes: the recipes.
    """
    faults: list[str] = []
    checking = _check.set(_Check(recipes, faults))
    try:
        for file in (folder / f"{name}.py" for name in _FILES):
            if file.is_file():
                runpy.run_path(str(file))
    finally:
        _check.reset(checking)
    return faults


def _report(recipe: Recipe, dag: str, error: Exception) -> None:
    cause = str(error) if isinstance(error, RecipeError) else f"{type(error).__name__}: {' '.join(str(error).split())}"
    text = f"{recipe.name}.toml: the DAG {recipe.name}.{dag} cannot be made: {cause}"
    if (check := _check.get()) is None:
        log.error("%s", text, exc_info=error)
    else:
        check.faults.extend(text.splitlines())
