"""The DAGs of all recipes, each made behind a guard of its own.

Airflow knows errors of files: an exception in a DAG file, or a DAG in it that Airflow refuses, removes the DAGs of all
recipes. So a DAG that cannot be made is left out here, and `dags/recipe_errors.py`, which has no DAGs to lose,
makes it again to report it. A recipe's faults are found when it is read (`tasks.run.recipe`); what is left for the
guard depends on the machine, such as a pod template that is not there, or was not foreseen.
"""

import logging
import runpy
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

from airflow.sdk import DAG, Param, get_parsing_context

from operators.forms import form_of
from operators.kept_dags import KeptDags, remove_unused
from tasks.core.errors import RecipeError
from tasks.run.catalogue import OPERATIONS, PARTS
from tasks.run.recipe import Recipe, recipe_files

log = logging.getLogger("sluice.dags")

Build = Callable[[Recipe], DAG]

_FILES = (*PARTS, *OPERATIONS, "cycle", "retention", "lake")
"""DAG files by name; others in the same folder are not of Sluice."""


class _Check(NamedTuple):
    """A check of all DAGs: the valid recipes, those that had to be read, and a line for each fault."""

    valid: list[Path]
    read: dict[Path, Recipe]
    faults: list[str]


_check: ContextVar[_Check | None] = ContextVar("check", default=None)


def for_each_recipe(dag: str, *, form: Mapping[str, str | Param] = {}) -> Callable[[Build], Build]:
    """Returns a decorator that makes the DAG `<recipe>.<dag>` of each recipe that has it.

    The decorated function returns the DAG of a recipe; its arguments are those of `operators.forms.dag_settings`.
    Invalid recipes are skipped, so that they do not remove the DAGs of the others. DAGs of recipes that are unchanged
    since the last parse are read instead of made (`operators.kept_dags`), except in a task's process, which needs only
    its own.

    Args:
        dag: its part of the pipeline: "crawl", "corpus", ...
        form: the fields of its own in the form of the trigger dialog (`operators.forms.form_of`).
    """

    def make(build: Build) -> Build:
        maker, check, only = _Maker(dag, build, form), _check.get(), get_parsing_context().dag_id
        if check is not None:
            for path in check.valid:
                if not maker.kept.has(path):
                    maker.make(path)
        elif only is None:
            for path in recipe_files():
                _register(maker.find(path))
        else:
            for path in (path for path in recipe_files() if only == f"{path.stem}.{dag}"):
                _register(maker.make(path))
        return build

    return make


class _Maker:
    """Makes the DAGs of one DAG file."""

    def __init__(self, dag: str, build: Build, form: Mapping[str, str | Param]) -> None:
        self.kept = KeptDags(Path(build.__code__.co_filename), dag)
        self._dag, self._build, self._form = dag, build, form

    def find(self, path: Path) -> DAG | None:
        """Returns the kept DAG of a recipe, or `make`."""
        try:
            return self.kept.get(path)
        except KeyError:
            return self.make(path)

    def make(self, path: Path) -> DAG | None:
        """Makes and keeps the DAG of a recipe; returns None if it has none, or none that can be made."""
        check = _check.get()
        try:
            sources = self.kept.sources(path)
            recipe = (check.read.get(path) if check else None) or Recipe.load(path)
        except RecipeError:
            return None
        try:
            made = self._complete(recipe) if self._dag in recipe.dags else None
        except Exception as error:
            _report(recipe, self._dag, error)
            return None
        self.kept.put(path, sources, made)
        return made

    def _complete(self, recipe: Recipe) -> DAG:
        made = self._build(recipe)
        # After its tasks: each would copy the form, and Airflow would check and serialize every copy, which takes most
        # of the time of a DAG. A run takes what a task does not have from its DAG.
        made.params = form_of(recipe, self._form)
        made.validate()
        made.check_cycle()
        return made


def _register(dag: DAG | None) -> None:
    if dag is None:
        return
    dag.auto_register = True
    with dag:  # Airflow registers a DAG at the end of its block, complete or not
        pass


def broken_recipes(folder: Path) -> list[str]:
    """Returns a line for each error in a recipe (file, field, cause, remedy), and each DAG that cannot be made.

    Recipes and DAGs that have not changed since they were found good are not checked again.

    Args:
        folder: the folder of the DAG files, of which some may be missing.
    """
    check, good = _Check([], {}, []), KeptDags(Path(__file__), "recipe")
    for path in recipe_files():
        try:
            if not good.has(path):
                sources = good.sources(path)
                check.read[path] = Recipe.load(path)
                good.put(path, sources, None)
            check.valid.append(path)
        except RecipeError as error:
            check.faults.extend(str(error).splitlines())
    checking = _check.set(check)
    try:
        for file in (folder / f"{name}.py" for name in _FILES):
            if file.is_file():
                runpy.run_path(str(file))
    finally:
        _check.reset(checking)
    remove_unused()
    return check.faults


def _report(recipe: Recipe, dag: str, error: Exception) -> None:
    cause = str(error) if isinstance(error, RecipeError) else f"{type(error).__name__}: {' '.join(str(error).split())}"
    text = f"{recipe.name}.toml: the DAG {recipe.name}.{dag} cannot be made: {cause}"
    if (check := _check.get()) is None:
        log.error("%s", text, exc_info=error)
    else:
        check.faults.extend(text.splitlines())
