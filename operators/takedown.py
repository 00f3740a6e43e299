"""TakedownOperator: the stage `takedown` for one request, dated and named by the moment of its DAG run."""

from typing import Any

from operators.runs import Run, run_of
from operators.stage import StageOperator
from tasks.run.recipe import Recipe
from tasks.stages.takedown import VERSION_FORMAT, dated


class TakedownOperator(StageOperator):
    """Runs the stage here; see `StageOperator`.

    Unless the form gives a version, it is the date of the run: every request is an artifact of its own, and a task that
    is cleared and run again finds its own. The date of the request is that of the run too.
    """

    ui_color = "#f2dede"

    def run_of(self, recipe: Recipe, context: Any) -> Run:
        """Returns the run of the request; raises RecipeError."""
        run = run_of(recipe, context)
        # A run that a program has triggered may have no logical date.
        moment = context.get("logical_date") or context["dag_run"].run_after
        version = context["params"].get("version") or moment.strftime(VERSION_FORMAT)
        return Run(version, None, {**run.overrides, **dated(moment)})
