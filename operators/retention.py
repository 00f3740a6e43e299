"""Operator that applies `[place.retention]` of a recipe (`tasks.run.retention`)."""

import shutil
import time
from pathlib import Path
from typing import Any

from airflow.configuration import conf

from operators.connections import use_store
from operators.recipes import RecipeOperator
from operators.runs import fails_at_once
from tasks.core.errors import RecipeError
from tasks.run.recipe import find_recipe


class RetentionOperator(RecipeOperator):
    """Lists the files of old versions that nothing needs, and with `[place.retention] remove` removes them.

    With `remove`, MLflow runs and Airflow's logs follow their own settings. Its XCom has the sizes of needed, unneeded
    and due files, the ids of the artifacts whose files it removed, and the numbers of MLflow runs marked as deleted and
    of DAG runs whose logs were removed.
    """

    ui_color = "#eeeeee"

    def execute(self, context: Any) -> dict[str, Any]:
        """Applies the policy; logs why files stay, what is listed, and what was removed."""
        with fails_at_once():
            # Imported here, because DAG files import this module and must not import pyarrow.
            from tasks.run.retention import collect, delete_runs, survey
            from tasks.run.runner import open_store
            from tasks.run.tracking import server_of

            recipe = find_recipe(self.recipe)
            use_store(recipe)
            policy = recipe.place.retention
            if policy is None:
                raise RecipeError(f"{recipe.name} has no [place.retention]", "add the section, or delete this run")
            store, runs, logs = open_store(recipe), 0, 0
            found = (collect if policy.remove else survey)(store, recipe.name, policy)
            self.log.info("retention of %s\n%s", recipe.name, found.text())
            if policy.remove and policy.runs == "delete":
                runs = delete_runs(store, recipe.name, server_of(recipe.place))
            if policy.remove and policy.log_days is not None:
                logs = remove_logs(recipe.name, time.time() - policy.log_days * 86_400)
            return {"bytes": found.bytes(), "removed": found.removed, "mlflow_runs": runs, "logs": logs}


def remove_logs(recipe: str, before: float) -> int:
    """Removes the local task logs of a recipe's DAG runs to which nothing was added since `before`, in Unix seconds.

    Returns:
        the number of these runs.
    """
    removed = 0
    for run in Path(conf.get("logging", "base_log_folder")).glob(f"dag_id={recipe}.*/run_id=*"):
        if max((path.stat().st_mtime for path in (run, *run.rglob("*"))), default=0) < before:
            shutil.rmtree(run)
            removed += 1
    return removed
