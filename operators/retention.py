"""Operator that applies `[place.retention]` of a recipe (`tasks.run.retention`)."""

from typing import Any

from operators.aws import use_connection
from operators.recipes import RecipeOperator
from operators.runs import fails_at_once
from tasks.core.errors import RecipeError
from tasks.run.recipe import find_recipe


class RetentionOperator(RecipeOperator):
    """Lists the files of old versions that nothing needs, and with `[place.retention] remove` removes them.

    Its XCom has the sizes of needed, unneeded and due files, and the ids of the artifacts whose files it removed.
    """

    ui_color = "#eeeeee"

    def execute(self, context: Any) -> dict[str, Any]:
        """Applies the policy; logs why files stay, what is listed, and what was removed."""
        with fails_at_once():
            # Imported here, because DAG files import this module and must not import pyarrow.
            from tasks.run.retention import collect, survey
            from tasks.run.runner import open_store

            recipe = find_recipe(self.recipe)
            use_connection(recipe)
            policy = recipe.place.retention
            if policy is None:
                raise RecipeError(f"{recipe.name} has no [place.retention]", "add the section, or delete this run")
            found = (collect if policy.remove else survey)(open_store(recipe), recipe.name, policy)
            self.log.info("retention of %s\n%s", recipe.name, found.text())
            return {"bytes": found.bytes(), "removed": found.removed}
