"""The recipes as the DAG files see them: each good one becomes DAGs, each bad one an import error of its own.

Used by the DAG files at parse time. Reads `dags/recipes/*.toml`, or the folder in $SLUICE_RECIPES.
"""

from collections.abc import Iterator
from pathlib import Path

from airflow.sdk import get_parsing_context

from tasks.errors import RecipeError
from tasks.recipe import Recipe, recipe_files


def recipes_for(dag: str) -> Iterator[Recipe]:
    """Yields the recipes whose DAG `<recipe>.<dag>` is wanted: all of them, or in a task process only its own.

    A bad recipe is left out here, so that it does not take the others' DAGs away; `broken_recipes` names it.
    """
    wanted = get_parsing_context().dag_id
    for path in recipe_files():
        if wanted is None or wanted == f"{path.stem}.{dag}":
            try:
                yield _read(path)
            except RecipeError:
                continue


def broken_recipes() -> list[str]:
    """Returns one line for each recipe that cannot be used: file, field, cause and remedy."""
    lines = []
    for path in recipe_files():
        try:
            _read(path)
        except RecipeError as error:
            lines.append(str(error))
    return lines


def _read(path: Path) -> Recipe:
    recipe = Recipe.load(path)
    if recipe.name != path.stem:
        # DAGs, artifacts and `--recipe` go by the name; two files with one name would mix.
        raise RecipeError(f'{path.name}: name is "{recipe.name}"', f'call the recipe "{path.stem}" or rename the file')
    return recipe
