"""The note of a DAG run: version, source version and overrides, beside the run in Airflow's lists.

Airflow has no call by which a task could write the note of its run, and only a manual run could be given one when it is
triggered. The plugin's listener calls `note_of` when the scheduler starts a run of any kind.
"""

from typing import Any

from operators.runs import month_of, request_of, run_of
from tasks.core.errors import RecipeError
from tasks.run.recipe import find_recipe, recipe_files

MOST_CHARACTERS = 1000
"""Longest note that Airflow accepts."""

_OTHERS = ("retention",)
"""DAGs of a recipe whose runs make no version."""

_SETTINGS_OF = {"takedown": request_of, "cycle": month_of}


def note_of(run: Any) -> str:
    """Returns the note of a run; "" if it is of no recipe's DAG, or makes no version.

    Invalid settings fail the first task; the note gives the reason, too.

    Args:
        run: a run of Airflow's database (`airflow.models.DagRun`) in an open session.
    """
    name, _, dag = run.dag_id.partition(".")
    if not dag or dag in _OTHERS or name not in {path.stem for path in recipe_files()}:
        return ""
    context = {
        "params": run.conf or {},
        "triggering_asset_events": {"": run.consumed_asset_events},
        "logical_date": run.logical_date,
        "dag_run": run,
    }
    try:
        recipe = find_recipe(name)
        settings = _SETTINGS_OF.get(dag, run_of)(recipe, context)
        settings.recipe(recipe)
    except RecipeError as error:
        return _cut(f"Refused: {error}")
    overrides = [f"{path} = {value!r}" for path, value in sorted(settings.overrides.items())]
    note = str(settings)
    if overrides and dag != "takedown":  # the form of a request is long, and on the page of the takedowns
        note += f", overrides: {', '.join(overrides)}"
    return _cut(note)


def _cut(note: str) -> str:
    return note if len(note) <= MOST_CHARACTERS else f"{note[: MOST_CHARACTERS - 1]}…"
