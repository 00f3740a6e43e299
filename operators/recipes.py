"""Recipes for the DAG files: each valid one gives DAGs, each invalid one an import error of its own.

Reads `dags/recipes/*.toml`, or the folder in $SLUICE_RECIPES. A recipe has a DAG for each of its parts and operations.
"""

from collections.abc import Iterator
from pathlib import Path

from airflow.sdk import get_parsing_context

from tasks.core.errors import RecipeError
from tasks.run.recipe import Recipe, recipe_files


def recipes_for(dag: str) -> Iterator[Recipe]:
    """Yields the recipes whose DAG `<recipe>.<dag>` is needed: all that have it, or in a task process only its own.

    An invalid recipe is left out, so that it does not remove the others' DAGs; `broken_recipes` reports it.
    """
    dag_id = get_parsing_context().dag_id
    for path in recipe_files():
        if dag_id is None or dag_id == f"{path.stem}.{dag}":
            try:
                recipe = _read(path)
            except RecipeError:
                continue
            if dag in recipe.dags:
                yield recipe


def broken_recipes() -> list[str]:
    """Returns a line for each thing that is wrong with a recipe: file, field, cause and remedy."""
    lines = []
    for path in recipe_files():
        try:
            _read(path)
        except RecipeError as error:
            lines += str(error).splitlines()
    return lines


def _read(path: Path) -> Recipe:
    recipe = Recipe.load(path)
    if recipe.name != path.stem:
        # DAGs, artifacts and `--recipe` use the name; two files with one name would mix.
        raise RecipeError(f'{path.name}: name is "{recipe.name}"', f'call the recipe "{path.stem}" or rename the file')
    return recipe
