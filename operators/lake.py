"""Operator that writes the corpus of a recipe into the tables of `[place.lake]` (`tasks.run.lake`)."""

from dataclasses import asdict
from typing import Any

from operators.connections import use_store
from operators.recipes import RecipeOperator
from operators.runs import fails_at_once, run_of
from tasks.run.recipe import find_recipe


class LakeOperator(RecipeOperator):
    """Writes the version of the DAG run into the tables, and takes out of them what is taken down.

    Its XCom has a report per table: versions committed, rows added, files rewritten, bytes, and files removed.

    Args:
        recipe: name of the recipe.
        only_takedowns: whether it writes no version, for the DAG of a takedown.
    """

    ui_color = "#e3eaf2"

    def __init__(self, *, recipe: str, only_takedowns: bool = False, **kwargs: Any) -> None:
        super().__init__(recipe=recipe, **kwargs)
        self.only_takedowns = only_takedowns

    def execute(self, context: Any) -> list[dict[str, Any]]:
        """Writes the tables; logs a line for each."""
        with fails_at_once():
            # Imported here, because DAG files import this module and must not import pyarrow.
            from tasks.run.lake import take_down_in_lake, write_lake
            from tasks.run.runner import open_store

            recipe = find_recipe(self.recipe)
            use_store(recipe)
            store = open_store(recipe)
            if self.only_takedowns:
                tables = take_down_in_lake(recipe, store)
            else:
                tables = write_lake(recipe, store, run_of(recipe, context).version)
            for table in tables:
                self.log.info("%s", table.text())
            return [asdict(table) for table in tables]
