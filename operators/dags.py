"""The DAGs of all recipes, each made behind a guard of its own.

Airflow knows errors of files: an exception in a DAG file, or a DAG in it that Airflow refuses, removes the DAGs of all
recipes. So a DAG that cannot be made is left out here, and `dags/recipe_errors.py`, which has no DAGs to lose, makes
all of them again to report it. A recipe's faults are found when it is read (`tasks.run.recipe`); what is left for the
guard depends on the machine, such as a pod template that is not there, or was not foreseen.
"""

import logging
import runpy
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path

from airflow.sdk import DAG

from operators.recipes import recipes_for
from tasks.core.errors import RecipeError
from tasks.run.catalogue import OPERATIONS, PARTS
from tasks.run.recipe import Recipe

log = logging.getLogger("sluice.dags")

Build = Callable[[Recipe], DAG]

_FILES = (*PARTS, *OPERATIONS, "cycle", "retention", "lake")
"""DAG files by name; others in the same folder are not of Sluice."""

_faults: ContextVar[list[str] | None] = ContextVar("faults", default=None)


def for_each_recipe(dag: str) -> Callable[[Build], Build]:
    """Returns a decorator that makes the DAG `<recipe>.<dag>` of each recipe that has it.

    The decorated function returns the DAG of a recipe; its arguments are those of `operators.forms.dag_settings`.
    """

    def make(build: Build) -> Build:
        for recipe in recipes_for(dag):
            try:
                made = build(recipe)
                made.validate()
                made.check_cycle()
            except Exception as error:
                _report(recipe, dag, error)
                continue
            if _faults.get() is None:
                made.auto_register = True
                with made:  # Airflow registers a DAG at the end of its block, complete or not
                    pass
        return build

    return make


def broken_dags(folder: Path) -> list[str]:
    """Returns a line for each DAG of a valid recipe that cannot be made: recipe, DAG, cause.

    Args:
        folder: the folder of the DAG files, of which some may be missing.
    """
    faults: list[str] = []
    collecting = _faults.set(faults)
    try:
        for file in (folder / f"{name}.py" for name in _FILES):
            if file.is_file():
                runpy.run_path(str(file))
    finally:
        _faults.reset(collecting)
    return faults


def _report(recipe: Recipe, dag: str, error: Exception) -> None:
    cause = str(error) if isinstance(error, RecipeError) else f"{type(error).__name__}: {' '.join(str(error).split())}"
    text = f"{recipe.name}.toml: the DAG {recipe.name}.{dag} cannot be made: {cause}"
    if (faults := _faults.get()) is None:
        log.error("%s", text, exc_info=error)
    else:
        faults += text.splitlines()
